"""A run without a note gets one when it begins: its slot and build date, or what it changes.

A listener of Airflow's, called in the scheduler, which stores the note with the run. A task cannot: Airflow's interface
for tasks takes a note only with a run that a task starts, as `operators/begin.py` does. A partition key is no
substitute: Airflow does not tell consumers of an asset without partitions of the events of a run that has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from include.nightlies.errors import NightlyError
from include.nightlies.rules.passes import resolve_build_date
from include.settings.load import load
from include.settings.model import SiteSettings, Slot

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun


NIGHTS = "nightly_install"
BY_HAND = {
    "publication": "{source} to {repository}:{path}",
    "undo_build": "Undo of build {build_id}, slot {slot}: {reason}",
    "rollback": "Rollback of {repository} to {goal}: {reason}",
}
"""Notes on runs of other DAGs, by their parameters."""
MOST = 1000


@hookimpl
def on_dag_run_running(dag_run: DagRun) -> None:
    """Give the run its note. Airflow logs what is raised here, and the run goes on without."""
    if dag_run.note is not None:
        return
    if note := note_of(load(), dag_run.dag_id, dag_run.conf or {}, dag_run.logical_date or dag_run.run_after):
        dag_run.note = note


def note_of(settings: SiteSettings, dag_id: str, conf: Mapping[str, Any], logical_date: datetime | None) -> str | None:
    """Return a note about a run, or None for a DAG whose runs need no words.

    Args:
        settings: The deployment, for the slots' time zones.
        dag_id: Of which DAG the run is.
        conf: The run's parameters, as far as they were given.
        logical_date: That of the run, or its `run_after` if it has none.

    Returns:
        The note, on one line; None: the run gets none.
    """
    given = {name: value for name, value in conf.items() if value not in (None, "", [])}
    dry = "Dry run. " if given.get("dry_run") else ""
    if dag_id == NIGHTS or dag_id.startswith(f"{NIGHTS}_"):
        slot = settings.slots.get(dag_id[len(NIGHTS) + 1 :] or given.get("slot") or "")
        return None if slot is None else f"{dry}{_night(slot, given, logical_date)}"
    if dag_id not in BY_HAND:
        return None
    words = {"goal": given.get("tag") or f"revision {given.get('revision')}", **given}
    try:
        return f"{dry}{BY_HAND[dag_id].format(**words)}"[:MOST]
    except KeyError:
        return None  # a parameter was left to its default, which a form never does


def _night(slot: Slot, given: Mapping[str, Any], logical_date: datetime | None) -> str:
    try:
        day = resolve_build_date(
            given.get("build_date"), None, logical_date, timezone=slot.timezone, date_offset=slot.date_offset
        )
    except NightlyError:
        return f"Slot {slot.name}"
    chosen = [f"{kind} {', '.join(map(str, given[kind]))}" for kind in ("projects", "platforms") if given.get(kind)]
    return "; ".join([f"Slot {slot.name}, build of {day}", *chosen])[:MOST]
