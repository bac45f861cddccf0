"""Tells people what went wrong, and how it is cured: by mail, and by a call of their own service."""
