"""The rules of what is removed after transfers are complete, and what a census finds."""
