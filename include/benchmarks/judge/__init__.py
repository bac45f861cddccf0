"""Figures of a campaign, the verdict against its baseline, and the report."""
