"""Transfers by FTS: for others' DAGs, and the passes of stage-out."""
