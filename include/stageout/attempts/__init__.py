"""An attempt of a transfer at FTS: from which queue, in which job, and what the answers mean."""
