"""A night alone, and beside stage-out and a collection, under one real Airflow: how much longer it takes.

One lab with its ledger on a MariaDB. Before a night of kind B a build of GARBAGE files is published that has expired,
a collection removes it, and a small build is published, so that no tag of the last revisions names it any more; users
inject RATE files a second, and the DAGs of stage-out run until they verify as many. A second collection is begun with
the night and deletes these objects. In a night of kind A the DAGs are paused. The first night warms up and is not
counted. PREPARE and PUBLISH are the slots of these pools in nights of both kinds: what a night leaves to others, also
when it is alone. A night of kind W is one alone with the usual slots. SHARDS are the tasks that share a pass. The FTS
service and the users, who have machines of their own in production, run at the lowest priority.

Ends in one line of JSON, which is also written to bench/results/together.json; code 1 if the ratio of the means is
above the target, an artifact was not published, a collection deleted less than its garbage or did not do so within its
night, or stage-out verified too few files, in the night or with the two minutes after it, or too late.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from bench.nights.lab import BenchLab, say
from bench.nights.times import seconds
from bench.publishing.machine import description
from bench.stageouting.account import Mark, Measures, open_files, percentile
from bench.stageouting.load import LoadPlan
from bench.stageouting.scene import Scene, opened
from bench.stageouting.scheduled import DAGS, scheduled
from include.cli.settings import check_site
from include.nightlies.steps.care import file_name, reports_of
from include.settings.scheduling import pools
from include.settings.secrets import EnvSecrets
from include.stageout.states import TransferState
from lab.errors import LabError

TARGET = 1.15
KEEPS_UP = 0.95
"""Of the rate: so much is verified before the night begins, and while it runs."""
WARM_UP = 4
"""Artifacts; as many as there are platforms, so that all of them have the same files."""
GARBAGE = 5000
"""Files of an expired build that no other one has."""
KEEP_DAYS, EXPIRED_DAYS = 30, 60
AT_WORK_S = 300.0
INJECTED, INJECTED_MINUTES = 1.07, 30.0
"""Of the rate: a twentieth of the copies fails, and is tried again much later."""
COLLECTION = "nightly_gc"
# to be submitted, copied or verified
MOVING = (TransferState.NEW, TransferState.CLAIMED, TransferState.SUBMITTED, TransferState.ACTIVE, TransferState.COPIED)
CYCLE_S, CYCLES = 60.0, 2
"""The passes of stage-out begin once in it. They step back for a night, and have so many after it to catch up."""
LAG_S = 150.0
"""Between a copy and its verification, for 95 % of files."""


@dataclass(frozen=True, slots=True)
class TogetherNight:
    """One night.

    Attributes:
        meanwhile: Files that stage-out verified in a second, of the last whole cycles of the night.
        files_per_s: The same, of whole cycles of the night and the CYCLES after it.
        lag_p95_s: From a copy to its verification, for 95 % of all files.
        deleted: Objects, before the night ended.
    """

    kind: str
    night_s: float
    whole: bool
    busy: float = 0.0
    """Of the machine's processor time."""
    meanwhile: float = 0.0
    files_per_s: float = 0.0
    lag_p95_s: float = 0.0
    deleted: int = 0


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what is started here ends with us
    say(f"machine: {description()}")
    plan = LoadPlan(INJECTED * options.rate, INJECTED_MINUTES)
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-together-"))
    folder.chmod(0o711)  # the database's server runs as an account of its own
    try:
        with opened(folder, mean_s=20.0) as scene, _scheduled(scene, plan, options.shards) as lab:
            result = _rounds(scene, lab, plan, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.results:
        Path(options.results).mkdir(parents=True, exist_ok=True)
        Path(options.results, "together.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if result["good"] and result["ratio"] <= TARGET else 1


def _scheduled(scene: Scene, plan: LoadPlan, shards: int) -> AbstractContextManager[BenchLab]:
    def change(document: dict[str, Any]) -> None:
        for slot in document["slots"].values():
            slot["retention"] = {"keep_days": KEEP_DAYS, "minimum": 1, "rebuild_days": 0}
            slot["links"] = {"weekdays": False}  # one of them would keep the expired build
        for repository in document["repositories"].values():
            # what is removed can be deleted at once, and without a second collection
            repository["collection"] = {"grace_days": 0, "careful": False}
        document["stageout"]["shards"] = shards

    return scheduled(plan, scene.ledger_url, scene.fts.url, change)


def _rounds(scene: Scene, lab: BenchLab, plan: LoadPlan, options: argparse.Namespace) -> dict[str, Any]:
    machine = description()
    first = lab.today() - timedelta(days=len(options.order))
    _pause(lab, paused=True)
    check_site(EnvSecrets())  # a collection begins only on a store that was seen to keep conditions
    lab.api.unpause(COLLECTION)
    _night(lab, first, WARM_UP, options.files, options.seconds)
    usual = [pool for pool in pools(lab.site.settings) if pool.name in ("prepare", "publish")]
    fewer = {"prepare": options.prepare, "publish": options.publish}
    chosen = [replace(pool, slots=fewer[pool.name] or pool.slots) for pool in usual]
    nights = []
    for number, kind in enumerate(options.order):
        day = first + timedelta(days=number + 1)
        run = LoadPlan(plan.rate, plan.minutes, run=f"together{number}")
        for pool in usual if kind == "W" else chosen:
            lab.api.put_pool(asdict(pool))
        nights.append(_beside(scene, lab, run, day, options) if kind == "B" else _alone(kind, lab, day, options))
        say(f"{nights[-1]}")
    alone = [night.night_s for night in nights if night.kind == "A"]
    beside = [night for night in nights if night.kind == "B"]
    good = all(night.whole for night in nights) and all(
        night.deleted >= GARBAGE
        and min(night.meanwhile, night.files_per_s) >= KEEPS_UP * options.rate
        and night.lag_p95_s <= LAG_S
        for night in beside
    )
    return {
        "artifacts": options.artifacts,
        "rate": options.rate,
        "alone_s": [round(one, 1) for one in alone],
        "beside_s": [round(night.night_s, 1) for night in beside],
        "alone_with_usual_slots_s": [round(night.night_s, 1) for night in nights if night.kind == "W"],
        "alone_busy": [night.busy for night in nights if night.kind == "A"],
        "beside_busy": [night.busy for night in beside],
        "ratio": round(mean(night.night_s for night in beside) / mean(alone), 3),
        "target": TARGET,
        "files_per_s": [round(night.files_per_s, 1) for night in beside],
        "files_per_s_meanwhile": [round(night.meanwhile, 1) for night in beside],
        "lag_p95_s": [round(night.lag_p95_s, 1) for night in beside],
        "deleted": [night.deleted for night in beside],
        "garbage": GARBAGE,
        "shards": options.shards,
        "pools": {pool.name: pool.slots for pool in chosen},
        "good": good,
        "machine": machine,
    }


def _alone(kind: str, lab: BenchLab, day: date, options: argparse.Namespace) -> TogetherNight:
    before = _processor()
    began, ended, whole = _night(lab, day, options.artifacts, options.files, options.seconds)
    return TogetherNight(kind, ended - began, whole, _busy(before))


def _beside(scene: Scene, lab: BenchLab, plan: LoadPlan, day: date, options: argparse.Namespace) -> TogetherNight:
    expired = day - timedelta(days=EXPIRED_DAYS)
    _night(lab, expired, WARM_UP, GARBAGE, options.seconds)
    lab.api.trigger(COLLECTION, f"removal__{day}", {}, logical_date=None)
    _until_ended(lab, f"removal__{day}")
    _night(lab, expired + timedelta(days=1), WARM_UP, options.files, options.seconds)
    run_id = f"together__{day}"
    accepted = {"repositories": [lab.slot.repository], "accept": "the garbage is most of the repository"}

    def collect() -> None:
        lab.api.trigger(COLLECTION, run_id, accepted, logical_date=None)

    _pause(lab, paused=False)
    _until_drained(scene)
    mark, start = Mark.of(scene.ledger), datetime.now(UTC)
    with scene.injecting(plan):
        _until_at_work(scene, mark, start, options.rate)
        before = _processor()
        began, ended, whole = _night(lab, day, options.artifacts, options.files, options.seconds, collect)
        busy = _busy(before)
        last = ended + CYCLES * CYCLE_S
        time.sleep(max(0.0, last - time.time()))
        _pause(lab, paused=True)
    _until_ended(lab, run_id)
    for name in DAGS:
        _until_idle(lab, name)  # what a pass does after its night is no part of the next one
    measures = Measures.of(scene.ledger, mark, start)
    began, ended, last = (moment - start.timestamp() for moment in (began, ended, last))
    night_s = ended - began
    within, after = (max(1, math.floor((end - began) / CYCLE_S)) * CYCLE_S for end in (ended, last))
    rates = (measures.rate(ended - within, ended), measures.rate(last - after, last))
    steps = [f"{measures.rate(at - 20, at):.0f}" for at in range(20, int(last), 20)]
    say(f"files/s by 20 s: {' '.join(steps)}; the night from {began:.0f} to {ended:.0f} s")
    lag = percentile(measures.lags, 0.95)
    return TogetherNight("B", night_s, whole, busy, *rates, lag, _deleted(lab, run_id, start.timestamp() + ended))


def _processor() -> tuple[float, float]:
    """Seconds that the machine's processors were idle, and all of them, since it was started."""
    times = psutil.cpu_times()
    return times.idle + times.iowait, sum(times[:8])  # the others are counted in these


def _busy(before: tuple[float, float]) -> float:
    idle, every = (now - then for now, then in zip(_processor(), before, strict=True))
    return round(1 - idle / every, 3)


def _until_drained(scene: Scene) -> None:
    """Until nothing of an earlier night is to be copied or verified: it would be done beside this one."""
    ends = time.monotonic() + AT_WORK_S
    while time.monotonic() < ends:
        if not {state.value for state in MOVING} & set(open_files(scene.ledger, Mark())):
            return
        time.sleep(5.0)
    say("stage-out still has transfers of an earlier night")


def _until_at_work(scene: Scene, mark: Mark, start: datetime, rate: float) -> None:
    """Until stage-out verifies as many files as it should."""
    ends = time.monotonic() + AT_WORK_S
    while time.monotonic() < ends:
        now = (datetime.now(UTC) - start).total_seconds()
        verified = Measures.of(scene.ledger, mark, start).rate(now - CYCLE_S, now)
        if now > 2 * CYCLE_S and verified >= KEEPS_UP * rate:
            return
        time.sleep(5.0)
    say("stage-out does not keep up with the requests before the night begins")


def _night(
    lab: BenchLab, day: date, artifacts: int, files: int, seconds_s: float, begin: Callable[[], None] = lambda: None
) -> tuple[float, float, bool]:
    """When the night of a date was queued and ended, and whether all of it was published; `begin`: with it."""
    lab.drop(day, artifacts, files)
    begin()
    run_id = lab.start(day)
    lab.follow(run_id, seconds_s)
    run = lab.api.ask("GET", f"/dags/{lab.dag_id}/dagRuns/{run_id}")
    published = sum(one.state.good for one in lab.publications(run_id))
    return seconds(run["queued_at"]), seconds(run["end_date"]), published == artifacts


def _pause(lab: BenchLab, *, paused: bool) -> None:
    for name in DAGS:
        lab.api.pause(name, paused=paused)


def _until_ended(lab: BenchLab, run_id: str) -> None:
    """Until a collection has ended."""
    ends = time.monotonic() + AT_WORK_S
    while lab.api.run_state(COLLECTION, run_id) not in ("success", "failed"):
        if time.monotonic() > ends:
            raise LabError(f"the collection {run_id} has not ended after {AT_WORK_S:.0f} s")
        time.sleep(2.0)


def _until_idle(lab: BenchLab, dag_id: str) -> None:
    """Until no task of a paused DAG is at work; its run ends only when it is unpaused."""
    ends = time.monotonic() + AT_WORK_S
    runs = [run["dag_run_id"] for run in lab.api.runs(dag_id, prefix="") if run["state"] == "running"]
    while any(task["state"] == "running" for run_id in runs for task in lab.api.task_instances(dag_id, run_id)):
        if time.monotonic() > ends:
            raise LabError(f"a task of {dag_id} has not ended after {AT_WORK_S:.0f} s")
        time.sleep(2.0)


def _deleted(lab: BenchLab, run_id: str, night_ended: float) -> int:
    """Objects that a collection deleted, if it did before a night ended; 0 if it did nothing, or did it later."""
    folder = reports_of(lab.site, lab.slot.repository)
    path = folder / f"{file_name(f'{COLLECTION}/{run_id}')}.json"
    if not path.exists():
        say(f"the collection {run_id} did not come to its end: {lab.api.run_state(COLLECTION, run_id)}")
        return 0
    report = json.loads(path.read_text())
    late = seconds(report["ended"]) - night_ended
    say(f"the collection deleted {report['deleted']:,} objects, {-late:.0f} s before the end of the night")
    return 0 if late > 0 else int(report["deleted"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=int, default=400)
    parser.add_argument("--files", type=int, default=3, help="files in each artifact that all platforms have alike")
    parser.add_argument("--rate", type=float, default=140.0, help="files a second")
    parser.add_argument("--prepare", type=int, default=1, help="slots of the pool prepare; 0: the usual ones")
    parser.add_argument("--publish", type=int, default=1, help="slots of the pool publish; 0: the usual ones")
    parser.add_argument("--shards", type=int, default=1, help="tasks that share a pass of stage-out")
    parser.add_argument("--order", default="ABBA")
    parser.add_argument("--seconds", type=float, default=1200.0, help="how long a night may take")
    parser.add_argument("--results", default=str(Path(__file__).parent / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
