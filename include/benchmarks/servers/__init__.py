"""What servers and clients report of themselves while a step runs."""
