"""Logs of tasks where all of Airflow shares one disk, as in the lab: there is no log server, and none is asked."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from airflow.config_templates.airflow_local_settings import DEFAULT_LOGGING_CONFIG
from airflow.utils.log.file_task_handler import FileTaskHandler


class OneDiskTaskHandler(FileTaskHandler):
    """Reads the file only. Airflow's own asks a server of the worker, too, and shows that it does not answer."""

    def _read_from_logs_server(self, *_: Any) -> tuple[list[str], list[Any]]:
        return [], []


LOGGING_CONFIG = deepcopy(DEFAULT_LOGGING_CONFIG)
LOGGING_CONFIG["handlers"]["task"]["class"] = f"{__name__}.{OneDiskTaskHandler.__name__}"
