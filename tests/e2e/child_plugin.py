"""A plugin for the kill tests: tasks that work on a project named `child` have a live child when they are killed.

Nothing of Nightshift starts one, so a listener of Airflow does, in the task's process, before the task's own work.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

PROJECT = "child/"


@hookimpl
def on_task_instance_running(previous_state: Any, task_instance: Any) -> None:
    batch = getattr(task_instance.task, "batch", None)
    if isinstance(batch, dict) and batch["name"].startswith(PROJECT) and task_instance.try_number == 1:
        # like most programs, it inherits the task's output, which keeps the supervisor waiting for its end
        subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)


class ChildPlugin(AirflowPlugin):
    """Registers this module as a listener."""

    name = "child_of_a_task"
    listeners = [sys.modules[__name__]]  # noqa: RUF012 - as Airflow declares it
