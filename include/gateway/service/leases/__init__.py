"""The gateway's leases, and its state on disk."""
