"""What is measured: a path, a bucket or a pool, each with an area for the data of a run."""
