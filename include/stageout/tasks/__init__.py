"""Stage-out as tasks run it: passes of the components, and files that a task hands to FTS itself."""
