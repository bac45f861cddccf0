"""A night alone, and beside stage-out and a collection, under one real Airflow: how much longer it takes.

One lab with its ledger on a MariaDB. In a night of kind B users inject RATE files a second, the DAGs of stage-out are
unpaused, and a collection is begun with the night; in one of kind A they are paused. The first night warms up and is
not counted. Ends in one line of JSON, which is also written to bench/results/together.json; code 1 if the ratio of the
means is above the target, an artifact was not published, or stage-out did not keep up meanwhile.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

from nights.lab import BenchLab, say
from nights.times import seconds
from publishing.machine import description
from stageouting.account import Mark, Measures
from stageouting.load import LoadPlan
from stageouting.scene import Scene, opened
from stageouting.scheduled import DAGS, scheduled

from include.cli.settings import check_site
from include.settings.secrets import EnvSecrets

TARGET = 1.15
KEEPS_UP = 0.9
"""Of the rate: so much is verified while the night runs."""
WARM_UP = 4
AT_WORK_S = 240.0
INJECTED_MINUTES = 30.0
COLLECTION = "nightly_gc"


@dataclass(frozen=True, slots=True)
class TogetherNight:
    """One night; `verified_per_s`: files that stage-out verified meanwhile; `collected`: how the collection ended."""

    kind: str
    night_s: float
    whole: bool
    verified_per_s: float = 0.0
    collected: str = ""


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what is started here ends with us
    say(f"machine: {description()}")
    plan = LoadPlan(options.rate, INJECTED_MINUTES)
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-together-"))
    folder.chmod(0o711)  # the database's server runs as an account of its own
    try:
        with opened(folder, mean_s=20.0) as scene, scheduled(plan, scene.ledger_url, scene.fts.url) as lab:
            result = _rounds(scene, lab, plan, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.results:
        Path(options.results).mkdir(parents=True, exist_ok=True)
        Path(options.results, "together.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if result["good"] and result["ratio"] <= TARGET else 1


def _rounds(scene: Scene, lab: BenchLab, plan: LoadPlan, options: argparse.Namespace) -> dict[str, Any]:
    machine = description()
    first = lab.today() - timedelta(days=len(options.order))
    _pause(lab, paused=True)
    check_site(EnvSecrets())  # a collection begins only on a store that was seen to keep conditions
    lab.api.unpause(COLLECTION)
    _night(lab, first, WARM_UP, options)
    nights = []
    for number, kind in enumerate(options.order):
        day = first + timedelta(days=number + 1)
        run = LoadPlan(plan.rate, plan.minutes, run=f"together{number}")
        nights.append(_beside(scene, lab, run, day, options) if kind == "B" else _alone(lab, day, options))
        say(f"{nights[-1]}")
    alone = [night.night_s for night in nights if night.kind == "A"]
    beside = [night for night in nights if night.kind == "B"]
    good = all(night.whole for night in nights) and all(
        night.collected == "success" and night.verified_per_s >= KEEPS_UP * plan.rate for night in beside
    )
    return {
        "artifacts": options.artifacts,
        "rate": plan.rate,
        "alone_s": [round(one, 1) for one in alone],
        "beside_s": [round(night.night_s, 1) for night in beside],
        "ratio": round(mean(night.night_s for night in beside) / mean(alone), 3),
        "target": TARGET,
        "stageout_files_per_s": [round(night.verified_per_s, 1) for night in beside],
        "collections": [night.collected for night in beside],
        "pools": {name: lab.api.ask("GET", f"/pools/{name}")["slots"] for name in ("prepare", "publish", "stageout")},
        "good": good,
        "machine": machine,
    }


def _alone(lab: BenchLab, day: date, options: argparse.Namespace) -> TogetherNight:
    began, ended, whole = _night(lab, day, options.artifacts, options)
    return TogetherNight("A", ended - began, whole)


def _beside(scene: Scene, lab: BenchLab, plan: LoadPlan, day: date, options: argparse.Namespace) -> TogetherNight:
    mark, start = Mark.of(scene.ledger), datetime.now(UTC)
    with scene.injecting(plan) if plan.rate else nullcontext():
        _pause(lab, paused=False)
        _until_at_work(scene, mark, start, plan)
        run_id = f"together__{day}"
        lab.api.trigger(COLLECTION, run_id, {}, logical_date=None)
        began, ended, whole = _night(lab, day, options.artifacts, options)
        _pause(lab, paused=True)
    measures = Measures.of(scene.ledger, mark, start)
    rate = measures.rate(began - start.timestamp(), ended - start.timestamp())
    return TogetherNight("B", ended - began, whole, rate, _ended(lab, run_id))


def _until_at_work(scene: Scene, mark: Mark, start: datetime, plan: LoadPlan) -> None:
    """Until stage-out verifies as many files as are requested."""
    ends = time.monotonic() + AT_WORK_S
    while time.monotonic() < ends:
        now = (datetime.now(UTC) - start).total_seconds()
        if now > 60 and Measures.of(scene.ledger, mark, start).rate(now - 30, now) >= KEEPS_UP * plan.rate:
            return
        time.sleep(5.0)
    say("stage-out does not keep up with the requests before the night begins")


def _night(lab: BenchLab, day: date, artifacts: int, options: argparse.Namespace) -> tuple[float, float, bool]:
    """When the night of a date was queued and ended, and whether all of it was published."""
    lab.drop(day, artifacts, options.files)
    run_id = lab.start(day)
    lab.follow(run_id, options.seconds)
    run = lab.api.ask("GET", f"/dags/{lab.dag_id}/dagRuns/{run_id}")
    published = sum(one.state.good for one in lab.publications(run_id))
    return seconds(run["queued_at"]), seconds(run["end_date"]), published == artifacts


def _pause(lab: BenchLab, *, paused: bool) -> None:
    for name in DAGS:
        lab.api.pause(name, paused=paused)


def _ended(lab: BenchLab, run_id: str) -> str:
    ends = time.monotonic() + AT_WORK_S
    while (state := lab.api.run_state(COLLECTION, run_id)) not in ("success", "failed"):
        if time.monotonic() > ends:
            break
        time.sleep(2.0)
    return state


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=int, default=600)
    parser.add_argument("--files", type=int, default=3, help="files in each artifact that all platforms have alike")
    parser.add_argument("--rate", type=float, default=140.0, help="files a second")
    parser.add_argument("--order", default="ABBA")
    parser.add_argument("--seconds", type=float, default=1200.0, help="how long a night may take")
    parser.add_argument("--results", default=str(Path(__file__).parent / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
