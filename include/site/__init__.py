"""The configured site: stores, gateways, publishers and ledger opened from the settings, and what is done with them."""
