"""The lease protocol of CernVM-FS: a client for any gateway, and a gateway service. Protocol: docs/formats.md, gateway."""
