"""The file formats of CernVM-FS: catalogs, manifests, whitelists, history, reflog, objects and keys."""
