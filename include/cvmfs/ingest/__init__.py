"""A source becomes objects in the store and a changeset; takes no lease."""
