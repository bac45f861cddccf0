"""Find what a run is to publish: which date's build, and what of it is new; the waiting is done by the triggerer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from hooks.task import reason_kept, run_name
from include.dag_runs import PASS
from include.nightlies.errors import BuildMissing, NightlyError
from include.nightlies.rules.passes import (
    ELSEWHERE,
    Pass,
    PassDecision,
    Turn,
    cutoff,
    first_run_id,
    require_allowed,
    resolve_build_date,
)
from include.nightlies.steps.values import CHOICES, Night
from include.settings.errors import SettingsError
from include.settings.load import load
from include.settings.model import Begins, Slot
from sensors.base import NightshiftSensor, NotThere
from triggers.night import NightTrigger

if TYPE_CHECKING:
    from include.site.site import Site

SLACK = timedelta(minutes=5)
"""Time after the night's end until which the triggerer may come back."""


class IndexLink(BaseOperatorLink):
    """To the build index that a sensor reads, where its store is reached by a browser; also where it is missing."""

    name = "Build index"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """An http(s) URL; "" leaves the link out, as for a run without a build date."""
        from include.nightlies.steps.sources import index_place
        from include.settings.secrets import browser_url

        if operator.sought is None:
            return ""
        settings, (name, day) = load(), operator.sought
        slot = settings.slot(name)
        return browser_url(settings, f"{settings.store(slot.store).url}/{index_place(slot, day)}") or ""


