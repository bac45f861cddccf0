"""Nightshift's own database: how it is opened, written to and migrated. Each subject declares its own tables."""
