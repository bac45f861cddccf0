"""Who and what published each path: in the ledger, and as a signed document in the store."""
