"""Shared caches of a site: alien caches of CernVM-FS clients, warmed, trimmed and verified (docs/auxiliary-data.md)."""
