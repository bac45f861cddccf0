"""Storages of sites, which stage-out reaches by the protocols of their URLs."""
