"""Commits and payloads under leases."""
