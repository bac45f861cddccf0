"""Imports what tasks and DAG files import, in the processes that they are forked from.

A task is a fork of the scheduler (LocalExecutor) or of a Celery worker, and a DAG file is read in a fork of the DAG
processor. Without this every one of them imports the same modules again: more than half of the processor time of a
task that does little. What was imported stays as it is until the component starts again.

Great Expectations and Plotly are left to the tasks that need them: they take seconds and hundreds of megabytes.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

from airflow.listeners import hookimpl

PACKAGES = (
    "operators", "sensors", "triggers",
    "include.settings", "include.site", "include.nightlies", "include.publishers", "include.stageout",
    "include.federation",
    "include.monitoring", "include.provenance", "include.replicas", "include.benchmarks.campaign",
)  # fmt: skip


def preload() -> None:
    """Import all modules of `PACKAGES`; again it costs nothing."""
    for name in PACKAGES:
        for module in walk_packages(import_module(name).__path__, f"{name}."):
            import_module(module.name)


@hookimpl
def on_starting(component: object) -> None:
    """Called by Airflow in each component that starts, and in each task, which has it from its parent."""
    if type(component).__name__ == "Job":
        preload()
