"""Stage-out: users' files are transferred to their final sites through FTS, verified, registered and cleaned."""
