"""Whether the deployment's parts can be reached, and its figures for Prometheus, as two routes of a web application."""
