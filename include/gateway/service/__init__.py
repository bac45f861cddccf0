"""The gateway service: leases and commits for publishers, state in SQLite, replies as the stock gateway's."""
