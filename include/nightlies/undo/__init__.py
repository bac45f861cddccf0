"""Taking back a build, or some of it."""
