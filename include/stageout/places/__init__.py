"""How stage-out reaches the storage of a site: by the protocols of its URLs."""
