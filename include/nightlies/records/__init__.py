"""Ledger records of nights."""
