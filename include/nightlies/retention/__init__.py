"""Removing the builds that no rule of retention keeps."""
