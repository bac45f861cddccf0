"""Looks whether the nights go as they should: alerts while they run, and a summary in the morning."""
