"""The components of stage-out: each is a function of the ledger and its clients, safe to run twice and in parallel."""
