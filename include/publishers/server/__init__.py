"""Publishing by `cvmfs_server` on a publisher node, reached over SSH."""
