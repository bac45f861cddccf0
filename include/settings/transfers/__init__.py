"""Settings of transfers between storage sites."""
