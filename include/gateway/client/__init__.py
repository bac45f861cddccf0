"""The client of a gateway, stock or our own."""
