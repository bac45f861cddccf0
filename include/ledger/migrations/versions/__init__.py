"""Migrations, a file a version; each goes on where the one before it ended."""
