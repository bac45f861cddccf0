"""Which builds of a slot stay in the repository. Pure."""
