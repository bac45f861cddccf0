"""The CernVM-FS repository format: read, prepare, hang, merge, commit, check. Formats: docs/formats.md."""
