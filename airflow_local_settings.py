"""Airflow's cluster policy: its components look for a file of this name on PYTHONPATH, where the project's root is."""

from hooks.shares import task_instance_mutation_hook

__all__ = ["task_instance_mutation_hook"]
