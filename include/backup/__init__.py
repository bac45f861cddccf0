"""Backups of a site: written, listed, checked, restored, and what a restore has to be compared with; its upgrades."""
