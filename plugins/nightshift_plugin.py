"""What Nightshift adds to Airflow's pages, imported by every component. Links of tasks are in `operators/links.py`."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from hooks.priority import NightFirst


class NightshiftPlugin(AirflowPlugin):
    """One plugin for all of Nightshift."""

    name = "nightshift"
    priority_weight_strategies = (NightFirst,)
