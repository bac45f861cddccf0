"""Checks before a night, the nightly backup, and the watch of nights: alerts, and each summary at its hour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from include.nightlies.rules.passes import Pass
from operators.base import NightshiftOperator, clock, log_folder, log_of

if TYPE_CHECKING:
    from include.monitoring.alerts import Runs, Tick


class RunPreflightOperator(NightshiftOperator):
    """Checks everything that the slots need; fails with every error at once, each with its hint. Warnings are logged.

    Notifies the recipients under `notify:` of the configuration. Returns how many findings there are of each kind.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> dict[str, int]:
        from include.monitoring.alerts import tell
        from include.monitoring.checks import checks_of
        from include.monitoring.findings import NotReady, Severity, run

        site = self.site()
        report = run(checks_of(site, context["params"].get("slot"), logs=log_folder()))
        for line in report.lines(all_of_them=True):
            (self.log.info if line.startswith(Severity.OK.value) else self.log.warning)("%s", line)
        tell(site, report)
        if not report.ready:
            raise NotReady(report)
        return {severity.value: len(report.of_severity(severity)) for severity in Severity}


class CreateBackupOperator(NightshiftOperator):
    """Makes a backup, checks it, and deletes all but the newest by `backup.keep`. Returns its name and its size.

    It runs where ledger, gateway state and keys are; parts that this machine does not have are named in the log.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        from include.backup.create import backup_store, create, prune, seal_to
        from include.settings.load import settings_path

        site = self.site()
        store = backup_store(site.settings, site.secrets)
        manifest = create(
            site, store, now=clock(), to=seal_to(site.settings, site.secrets), settings_file=settings_path()
        )
        for note in manifest.notes:
            self.log.warning("%s: %s", manifest.name, note)
        gone = prune(site, store, keep=site.settings.backup.keep)
        self.log.info("%s, %s bytes; deleted: %s", manifest.name, manifest.size, ", ".join(gone) or "none")
        return {"name": manifest.name, "bytes": manifest.size, "deleted": list(gone), "notes": list(manifest.notes)}


AT_ONCE = 40
"""Runs that are asked about in one call: their ids go into a URL."""


class WatchNightsOperator(NightshiftOperator):
    """Watches all slots and repositories once. Returns which messages were sent, and which summaries were made.

    What should have begun comes from the schedule; what did, from the ledger and Airflow's interface for tasks.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> dict[str, Any]:
        from include.monitoring.watch import watch

        airflow = AskAirflow(context["ti"])
        done = watch(self.site(), now=clock(), airflow=airflow, log_of=log_of, logs=log_folder())
        for message, outcome in done.told:
            self.log.info("%s: %s", outcome.value, message.title)
        for fault in done.faults:
            self.log.warning("could not be checked: %s", fault)
        return {
            "told": [message.key for message, outcome in done.told if outcome.name == "TOLD"],
            "summaries": done.summaries,
            "faults": done.faults,
        }


class AskAirflow:
    """Asks about runs by Airflow's interface for tasks. Implements `include.monitoring.alerts.Airflow`."""

    def __init__(self, ti: Any) -> None:
        self._ti = ti

    def runs_of(self, night: Tick) -> Runs:
        """Return the runs that began the night, and those of all its passes after that."""
        from include.monitoring.alerts import Runs

        by_schedule: dict[str, Any] = {"logical_dates": [night.at]}
        begun: list[dict[str, Any]] = [by_schedule, {"run_ids": [night.first_runs[1]]}]
        present = sum(self._count(night, which) for which in begun)
        waiting = bool(present) and sum(self._count(night, which, "queued") for which in begun) == present
        failed = [night.first_runs[0]] if self._count(night, by_schedule, "failed") else []
        later = [run for first in night.first_runs for run in self._passes(night, first)]
        failed += self._failed(night, [night.first_runs[1], *later])
        return Runs(bool(present), waiting, tuple(failed))

    def has_ended(self, run: str) -> bool | None:
        """By the states that a run does not leave by itself."""
        dag_id, _, run_id = run.partition("/")
        return bool(self._ti.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=["success", "failed"]))

    def _passes(self, night: Tick, first: str) -> list[str]:
        """The ids that passes after the first may have, as many as there are runs, and some more."""
        missing: list[str] = []
        while True:
            start = len(missing) + 2
            more = [Pass(first).run_id(night.date, number) for number in range(start, start + AT_ONCE)]
            missing += more
            if self._count(night, {"run_ids": more}) < AT_ONCE:
                return missing

    def _failed(self, night: Tick, runs: list[str]) -> list[str]:
        """Return those that failed: all are asked about at once, and one by one only where some did."""
        if not self._count(night, {"run_ids": runs}, "failed"):
            return []
        if len(runs) == 1:
            return runs
        half = len(runs) // 2
        return [*self._failed(night, runs[:half]), *self._failed(night, runs[half:])]

    def _count(self, night: Tick, which: Mapping[str, Any], state: str | None = None) -> int:
        states = {} if state is None else {"states": [state]}
        return int(self._ti.get_dr_count(dag_id=night.dag_id, **which, **states))
