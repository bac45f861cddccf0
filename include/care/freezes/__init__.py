"""What people do to a running night: freeze a repository, and thaw it."""
