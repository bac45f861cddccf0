"""Notifies people by Apprise of what went wrong and what to do."""
