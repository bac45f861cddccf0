"""Triggers for the index of a build: its first artifact, and its growth while its night is open. They only watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from include.errors import is_retryable
from include.nightlies.rules.passes import Pass, PassDecision, SeenBuild, Turn, decide
from include.nightlies.steps.values import Night
from include.settings.errors import InvalidSettings, SettingsFileMissing
from include.settings.load import load

if TYPE_CHECKING:
    from include.nightlies.steps.build_status import Watch
    from include.site.site import Site


def configured(slot: str) -> Callable[[], Site]:
    """Clients of the site, new ones whenever the configuration differs; to be called in threads.

    What is returned raises SettingsError once the slot is not configured, and what reading the configuration raises.
    """
    from hooks.secrets import KnownSecrets
    from include.site.site import Site

    loop = asyncio.get_running_loop()
    opened: Site | None = None

    def connect() -> Site:
        nonlocal opened
        settings = load()
        settings.slot(slot)
        if opened is None or settings != opened.settings:
            opened = Site(settings, KnownSecrets(loop))
        return opened

    return connect


class FirstArtifactTrigger(BaseEventTrigger):
    """Fires an event with the `date` for each build date whose index lists something; it never ends.

    After a restart of the triggerer it reports again what it sees: a night that has begun is begun once.

    Args:
        slot: The slot's name in the site configuration.
        poll_s: Seconds between two checks of its indices.
    """

    def __init__(self, slot: str, poll_s: float) -> None:
        super().__init__()
        self.slot = slot
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("triggers.night.FirstArtifactTrigger", {"slot": self.slot, "poll_s": self.poll_s})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Errors are logged and retried; the trigger never stops, otherwise a missed night would go unnoticed."""
        from include.nightlies.steps.build_status import FirstArtifacts

        looks, reported = None, ""
        while True:
            try:
                looks = looks or FirstArtifacts(configured(self.slot), self.slot)
                nights = await asyncio.to_thread(looks.look, datetime.now(UTC))
            except Exception as error:  # noqa: BLE001 - a store, a configuration that is just edited: checked again
                nights = []
                if str(error) != reported:
                    self.log.warning("%s", error)
                    reported = str(error)
            else:
                reported = ""
            for day in nights:
                yield TriggerEvent({"date": day.isoformat()})
            await asyncio.sleep(self.poll_s)


FIRST_PAUSE_S = 1.0
EVENT_S = 2.0
"""Time between two questions for an event of the index."""


class NightTrigger(BaseTrigger):
    """Fires when a pass of the night has something to publish, or when the night ends.

    Looks ever more seldom while nothing changes, every `poll_s` seconds at least, and logs to the task what it
    waits for whenever that changes. What is wrong with the index is waited out until the night ends; a slot that is
    not configured any more ends it.

    Args:
        night: `Night` as JSON.
        turn: `Pass` as JSON.
        poll_s: Most seconds between two checks of the index.
        listen: The DAG that has a run for every event of the index: a new one of these ends a pause.
    """

    def __init__(self, night: dict[str, Any], turn: dict[str, Any], poll_s: float, listen: str | None = None) -> None:
        super().__init__()
        self.night = night
        self.turn = turn
        self.poll_s = poll_s
        self.listen = listen
        self._heard: int | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"night": self.night, "turn": self.turn, "poll_s": self.poll_s, "listen": self.listen}
        return ("triggers.night.NightTrigger", arguments)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fires one event: the `turn` (go or last) and the `reason`; or the `error` that ended the waiting."""
        turn = Pass.from_json(self.turn)
        await self._rest(turn.after)
        watch: Watch | None = None
        reported, pause_s = "", FIRST_PAUSE_S
        self._heard = await self._events()
        while True:
            try:
                watch = watch or self._watch(turn)
                decision = await asyncio.to_thread(watch.look, datetime.now(UTC))
            except Exception as error:  # noqa: BLE001 - the event carries it to the task, which fails with it
                if not self._may_pass(error):
                    yield TriggerEvent({"error": str(error)})
                    return
                decision = self._waiting(error)
            if decision.turn is not Turn.WAIT:
                yield TriggerEvent({"turn": decision.turn.value, "reason": decision.reason})
                return
            if decision.reason != reported:
                self.log.info("%s", decision.reason)
                reported, pause_s = decision.reason, FIRST_PAUSE_S
            left_s = (turn.until - datetime.now(UTC)).total_seconds() if turn.until else self.poll_s
            pause_s *= 2
            if await self._pause(max(min(pause_s / 2, self.poll_s, left_s), 0.1)):
                self.log.info("the index was written; looking now")
                pause_s = FIRST_PAUSE_S

    async def _pause(self, seconds: float) -> bool:
        """Wait for so long, or until there was an event; whether there was one."""
        clock = asyncio.get_running_loop()
        end = clock.time() + seconds
        while True:
            left_s = end - clock.time()
            await asyncio.sleep(max(min(left_s, EVENT_S), 0.0))
            events = await self._events()
            if events is not None and self._heard not in (None, events):
                self._heard = events
                return True
            self._heard = self._heard if events is None else events
            if clock.time() >= end:
                return False

    async def _events(self) -> int | None:
        """Return the number of events so far; None where they cannot be asked for, and then the pauses are whole."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        if self.listen is None:
            return None
        try:
            return await asyncio.to_thread(RuntimeTaskInstance.get_dr_count, dag_id=self.listen)
        except Exception as error:  # noqa: BLE001 - events only spare time: without them the index is checked as well
            self.log.debug("events of the index are not received: %s", error)
            return None

    async def _rest(self, after: datetime | None) -> None:
        if after is not None:
            left_s = (after - datetime.now(UTC)).total_seconds()
            if left_s > 0:
                self.log.info("the pass before failed; checking again after %s", after.isoformat(" ", "seconds"))
                await asyncio.sleep(left_s)

    def _watch(self, turn: Pass) -> Watch:
        from include.nightlies.steps.build_status import Watch

        night = Night.from_json(self.night)
        return Watch(configured(night.slot), night, turn)

    def _may_pass(self, error: Exception) -> bool:
        # a configuration that is just being edited is no reason to end the night
        return is_retryable(error, otherwise=False) or isinstance(error, InvalidSettings | SettingsFileMissing)

    def _waiting(self, error: Exception) -> PassDecision:
        until = Pass.from_json(self.turn).until
        return decide(SeenBuild(problem=str(error)), now=datetime.now(UTC), until=until, fresh_since=None, gather=None)
