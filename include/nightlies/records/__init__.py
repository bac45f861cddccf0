"""What the ledger records of nights."""
