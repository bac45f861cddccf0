"""Records of who and what published each tree, and who froze a repository."""
