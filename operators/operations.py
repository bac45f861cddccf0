"""Operations of a deployment: checks before a night, backup and watch; freezes, holds and stale leases.

`InterveneOperator` freezes, thaws, redoes and holds by hand. Leases that were left behind are listed, and those of our
own dead tasks are ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from include.gateway.protocol import TaskName
from include.nightlies.rules.passes import Pass
from include.publishers.errors import LeasesLeft
from operators.base import NightshiftOperator, attempt_of, clock, log_folder, log_of, started_by

if TYPE_CHECKING:
    from include.monitoring.alerts import Runs, Tick
    from include.site.site import Site
    from include.site.stale_leases import StateOf


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


class InterveneOperator(NightshiftOperator):
    """Freezes or thaws a repository, lets a night install again what was undone, or holds a site, as the run says.

    The ledger and the freeze name the user who started the run. Returns what was done, in words.
    """

    ui_color = "#fef9c3"

    def execute(self, context: Context) -> str:
        params, site = context["params"], self.site()
        done = _ACTIONS[params["action"]](site, params, f"{started_by(context) or 'unknown'}@airflow")
        self.log.info("%s", done)
        return done


def _freeze(site: Site, params: Mapping[str, Any], who: str) -> str:
    from include.provenance.interventions import BadFreeze, freeze

    now, hours, fqrn = clock().replace(microsecond=0), params.get("hours"), _required(params, "repository")
    if not params.get("reason"):
        raise BadFreeze(fqrn, "a freeze needs a reason; fill in the field Reason")
    until = now + timedelta(hours=hours) if hours else None
    done = freeze(site, fqrn, reason=params["reason"], who=who, until=until, now=now)
    return f"{fqrn} is {'' if done.changed else 'already '}{done.after}"


def _thaw(site: Site, params: Mapping[str, Any], who: str) -> str:
    from include.provenance.interventions import thaw

    fqrn = _required(params, "repository")
    done = thaw(site, fqrn, who=who, now=clock().replace(microsecond=0))
    return f"{fqrn} is thawed; it was {done.before}" if done.changed else f"{fqrn} is not frozen"


def _redo(site: Site, params: Mapping[str, Any], who: str) -> str:
    from include.nightlies.removal.undo import Wish, redo

    projects, platforms = (tuple(params.get(name) or ()) for name in ("projects", "platforms"))
    slot, build_id = _required(params, "slot"), _required(params, "build_id")
    count = redo(site, Wish(slot, build_id, params.get("reason") or "", projects, platforms), now=clock(), by=who)
    return f"{count} artifacts of build {build_id} may be installed again, by {who}; run nightly_install for its date"


def _hold_site(site: Site, params: Mapping[str, Any], who: str) -> str:
    from include.federation.records import hold

    name = site.settings.remote_site(_required(params, "site")).name
    hold(site.ledger, name, by=who, reason=params.get("reason") or "", now=clock())
    return f"nothing is sent to {name} until it is released"


def _release_site(site: Site, params: Mapping[str, Any], who: str) -> str:
    from include.federation.records import release

    name = site.settings.remote_site(_required(params, "site")).name
    state = release(site.ledger, name, by=who, reason=params.get("reason") or "", now=clock()).state
    return f"{name} is released; its state is {state.value}"


_ACTIONS = {
    "freeze": _freeze, "thaw": _thaw, "redo": _redo, "hold_site": _hold_site, "release_site": _release_site,
}  # fmt: skip


def _required(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not value:
        raise AirflowFailException(f"the action {params['action']} needs the parameter {name}; start a run with it")
    return str(value)


class ListLeasesOperator(NightshiftOperator):
    """Lists the leases of all repositories' gateways, and whose each is. A gateway that is away hides no other."""

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> dict[str, Any]:
        from include.site.stale_leases import look

        looked = look(self.site(), _state_of(context))
        for finding in looked.findings:
            self.log.info("%s (%s)", finding, finding.reason)
        for fqrn, why in looked.silent:
            self.log.warning("%s: its leases are not known: %s", fqrn, why)
        return {"leases": [finding.to_json() for finding in looked.findings], "silent": dict(looked.silent)}


class EndLeasesOperator(NightshiftOperator):
    """Ends the leases whose task is dead, and no others; each is checked again right before.

    With the parameter `dry_run` it only reports which. It is skipped if there is nothing to end, and fails if a gateway
    was away or a dead task's lease could not be ended. What was ended is sent to its outlets.

    Args:
        looked: What `ListLeasesOperator` returned: a mapping with `leases` and `silent`.
        **kwargs: Those of every operator.
    """

    template_fields = ("looked",)
    ui_color = "#fee2e2"

    def __init__(self, *, looked: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.looked = looked

    def execute(self, context: Context) -> list[str]:
        from include.ledger.acts import ActKind, note_act
        from include.site.stale_leases import LeaseFinding, LeaseOwnership, end_dead

        site, findings = self.site(), [LeaseFinding.from_json(finding) for finding in self.looked["leases"]]
        dead = [finding for finding in findings if finding.whose is LeaseOwnership.DEAD]
        faults = [f"{fqrn}: {why}" for fqrn, why in self.looked["silent"].items()]
        if context["params"]["dry_run"]:
            for finding in dead:
                self.log.info("dry run, would be ended: %s (%s)", finding, finding.reason)
            done = []
        else:
            done = end_dead(site, dead, _state_of(context))
        faults += [f"{outcome.finding}: {outcome.reason}" for outcome in done if outcome.fault]
        attempt, only_said = attempt_of(context), bool(context["params"]["dry_run"])
        for finding in dead if only_said else [outcome.finding for outcome in done if outcome.ended]:
            act = attempt.act(ActKind.LEASE, str(finding), finding.reason, dry_run=only_said)
            note_act(site.ledger, act)
        ended = [f"{outcome.finding.repository}{outcome.finding.path or '/'}" for outcome in done if outcome.ended]
        for outlet in self.outlets:
            if isinstance(outlet, Asset) and ended:
                context["outlet_events"][outlet].extra = {"ended": [*ended]}
        if faults:
            raise LeasesLeft(faults)
        if not ended:
            raise AirflowSkipException(f"nothing was ended: {len(findings)} leases, {len(dead)} of dead tasks")
        return ended


def _state_of(context: Context) -> StateOf:
    """Asks Airflow, by its own interface for tasks, in which state a task is."""
    ti = context["ti"]

    def state(task: TaskName) -> str | None:
        states = ti.get_task_states(
            dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=task.map_index
        ).get(task.run_id, {})
        name = task.task_id if task.map_index < 0 else f"{task.task_id}_{task.map_index}"
        if name not in states:
            return None
        return str(getattr(states[name], "value", states[name]) or "not scheduled yet")

    return state
