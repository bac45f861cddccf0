"""Plays one night: the builds of all slots arrive at the same time, and in the middle of it things happen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from include.airflow_api import AirflowApi
from include.gateway.client.client import GatewayClient
from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.publication import State
from tests.week.builder import Builder
from tests.week.place import Deployment, WeekFailed, wait_for
from tests.week.plan import Again, Night, SlotNight

PLANNED_S = 600.0
NIGHT_S = 1800.0
POLL_S = 1.0
MIDDLE = 4
"""So many artifacts of a night are published, and others are under way, when something happens in its middle."""
FROZEN_S = 8.0
NOTICED_S = 240.0
ENDED = {"success", "failed"}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of Airflow, in seconds of the week."""

    slot: str
    day: date
    run_id: str
    state: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened in the middle of a night, with its reach in seconds of the week, and what was seen."""

    kind: str
    began_s: float
    ended_s: float
    said: str
    quiet_s: float = 0.0
    """Of a freeze: when the last lease that was granted before it was gone."""


@dataclass
class Played:
    """What was seen of the week while it went on."""

    runs: list[Ran] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    nights_s: dict[date, tuple[float, float]] = field(default_factory=dict)


class Stage:
    """Where nights are played. `now`: seconds of the week."""

    def __init__(self, deployment: Deployment, now: Callable[[], float], say: Say) -> None:
        self.deployment = deployment
        self.now = now
        self.say = say
        self.played = Played()
        self._epoch = time.time() - now()
        self._given_up = threading.Event()

    def play(self, night: Night) -> None:
        """Returns when all slots' nights are over. Raises WeekFailed."""
        began = self.now()
        with ThreadPoolExecutor(max_workers=len(night.slots) + 2) as pool:
            parts = [pool.submit(self._slot, one) for one in night.slots]
            ended = threading.Event()
            if night.killed:
                parts.append(pool.submit(self._kill, night, ended))
            if night.frozen:
                parts.append(pool.submit(self._freeze, night, ended))
            try:
                for one in parts[: len(night.slots)]:
                    one.exception()
                ended.set()
                for one in parts:
                    one.result()
            finally:
                ended.set()
                self._given_up.set()
            self._given_up.clear()
        self.played.nights_s[night.day] = (began, self.now())

    # -- a slot's night

    def _slot(self, night: SlotNight) -> None:
        site, api = self.deployment.site, self.deployment.api()
        slot = self.deployment.settings.slot(night.slot)
        builder = Builder(site.store(slot.store), slot, night.day, night.build_id, night.base)
        builder.publish(night.stages[0], serial=1)
        first = run_of(night.day)
        self._trigger(api, night.slot, first, night.day, wait_minutes=night.wait_minutes)
        for number, stage in enumerate(night.stages[1:], 2):
            self._planned(api, night, number - 1)
            time.sleep(stage.pause_s)  # the builder is still at it
            builder.publish(stage, serial=number)
            self.say(f"{night.day} {night.slot}: index {number} of {len(night.stages)}, {len(stage.listed)} artifacts")
        self._over(api, night.slot, first)
        for again in night.again:
            self._rebuild(api, night, again)

    def _wait_for(self, look: Callable[[], Any], what: str, timeout_s: float) -> Any:
        """As `wait_for`, until the week is given up."""

        def looked() -> Any:
            if self._given_up.is_set():
                raise WeekFailed(f"given up while waiting: {what}")
            return look()

        return wait_for(looked, what, timeout_s, POLL_S)

    def _planned(self, api: AirflowApi, night: SlotNight, passes: int) -> None:
        """Wait until so many passes of the night have been planned."""
        dag_id, first = dag_of(night.slot), run_of(night.day)

        def planned() -> bool:
            known = [one["dag_run_id"] for one in api.runs(dag_id, prefix=first)]
            return sum(bool(self._publications(dag_id, run_id)) for run_id in known) >= passes

        self._wait_for(planned, f"pass {passes} of {night.slot} {night.day} is planned", PLANNED_S)

    def _rebuild(self, api: AirflowApi, night: SlotNight, again: Again) -> None:
        site, slot = self.deployment.site, self.deployment.settings.slot(night.slot)
        builder = Builder(site.store(slot.store), slot, again.day, again.build_id, again.partial_of)
        builder.publish(again.stage, serial=100)
        run_id = f"again__{again.day.isoformat()}"
        self.say(f"{night.day} {night.slot}: build {again.build_id} of {again.day} is rebuilt")
        self._trigger(api, night.slot, run_id, again.day)
        self._over(api, night.slot, run_id)

    def _trigger(self, api: AirflowApi, slot: str, run_id: str, day: date, **conf: Any) -> None:
        api.trigger(dag_of(slot), run_id, {"build_date": day.isoformat(), "allow_future": True, **conf})

    def _over(self, api: AirflowApi, slot: str, first: str) -> None:
        """Wait until the last pass of a night has ended, and note its runs."""
        dag_id = dag_of(slot)

        def over() -> list[dict[str, Any]]:
            runs = api.runs(dag_id, prefix=first)
            if not runs or any(one["state"] not in ENDED for one in runs):
                return []
            newest = runs[0]["dag_run_id"]
            states = {one["task_id"]: one["state"] for one in api.task_instances(dag_id, newest)}
            # the pass that starts no other is the last
            return [] if states.get("next_pass") == "success" else runs

        runs = self._wait_for(over, f"the night {first} of {slot} ends", NIGHT_S)
        for one in reversed(runs):
            ran = Ran(
                slot,
                date.fromisoformat(first.split("__")[1]),
                one["dag_run_id"],
                one["state"],
                self._seconds(one["start_date"]),
                self._seconds(one["end_date"]),
            )
            self.played.runs.append(ran)
            self.say(f"{ran.day} {slot}: {ran.run_id} {ran.state} after {ran.ended_s - ran.began_s:.0f} s")

    # -- what happens in the middle

    def _kill(self, night: Night, ended: threading.Event) -> None:
        if not self._middle(night, ended):
            raise WeekFailed(f"{night.day}: the night was over before the scheduler could be killed")
        began = self.now()
        old, new, seconds = self.deployment.kill("scheduler")
        said = f"kill -9 of the scheduler (pid {old}); pid {new} after {seconds:.1f} s"
        self.say(f"{night.day}: {said}")
        self.played.happenings.append(Happening("kill", began, self.now(), said))

    def _freeze(self, night: Night, ended: threading.Event) -> None:
        if not self._middle(night, ended):
            raise WeekFailed(f"{night.day}: the night was over before the repository could be frozen")
        fqrn, api, began = self.deployment.fqrn, self.deployment.api(), self.now()
        self.deployment.command("freeze", fqrn, "--reason", "the switch is replaced", "--until", "2h")
        self.say(f"{night.day}: {fqrn} is frozen")
        self._wait_for(lambda: not leases(self.deployment), "leases granted before the freeze are gone", NOTICED_S)
        quiet = self.now()
        waiting: list[str] = self._wait_for(lambda: self._waiting(api, night), "a task waits", NOTICED_S)
        time.sleep(FROZEN_S)  # for the reader to look
        lasted = self.now()
        self.deployment.command("thaw", fqrn)
        said = f"frozen for {lasted - began:.0f} s; waited: {', '.join(sorted(set(waiting)))}"
        self.say(f"{night.day}: {said}; thawed")
        self.played.happenings.append(Happening("freeze", began, lasted, said, quiet))

    def _middle(self, night: Night, ended: threading.Event) -> bool:
        """Wait until some of a night is published and some is under way; false if it ended before."""
        runs = [(dag_of(one.slot), run_of(one.day)) for one in night.slots]
        while not ended.is_set():
            states = [one.state for run in runs for one in self._publications(*run)]
            if sum(one is State.PUBLISHED for one in states) >= MIDDLE and any(not one.ended for one in states):
                return True
            ended.wait(0.3)
        return False

    def _waiting(self, api: AirflowApi, night: Night) -> list[str]:
        """Tasks that change the repository and wait in the triggerer."""
        found = []
        for one in night.slots:
            for run in api.runs(dag_of(one.slot), prefix=run_of(one.day)):
                tasks = api.task_instances(dag_of(one.slot), run["dag_run_id"])
                found += [t["task_id"] for t in tasks if t["state"] == "deferred" and t["task_id"] != "find_build"]
        return found

    def _publications(self, dag_id: str, run_id: str) -> Iterable[Any]:
        return publications_of_run(self.deployment.site.ledger, f"{dag_id}/{run_id}")

    def _seconds(self, text: str | None) -> float:
        return round(datetime.fromisoformat(text).timestamp() - self._epoch, 1) if text else self.now()


def dag_of(slot: str) -> str:
    return f"nightly_install_{slot}"


def run_of(day: date) -> str:
    """The id of the run that begins a night; those of its further passes begin with it."""
    return f"night__{day.isoformat()}__1"


def leases(deployment: Deployment) -> list[str]:
    """Who holds what at the gateway."""
    with GatewayClient(deployment.lab.gateway_url, "", "") as client:
        return [f"{one.full_path} held by {one.hostname}" for one in client.leases()]
