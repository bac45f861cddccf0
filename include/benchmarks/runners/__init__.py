"""What makes the load: fio, dd, rados bench and the object driver."""
