"""Replicas of repositories: how far they are, and jobs on their nodes."""
