"""`index_events_<slot>`: reacts to a slot's index that was written. One small DAG a slot; it only declares."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from include.nightlies.rules.passes import by_artifact
from include.settings.load import load
from include.settings.model import Slot
from operators.night import BeginNightOperator, ReadIndexEventsOperator, index_asset
from operators.publishing import dag_defaults

DOC = """
### React to index events

A run for each event of the asset `index_{slot}`, or for several that come at once. The program that writes the index
may emit one, by `POST /api/v2/assets/events` with `{{"asset_id": …, "extra": {{"date": "2026-11-21"}}}}`: a pass of
`nightly_install_{slot}` that waits then checks the index at once, and not after `poll_s`. Events only shorten the wait:
the index decides what is published, and is still polled every `poll_s`.

{begins}
"""
BEGINS = {
    False: "Nights of this slot begin by their schedule, or by hand.",
    True: """Nights of this slot begin with their first artifact (`begins: {begins}`): a watcher in the triggerer checks
for it every {poll_s:g} s and emits an event, too, and `begin` starts the run `night__<date>__first`, once. The
scheduled run of a date whose night has begun so is skipped.""",
}


def index_events(slot: Slot) -> DAG:
    """The DAG of one slot."""
    begins = by_artifact(slot)
    with DAG(
        dag_id=f"index_events_{slot.name}",
        dag_display_name=f"Index events: {slot.name}",
        description=f"React to index events of slot {slot.name}",
        doc_md=DOC.format(slot=slot.name, begins=BEGINS[begins].format(begins=slot.begins.value, poll_s=slot.poll_s)),
        max_active_runs=1,
        dagrun_timeout=timedelta(minutes=30),
        **dag_defaults([index_asset(slot)], retries=slot.retries or 1, priority=slot.priority),
        tags=["nightlies", f"slot:{slot.name}"],
    ) as dag:
        heard = ReadIndexEventsOperator(
            task_id="heard",
            task_display_name="Read index events",
            slot=slot.name,
            doc_md="Reads the events, and lists the dates whose nights they begin.",
        )
        if begins:
            BeginNightOperator.partial(
                task_id="begin",
                task_display_name="Begin the night",
                slot=slot.name,
                doc_md="Starts the first run of the night, unless it exists.",
            ).expand(day=heard.output)
    return dag


for _slot in load().slots.values():
    _dag = index_events(_slot)
    globals()[_dag.dag_id] = _dag
