"""Watch the nights: tell people what goes wrong, and send each night's summary at its hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from operators.base import NightshiftOperator, clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context

    from include.watch.alerts import Runs, Tick


class WatchOperator(NightshiftOperator):
    """One look over all slots and repositories. Returns what was told, and which summaries were made.

    What should have begun says the schedule; what did, the ledger, and Airflow's interface for tasks.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> dict[str, Any]:
        from include.watch.watch import watch

        done = watch(self.connections(), now=clock(), runs_of=_runs_of(context), log_of=log_of)
        for message, said in done.told:
            self.log.info("%s: %s", said.value, message.title)
        for fault in done.faults:
            self.log.warning("could not be looked at: %s", fault)
        return {
            "told": [message.key for message, said in done.told if said.name == "TOLD"],
            "summaries": done.summaries,
            "faults": done.faults,
        }


def log_of(run: str) -> str:
    """Where a run of the ledger is looked at in Airflow's pages."""
    from airflow.sdk import conf

    dag_id, _, run_id = run.partition("/")
    base = str(conf.get("api", "base_url", fallback="http://localhost:8080")).rstrip("/")
    return f"{base}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def _runs_of(context: Context) -> Callable[[Tick], Runs]:
    from include.watch.alerts import Runs

    ti: Any = context["ti"]

    def ask(tick: Tick) -> Runs:
        there = ti.get_dr_count(dag_id=tick.dag_id, logical_dates=[tick.at])
        failed = ti.get_dr_count(dag_id=tick.dag_id, logical_dates=[tick.at], states=["failed"]) if there else 0
        return Runs(there=bool(there), failed=bool(failed))

    return ask
