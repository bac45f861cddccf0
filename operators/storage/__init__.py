"""Operators that measure storage."""
