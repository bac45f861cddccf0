"""Going back to an earlier revision: what it changes for readers, and what the ledger has to know afterwards."""
