"""Garbage collection: what no revision needs any more is condemned by a published list, then deleted."""
