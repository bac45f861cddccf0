"""Notifies people of what went wrong and what to do: by mail, by chat services, and by a call of their own service."""
