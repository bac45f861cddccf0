"""The configured site in a task, for operators and sensors alike: its clients, and the run's name in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.publishers.connect import Connections


class OnSite:
    """What operators and sensors share. Heavy imports are made when a task runs, never when a DAG is parsed."""

    def connections(self) -> Connections:
        """Clients of the configured site, with Airflow's connections as secrets."""
        from hooks.secrets import AirflowSecrets
        from include.publishers.connect import Connections
        from include.settings.load import load

        return Connections(load(), AirflowSecrets())


def run_name(context: Context) -> str:
    """What the ledger calls this run: unique among the DAGs that share it."""
    return f"{context['dag'].dag_id}/{context['run_id']}"
