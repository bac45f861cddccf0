"""Targets, loads and runners of storage benchmarks, and what servers report meanwhile."""
