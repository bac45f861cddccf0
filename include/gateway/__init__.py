"""The lease protocol of CernVM-FS: a client for any gateway, and a gateway service (docs/formats.md, gateway)."""
