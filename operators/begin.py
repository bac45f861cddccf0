"""Nights that begin with an event of a slot's index, and the next pass of a night."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any, NoReturn

from airflow.sdk import Asset, AssetWatcher, Context
from airflow.sdk.exceptions import AirflowSkipException, DagRunTriggerException

from include.dag_runs import PASS
from include.nightlies.rules.passes import Pass, by_artifact, dates, first_pass, tick_of
from include.settings.model import Slot
from operators.base import NightshiftOperator, clock
from operators.night import NightOperator
from triggers.night import FirstArtifactTrigger


class StartNextPassOperator(NightOperator):
    """Starts the run of the next pass of the night, unless this was the last one, or that run is there already.

    The next run's id follows from the night alone, so that a retry or a cleared task starts it once. It gets the time
    when the night ends, and waits for some minutes first if this run made no plan. Skipped where the night ends.

    Args:
        plan: The id of the task that planned this pass.
        **kwargs: `night`, and those of every operator.
    """

    ui_color = "#e6f1f2"

    def __init__(self, *, plan: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> NoReturn:
        night = self.night_here(context)
        if night.last:
            raise AirflowSkipException("the night ends with this pass")
        turn = Pass.from_json(self.night["pass"])
        planned = context["ti"].xcom_pull(task_ids=self.plan, key="return_value") is not None
        following = turn.following(planned=planned, now=clock())
        given = {name: value for name, value in dict(context["params"]).items() if value is not None}
        until = turn.until.isoformat(" ", "minutes") if turn.until else "now"
        start_once(
            context["dag"].dag_id,
            following.run_id(night.date),
            conf={**given, "build_date": night.date.isoformat(), PASS: following.to_json()},
            note=f"Pass {following.number} of the night of {night.date}, slot {night.slot}, after {context['run_id']}: "
            f"waits for what is new in the index, until {until} at most.",
        )


def start_once(dag_id: str, run_id: str, *, conf: Mapping[str, Any], note: str) -> NoReturn:
    """End the task that calls this by having Airflow start the run; skipped if a run of that id is there already.

    No task waits for the run.

    Args:
        dag_id: The DAG of the run.
        run_id: The id of the run.
        conf: The parameters of the run, as JSON.
        note: What people read on the run's page.

    Raises:
        DagRunTriggerException: Always; Airflow starts the run by it.
    """
    raise DagRunTriggerException(
        trigger_dag_id=dag_id,
        dag_run_id=run_id,
        conf=dict(conf),
        reset_dag_run=False,
        skip_when_already_exists=True,
        wait_for_completion=False,
        allowed_states=[],
        failed_states=[],
        poke_interval=0,
        deferrable=False,
        note=note,
    )


def index_asset(slot: Slot) -> Asset:
    """A slot's indices as an asset of Airflow; a program that writes one may report so (docs/formats.md)."""
    watcher = AssetWatcher(name=f"first_{slot.name}", trigger=FirstArtifactTrigger(slot.name, slot.poll_s))
    return Asset(
        name=f"index_{slot.name}",
        uri=f"nightshift://indices/{slot.name}",
        group="indices",
        watchers=[watcher] if by_artifact(slot) else [],
    )


class ReadIndexEventsOperator(NightshiftOperator):
    """Hands on the build dates whose night the run's events begin; none where the slot begins by its schedule.

    An event names its build date in `extra`, as `{"date": "2026-11-21"}`; without one this day's is meant. The passes
    of a night that wait already have seen this run, and check the index in this moment.

    Args:
        slot: The slot's name in the site configuration.
        **kwargs: Those of every operator.
    """

    ui_color = "#e6f1f2"

    def __init__(self, *, slot: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slot = slot

    def execute(self, context: Context) -> list[str]:
        slot, now = self.site().settings.slot(self.slot), clock()
        if not by_artifact(slot):
            self.log.info("nights of slot %s begin by their schedule; what waits looks now", slot.name)
            return []
        today, tomorrow = dates(slot, now)
        begun = []
        for day in sorted(self._dates(context["triggering_asset_events"], today)):
            tick = tick_of(slot, day)
            if not today - timedelta(days=1) <= day <= tomorrow:
                self.log.warning("%s is not tonight; to install it, run nightly_install_%s by hand", day, slot.name)
            elif tick is not None and self._is_there(context, tick):
                self.log.info("the night of %s has begun by its schedule", day)
            else:
                begun.append(day.isoformat())
        return begun

    def _dates(self, events: Mapping[Any, Iterable[Any]], today: date) -> set[date]:
        running = set()
        for event in (asset_event for of_asset in events.values() for asset_event in of_asset):
            extra = dict(event.extra or {})
            given = extra.get("date") or dict(extra.get("payload") or {}).get("date")
            try:
                running.add(date.fromisoformat(given) if given else today)
            except (TypeError, ValueError):
                self.log.warning("an event has an invalid date %r; write YYYY-MM-DD", given)
        return running

    def _is_there(self, context: Context, tick: Any) -> bool:
        ti: Any = context["ti"]
        return bool(ti.get_dr_count(dag_id=f"nightly_install_{self.slot}", logical_dates=[tick]))


class BeginNightOperator(NightshiftOperator):
    """Starts the first run of a night, with the cut-off that it has; skipped if that run is there already.

    Args:
        slot: The slot's name in the site configuration.
        day: The build date, as `YYYY-MM-DD`; empty: the task is skipped.
        **kwargs: Those of every operator.
    """

    template_fields = ("day",)
    ui_color = "#e6f1f2"

    def __init__(self, *, slot: str, day: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slot = slot
        self.day = day

    def execute(self, context: Context) -> NoReturn:  # noqa: ARG002
        if not self.day:
            raise AirflowSkipException("nothing to begin")
        day = date.fromisoformat(self.day)
        turn = first_pass(self.site().settings.slot(self.slot), day, clock())
        start_once(
            f"nightly_install_{self.slot}",
            turn.first,
            conf={"build_date": self.day, PASS: turn.to_json()},
            note=f"The night of {day}, slot {self.slot}, began with its first artifact; it ends at {turn.until}.",
        )
