"""What looks after a site: watch, preflight, provenance, notifications and freezes."""
