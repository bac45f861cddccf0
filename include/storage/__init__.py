"""Object stores by URL: ``file://``, ``s3://`` and (to read) ``http(s)://``, with reliable conditional writes."""
