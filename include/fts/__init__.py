"""Transfers between storages by FTS (file transfer service): its words, and a client of its REST interface."""
