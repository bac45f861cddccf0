"""What Nightshift adds to Airflow's pages, imported by every component. Links of tasks are in `operators/links.py`."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from hooks.priority import NightFirst


class NightshiftPlugin(AirflowPlugin):
    """One plugin for all of Nightshift."""

    name = "nightshift"
    priority_weight_strategies: list[Any] = [NightFirst]  # noqa: RUF012 (Airflow declares it so)
