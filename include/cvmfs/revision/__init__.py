"""A published revision of a repository, read and verified."""
