"""Airflow as commands reach it: its REST API, its connections, and runs that are started and followed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache, partial
from typing import Any

from include.airflow_api import INSTALL_REFUSED, AirflowApi, AirflowError, site_api
from include.cli.main import lab_part
from include.dag_runs import DagState, why_not_startable
from include.monitoring.airflow_checks import Asked, needed, started_by_hand
from include.monitoring.findings import Finding
from include.monitoring.store_checks import TIMEOUT_S
from include.nightlies.errors import NightlyError
from include.nightlies.rules.passes import BuildDate, require_allowed
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings, Slot
from include.settings.secrets import Secrets

DAG_APPEARS_S = 120.0
NIGHT_S = 3600.0
POLL_S = 1.0
SILENCE_S = 300.0  # a busy machine answers late
RUN_ENDED = {"success", "failed"}
TASK_ENDED = {"success", "failed", "upstream_failed", "skipped", "removed"}
TASK_BUSY = {"running", "deferred"}


@dataclass(frozen=True, slots=True)
class TaskKind:
    """All instances of one task of a run."""

    task_id: str
    states: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.states.items() if state in TASK_ENDED)

    @property
    def failed(self) -> int:
        return sum(self.states.get(state, 0) for state in ("failed", "upstream_failed"))

    def __str__(self) -> str:
        return f"{self.task_id} {self.ended}/{self.total}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment; `busy` is how many tasks ran or waited in the triggerer at the same time."""

    state: str
    kinds: tuple[TaskKind, ...]
    busy: int

    @property
    def ended(self) -> bool:
        return self.state in RUN_ENDED


def snapshot(state: str, instances: list[dict[str, Any]]) -> Snapshot:
    """The instances of a run by task, in the order in which the tasks began."""
    kinds: dict[str, Counter[str]] = {}
    for instance in sorted(instances, key=lambda instance: instance.get("start_date") or "9"):
        kinds.setdefault(instance["task_id"], Counter())[instance["state"] or "waiting"] += 1
    busy = sum(instance["state"] in TASK_BUSY for instance in instances)
    return Snapshot(state, tuple(TaskKind(task_id, dict(states)) for task_id, states in kinds.items()), busy)


def follow(
    api: AirflowApi,
    dag_id: str,
    run_id: str,
    *,
    show: Callable[[Snapshot], None],
    timeout_s: float,
    poll_s: float = POLL_S,
    silence_s: float = SILENCE_S,
) -> Snapshot:
    """Check a run every `poll_s` seconds until it ends. Airflow may be silent for `silence_s` meanwhile.

    Raises:
        AirflowError: it did not end in time, or Airflow is silent or refuses; the run goes on.
    """
    deadline = time.monotonic() + timeout_s
    answered = time.monotonic()
    while True:
        try:
            state = snapshot(api.run_state(dag_id, run_id), api.task_instances(dag_id, run_id))
        except AirflowError as error:
            if not error.retryable or time.monotonic() - answered > silence_s:
                raise
        else:
            answered = time.monotonic()
            show(state)
            if state.ended:
                return state
        if time.monotonic() > deadline:
            raise AirflowError(f"run {run_id} of {dag_id} has not ended after {timeout_s:.0f} s: check it in Airflow")
        # Airflow offers no event stream for a run's tasks.
        time.sleep(poll_s)


def install(
    api: AirflowApi, slot: Slot, day: date, *, now: datetime, say: Callable[[str], None], allow_future: bool = False
) -> str:
    """Starts the run that installs a build of a slot, or joins one that is under way; returns its id.

    Raises:
        AirflowError: The date is not allowed, the DAG is paused, or Airflow refuses.
    """
    try:
        require_allowed(
            BuildDate(day, "--date"), now, param=None, run_type="manual", allow_future=allow_future,
            timezone=slot.timezone, date_offset=slot.date_offset,
        )  # fmt: skip
    except NightlyError as error:
        raise INSTALL_REFUSED(str(error)) from None
    dag_id = f"nightly_install_{slot.name}"
    api.wait_for_dag(dag_id, timeout_s=DAG_APPEARS_S)
    if reason := why_not_startable(DagState(dag_id, paused=api.is_paused(dag_id))):
        raise INSTALL_REFUSED(reason)
    return start(api, dag_id, day, say, allow_future=allow_future)


