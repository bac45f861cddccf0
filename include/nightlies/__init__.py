"""Nightly builds: slots, builds, their artifacts, where they go and what became of them."""
