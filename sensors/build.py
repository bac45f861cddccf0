"""Find the build of a run: which date's, and whether its index is there; the waiting is done by the triggerer."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from zoneinfo import ZoneInfo

from airflow.sdk.exceptions import AirflowFailException

from hooks.site import run_name
from sensors.base import NightshiftSensor
from sensors.objects import NotThere
from triggers.objects import POLL_S, BuildTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.nightlies.steps.values import Night
    from include.settings.model import Slot

DEFAULT_WAIT = timedelta(hours=6)


class BuildSensor(NightshiftSensor):
    """Resolves the run's build date and succeeds once that build's index is there, handing on the night.

    A scheduled run waits for a complete index until the slot's cutoff and then takes what is there. Other runs wait as
    long as their parameter `wait_minutes` says, by default not at all: without an index they fail at once.

    :param slot: the slot; by default the run's parameter `slot`.
    """

    template_fields = ("slot",)
    ui_color = "#e6f1f2"

    def __init__(self, *, slot: str | None = None, poke_interval: float = POLL_S, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.slot = slot

    def execute(self, context: Context) -> dict[str, Any]:
        from include.nightlies.errors import BuildMissing, NightlyError
        from include.nightlies.steps.plan import read_index
        from include.settings.errors import SettingsError

        connections = self.connections()
        try:
            settings = connections.site.slot(self.slot or context["params"]["slot"])
            night = night_of(context, settings)
        except (NightlyError, SettingsError) as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("slot %s, build of %s: %s", night.slot, night.date, night.reason)
        deadline = wait_until(context, settings, datetime.now(UTC))
        try:
            index, _ = read_index(connections, settings, night.date)
        except BuildMissing as missing:
            if deadline is None:
                raise AirflowFailException(str(missing)) from missing
        else:
            if index.complete or deadline is None:
                return night.to_json()
        return self._wait(night, deadline)

    def found(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """The trigger's answer; at the deadline an index that is not complete will do."""
        from include.nightlies.errors import BuildMissing
        from include.nightlies.steps.plan import read_index

        self.log.info("%s", event["reason"])
        connections = self.connections()
        settings = connections.site.slot(self.slot or context["params"]["slot"])
        night = night_of(context, settings)
        if not event["found"]:
            try:
                read_index(connections, settings, night.date)
            except BuildMissing as missing:
                raise NotThere(str(missing)) from missing
        return night.to_json()

    def _wait(self, night: Night, deadline: datetime) -> NoReturn:
        self.log.info("waiting for a complete index until %s", deadline.isoformat("T", "seconds"))
        self.defer(
            trigger=BuildTrigger(night.slot, night.date.isoformat(), deadline.isoformat(), self.poke_interval),
            method_name="found",
            timeout=deadline - datetime.now(UTC) + timedelta(seconds=2 * self.poke_interval + 60),
        )


def night_of(context: Context, slot: Slot) -> Night:
    """The night that a run's parameters, partition key and logical date mean. Raises BuildDateUnknown."""
    from include.nightlies.builddate import resolve_build_date
    from include.nightlies.steps.values import Night

    params, run = context["params"], context["dag_run"]
    resolved = resolve_build_date(
        params.get("build_date"),
        getattr(run, "partition_key", None),
        run.logical_date,
        timezone=slot.timezone,
        date_offset=slot.date_offset,
    )
    return Night(
        run=run_name(context),
        slot=slot.name,
        date=resolved.date,
        reason=resolved.reason,
        projects=tuple(params.get("projects") or ()),
        platforms=tuple(params.get("platforms") or ()),
        dry_run=bool(params.get("dry_run")),
    )


def wait_until(context: Context, slot: Slot, now: datetime) -> datetime | None:
    """How long to wait for a complete build; None: not at all."""
    minutes = context["params"].get("wait_minutes")
    if minutes is not None:
        return now + timedelta(minutes=minutes) if minutes else None
    if str(context["dag_run"].run_type) != "scheduled":
        return None
    if slot.cutoff is None:
        return now + DEFAULT_WAIT
    local = now.astimezone(ZoneInfo(slot.timezone))
    cutoff = datetime.combine(local.date(), time.fromisoformat(slot.cutoff), local.tzinfo)
    return None if cutoff <= local else cutoff.astimezone(UTC)
