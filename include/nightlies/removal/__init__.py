"""Takes builds back: undo of a build, rollback of a repository, retention of a slot."""