class BuildSensor(NightshiftSensor):
    """Resolves the run's build date, waits until a pass of its night has something to do, and hands on the night.

    A scheduled night is open until its index is complete, until the slot's cutoff at most: what is new in the index
    meanwhile is taken by one pass after the other, each a run of its own, and the last takes all that is there. Other
    runs wait as long as their parameter `wait_minutes` asks, by default not at all: without an index they fail at once.

    Args:
        slot: The slot's name in the site configuration; None: the run's parameter `slot`.
        poke_interval: Most seconds between two checks of the index; None: the slot's `poll_s`.
        **kwargs: Those of every sensor.
    """

    template_fields = ("slot",)
    operator_extra_links = (IndexLink(),)

    def __init__(self, *, slot: str | None = None, poke_interval: float | None = None, **kwargs: Any) -> None:
        super().__init__(**({} if poke_interval is None else {"poke_interval": poke_interval}), **kwargs)
        self.slot = slot
        self.poll_s = poke_interval
        self.sought: tuple[str, date] | None = None  # slot and build date, once they are known

    def execute(self, context: Context) -> dict[str, Any]:
        with reason_kept(context):
            site = self.site()
            return self.outlasting(site, lambda: self._find(context, site))

    def found(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Hand on the night after the wait.

        Args:
            context: The context of the task.
            event: The trigger's answer.

        Returns:
            The night as a mapping.

        Raises:
            AirflowFailException: The night cannot go on, as for a slot that is gone.
        """
        with reason_kept(context):
            site = self.site()
            return self.outlasting(site, lambda: self._found(context, site, event))

    def _find(self, context: Context, site: Site) -> dict[str, Any]:
        from include.nightlies.steps.build_status import Watch
        from include.nightlies.steps.sources import read_again

        now = datetime.now(UTC)
        try:
            settings = site.settings.slot(self.slot or context["params"]["slot"])
            night, turn = night_of(context, settings, now)
        except (NightlyError, SettingsError) as error:
            raise AirflowFailException(str(error)) from error
        self.sought = night.slot, night.date
        self.log.info("slot %s, build date %s, from %s", night.slot, night.date, night.reason)
        self._leave_to_the_first(context, settings, night)
        if turn.until is None:
            try:
                read_again(site, settings, night.date)
            except BuildMissing as missing:
                raise AirflowFailException(str(missing)) from missing
            return _handed_on(night, turn)
        if turn.after is None:
            decision = Watch(lambda: site, night, turn).look(now)
            if decision.turn is not Turn.WAIT:
                return self._go_on(night, turn, decision, site, settings)
            self.log.info("%s", decision.reason)
        return self.defer(
            trigger=NightTrigger(
                night.to_json(), turn.to_json(), self.poll_s or settings.poll_s, f"index_events_{night.slot}"
            ),
            method_name="found",
            timeout=max(turn.until - now, timedelta()) + SLACK,
        )

    def _found(self, context: Context, site: Site, event: dict[str, Any]) -> dict[str, Any]:
        if "error" in event:
            raise AirflowFailException(f"the night is not finished: {event['error']}")
        try:
            settings = site.settings.slot(self.slot or context["params"]["slot"])
        except SettingsError as error:
            raise AirflowFailException(f"the night is not finished: {error}") from error
        night, turn = night_of(context, settings, datetime.now(UTC))
        self.sought = night.slot, night.date
        return self._go_on(night, turn, PassDecision(Turn(event["turn"]), event["reason"]), site, settings)

    def _leave_to_the_first(self, context: Context, settings: Slot, night: Night) -> None:
        """Skip a scheduled run whose night its first artifact has begun, in a run of its own."""
        if settings.begins is not Begins.EITHER or context["dag_run"].run_type != "scheduled":
            return
        first, ti = first_run_id(night.date), context["ti"]
        if ti.get_dr_count(dag_id=context["dag"].dag_id, run_ids=[first]):
            # for the tasks that run whatever came before
            ti.xcom_push(key="return_value", value={ELSEWHERE: first})
            raise AirflowSkipException(f"the night of {night.date} began with its first artifact, in run {first}")

    def _go_on(self, night: Night, turn: Pass, decision: PassDecision, site: Site, settings: Slot) -> dict[str, Any]:
        from include.nightlies.steps.sources import read_again

        self.log.info("pass %d of the night: %s", night.number, decision.reason)
        if decision.turn is Turn.LAST:
            try:
                read_again(site, settings, night.date)
            except BuildMissing as missing:
                raise NotThere(str(missing)) from missing
        return _handed_on(replace(night, last=decision.turn is Turn.LAST), turn)


def _handed_on(night: Night, turn: Pass) -> dict[str, Any]:
    """Return the values for other tasks: the night, and for `StartNextPassOperator` the pass that this is."""
    return {**night.to_json(), "pass": turn.to_json()}


def night_of(context: Context, slot: Slot, now: datetime) -> tuple[Night, Pass]:
    """The night that a run's parameters, partition key and logical date mean.

    Args:
        context: The context of the task.
        slot: The slot of the run.
        now: The time, with zone.

    Returns:
        The night, and which pass of it the run is.

    Raises:
        NightlyError: The parameters contradict each other, or the date cannot be one of the slot.
    """
    params, run = context["params"], context["dag_run"]
    resolved = resolve_build_date(
        params.get("build_date"),
        getattr(run, "partition_key", None),
        run.logical_date,
        timezone=slot.timezone,
        date_offset=slot.date_offset,
        run_after=getattr(run, "run_after", None),
    )
    given = params.get(PASS)
    if not given:  # a later pass, or a night that its first artifact began, has the date of its night
        require_allowed(
            resolved,
            now,
            param=params.get("build_date"),
            run_type=run.run_type,
            allow_future=bool(params.get("allow_future")),
            timezone=slot.timezone,
            date_offset=slot.date_offset,
        )
    turn = Pass.from_json(given) if given else Pass(context["run_id"], until=wait_until(context, slot, now))
    dag_id = context["dag"].dag_id
    chosen = {name: params[name] for name in CHOICES if params.get(name)}
    begun = {"run": run_name(context), "slot": slot.name, "date": resolved.date, "reason": resolved.reason}
    earlier = tuple(f"{dag_id}/{run_id}" for run_id in turn.earlier(resolved.date))
    night = Night.from_json(chosen | begun | {"number": turn.number, "earlier": earlier})
    return night, turn


def wait_until(context: Context, slot: Slot, now: datetime) -> datetime | None:
    """Return the end of the night that a run begins, whatever the state of its index.

    Args:
        context: The context of the task.
        slot: The slot of the run.
        now: The time, with zone.

    Returns:
        The end; None: the run waits for nothing.
    """
    minutes, run = context["params"].get("wait_minutes"), context["dag_run"]
    if minutes is not None:
        # from the run's start on, so that a retry does not begin to wait again
        began = getattr(run, "start_date", None) or now
        return began + timedelta(minutes=minutes) if minutes else None
    if run.run_type != "scheduled":
        return None
    ends = cutoff(slot.cutoff, run.logical_date or now, timezone=slot.timezone)
    return ends if ends > now else None
