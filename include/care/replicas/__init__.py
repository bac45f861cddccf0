"""Replicas: how far each copy of a repository is behind stratum 0, and what a collection has to wait for."""
