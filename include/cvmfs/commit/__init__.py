"""A changeset, a tag, a rollback or a repair becomes a new revision."""