def start(api: AirflowApi, dag_id: str, day: date, say: Callable[[str], None], *, allow_future: bool = False) -> str:
    """Starts a run for a build date, or joins one that is under way; returns its id."""
    api.wait_for_dag(dag_id, timeout_s=DAG_APPEARS_S)
    prefix = f"night__{day.isoformat()}__"
    earlier = api.runs(dag_id, prefix=prefix)
    for run in earlier:
        if run["state"] in {"queued", "running"}:
            api.unpause(dag_id)
            say(f"joining run {run['dag_run_id']}, which is under way")
            return str(run["dag_run_id"])
    attempts = [
        int(run["dag_run_id"].removeprefix(prefix))
        for run in earlier
        if run["dag_run_id"].removeprefix(prefix).isdigit()
    ]
    run_id = f"{prefix}{max(attempts, default=0) + 1}"
    # Unpausing a schedule starts the run of its last tick: ours takes that run's place, or two would do the same night.
    tick = api.pending_schedule(dag_id, now=datetime.now(UTC))
    conf = {"build_date": day.isoformat(), **({"allow_future": True} if allow_future else {})}
    api.trigger(dag_id, run_id, conf, logical_date=tick)
    api.unpause(dag_id)
    say(f"started run {run_id} of {dag_id}")
    return run_id


def unpause(api: AirflowApi, settings: SiteSettings, dags: Sequence[str]) -> list[str]:
    """Unpause DAGs, by default all that a site needs, which are waited for; returns those that were paused.

    Raises:
        AirflowError: Airflow has not read a DAG, and then nothing was changed, or it refuses.
    """
    chosen = dags or [*needed(settings), *started_by_hand(settings)]
    for dag_id in () if dags else chosen:
        api.wait_for_dag(dag_id, timeout_s=DAG_APPEARS_S)
    paused = api.paused()
    if absent := sorted(set(chosen) - paused.keys()):
        raise AirflowError(f"Airflow has not read {', '.join(absent)}; it has: {', '.join(sorted(paused))}")
    unpaused = [dag_id for dag_id in chosen if paused[dag_id]]
    for dag_id in unpaused:
        api.unpause(dag_id)
    return unpaused


def airflow_api(settings: SiteSettings, secrets: Secrets, connection: str = "") -> AirflowApi:
    """Airflow as the user of a connection; by default as the administrator of the lab here, else by the site's own.

    Raises:
        SettingsError: No connection is named, or it is not usable.
    """
    here = None if connection else lab_part("here")
    administrator: AirflowApi | None = here.administrator() if here else None
    return administrator or site_api(settings, secrets, connection)


def look_at_lab() -> Iterator[Finding]:
    """Compare the settings with those that the programs of the lab here were started with, if it runs."""
    if here := lab_part("here"):
        yield from here.findings()


def ask_api(settings: SiteSettings, secrets: Secrets) -> Asked:
    """Asks Airflow's API for connections; the user needs the right to read them."""

    api = cache(partial(site_api, settings, secrets, timeout_s=TIMEOUT_S))

    def ask(name: str) -> bool | None:
        if settings.airflow_connection is None:
            return None
        try:
            return api().has_connection(name)
        except (AirflowError, SettingsError):
            return None

    return ask


def defined_in_airflow(settings: SiteSettings, secrets: Secrets) -> Asked:
    """Asks the API, then the database of the lab here; None where neither answers."""
    api, here = ask_api(settings, secrets), lab_part("here")

    @cache
    def of_lab() -> frozenset[str] | None:
        names: frozenset[str] | None = here.defined(os.environ) if here else None
        return names

    def ask(name: str) -> bool | None:
        answer = api(name)
        if answer is None and (names := of_lab()) is not None:
            return name in names
        return answer

    return ask
