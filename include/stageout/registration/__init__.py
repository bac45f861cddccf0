"""Catalogues in which files of data sets are registered: the ledger, and Rucio."""
