"""A process that runs passes of some components until SIGTERM, as the tasks of the DAGs do.

`python -m stageouting.worker`, the job on standard input; SIGTERM lets it finish its pass. It prints what each
component has cost, with `profile` also where the time went.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from bench.stageouting.load import LoadPlan, settings, sites, utc
from include.errors import NightshiftError
from include.fts.client import FtsClient
from include.fts.states import FailureReason
from include.ledger.engine import open_ledger
from include.settings.secrets import ConnectionSecrets
from include.stageout.claims import StageoutWorker
from include.stageout.opening import Stageout
from include.stageout.passes import BATCH, COMPONENTS, counts_of
from include.stageout.places.facts import PlaceOptions, SitePlace
from include.stageout.places.open import open_place
from include.stageout.registration.rucio import RucioCatalogue
from include.stageout.retry import RetryDecision, exponential

ROLES: Mapping[str, tuple[str, ...]] = {
    "submit": ("submit",), "monitor": ("monitor", "report", "retry"), "finish": ("register", "clean"),
}  # fmt: skip
"""What each of the DAGs runs."""
PAUSE_S = 0.5
SHORTER = 120
"""Waits before retries are that much shorter, so that a run of minutes sees several of them."""


@dataclass(slots=True)
class ComponentCost:
    """What the passes of one component have cost together."""

    passes: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    errors: int = 0


def main() -> None:
    job = json.loads(sys.stdin.readline())
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    profile = cProfile.Profile() if job.get("profile") else None
    if profile:
        profile.enable()
    costs = run(opened(job), job["components"], stopped.is_set)
    if profile:
        profile.disable()
        with Path(job["profile"]).open("w") as file:
            stats = pstats.Stats(profile, stream=file)
            stats.sort_stats("tottime").print_stats(60).sort_stats("cumtime").print_stats(80)
    print(json.dumps({name: asdict(cost) for name, cost in costs.items()}))


def opened(job: Mapping[str, Any]) -> Stageout:
    """As production opens it, with one identity for all."""
    plan = LoadPlan.from_json(job["plan"])
    known = sites(plan.sites)
    client = FtsClient(job["fts"], retries=0)

    @cache
    def place(site: str) -> SitePlace:
        return open_place(known[site], None, PlaceOptions(fts_url=job["fts"]))

    ledger = open_ledger(job["ledger"], password=job["password"])
    worker, rucio = StageoutWorker(job["name"], timedelta(minutes=1)), job["rucio"]
    chosen = settings(plan, {"kind": "rucio", "connection": "rucio"} if rucio else {"kind": "ledger"})
    catalogue = None
    if rucio:
        connection = ConnectionSecrets("rucio", **rucio["connection"])
        catalogue = RucioCatalogue(chosen, known, lambda: connection, folder=Path(rucio["tokens"]))
    return Stageout(
        ledger=ledger, settings=chosen, sites=known, worker=worker, fts=lambda *_: client,
        place=lambda site, _owner: place(site), retry=hurried, catalogue=catalogue,
    )  # fmt: skip


def hurried(failure: FailureReason, spent: int, chance: float) -> RetryDecision:
    """As `exponential`, with shorter waits."""
    decision = exponential(failure, spent, chance)
    return replace(decision, wait=decision.wait / SHORTER)


def run(stageout: Stageout, names: list[str], stopped: Callable[[], bool]) -> dict[str, ComponentCost]:
    """Passes of each component in turn, and a pause when none had anything to do."""
    costs = {name: ComponentCost() for name in names}
    while not stopped():
        worked = False
        for name in names:
            worked = one_pass(stageout, name, costs[name]) or worked
        if not worked:
            time.sleep(PAUSE_S)
    return costs


def one_pass(stageout: Stageout, name: str, cost: ComponentCost) -> bool:
    """Whether the component did something."""
    wall, cpu = time.monotonic(), time.process_time()
    due = False
    try:
        _, due = counts_of(COMPONENTS[name](stageout, now=utc, limit=BATCH))
    except (NightshiftError, OperationalError) as error:
        # as a task would fail, and its next run go on
        cost.errors += 1
        print(f"{name}: {type(error).__name__}: {error}"[:300], file=sys.stderr, flush=True)
        time.sleep(PAUSE_S)
    cost.passes += 1
    cost.cpu_s += time.process_time() - cpu
    cost.wall_s += time.monotonic() - wall
    return due


if __name__ == "__main__":
    main()
