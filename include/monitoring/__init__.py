"""Watches a site: checks before a night, nights and their summaries, alerts, figures for Prometheus."""
