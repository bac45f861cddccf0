"""Decisions about nights: pure functions of values, with their reasons."""
