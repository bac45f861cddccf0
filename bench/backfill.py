"""A night beside a backfill of five past dates: how much longer it takes than alone, and where `latest` leads then.

Starts a lab of its own in a throw-away folder, and after a small night to warm up runs nights of ARTIFACTS tarballs in
the order A B B A: A alone, B while a real `airflow backfill create` of five past dates, each with a build as large, is
under way; what is left of it when the night ends is cancelled. A night's time is from its run's being queued to the end
of its last task, `announce`. All the while `latest` is read through the public URL, as a client does.

Ends in one line of JSON, which is also written to bench/results/backfill.json; with code 1 if `latest` ever moved to an
earlier build, a night was not published or its backfill did no work meanwhile, or the ratio B/A is above the target.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

from bench.nights.lab import BenchLab, bench_lab, say
from bench.nights.times import ran, seconds
from bench.publishing.machine import description
from include.settings.scheduling import BACKFILL
from lab.errors import LabError

TARGET = 1.3
DATES = 5
WARM_UP = 4
SAMPLE_S = 0.5
UNDER_WAY_S = 120.0
ENDED = {"success", "failed"}


def main() -> int:
    options = _options()
    say(f"machine: {description()}")
    say(f"nights of {options.artifacts} artifacts of {options.files + 2} files, {options.order}; {DATES} past dates")
    with bench_lab() as lab:
        result = _rounds(lab, options)
    folder = Path(options.results)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "backfill.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if result["good"] and result["ratio"] <= TARGET else 1


def _rounds(lab: BenchLab, options: argparse.Namespace) -> dict[str, Any]:
    machine = description()
    first = lab.today() - timedelta(days=len(options.order))
    _night(lab, first, WARM_UP, options)
    nights: list[Night] = []
    with Latest(lab) as latest:
        for number, kind in enumerate(options.order):
            day = first + timedelta(days=number + 1)
            past = None
            if kind == "B":
                past = Backfill(lab, first - timedelta(days=10 * (number + 1)))
                past.begin(options.artifacts, options.files)
            night = _night(lab, day, options.artifacts, options)
            done = past.end(night) if past else 0
            nights.append(Night(kind, night["night_s"], night["published"] == options.artifacts, done))
            say(
                f"{kind}: {night['night_s']:.1f} s"
                + (f", {done} tasks of the backfill ended meanwhile" if past else "")
            )
    alone = [one.night_s for one in nights if one.kind == "A"]
    beside = [one.night_s for one in nights if one.kind == "B"]
    good = all(one.whole and (one.kind == "A" or one.backfilled > 0) for one in nights)
    return {
        "artifacts": options.artifacts,
        "dates": DATES,
        "alone_s": [round(one, 1) for one in alone],
        "beside_s": [round(one, 1) for one in beside],
        "ratio": round(mean(beside) / mean(alone), 3),
        "target": TARGET,
        "backfill_tasks": [one.backfilled for one in nights if one.kind == "B"],
        "backfill_slots": lab.api.ask("GET", f"/pools/{BACKFILL}")["slots"],
        "latest_samples": latest.samples,
        "latest": latest.seen,
        "latest_moved_back": latest.wrong,
        "good": good and not latest.wrong and len(latest.seen) > len(nights),
        "machine": machine,
    }


@dataclass(frozen=True, slots=True)
class Night:
    """One night of the comparison; `backfilled`: tasks of the backfill that ended while it ran."""

    kind: str
    night_s: float
    whole: bool
    backfilled: int


def _night(lab: BenchLab, day: date, artifacts: int, options: argparse.Namespace) -> dict[str, Any]:
    lab.drop(day, artifacts, options.files)
    run_id = lab.start(day)
    lab.follow(run_id, options.seconds)
    run = lab.api.ask("GET", f"/dags/{lab.dag_id}/dagRuns/{run_id}")
    told = max(
        (one.ended for one in ran(lab.tasks(run_id)) if one.task == "announce"), default=seconds(run["end_date"])
    )
    return {
        "began": seconds(run["queued_at"]),
        "ended": told,
        "night_s": told - seconds(run["queued_at"]),
        "published": sum(one.state.good for one in lab.publications(run_id)),
    }


class Backfill:
    """A backfill of the dates from `first` on, by the command that operators use."""

    def __init__(self, lab: BenchLab, first: date) -> None:
        self.lab = lab
        self.dates = [first + timedelta(days=number) for number in range(DATES)]
        self.id = 0

    def begin(self, artifacts: int, files: int) -> None:
        """Drop the builds, start it, and wait until the first of its artifacts are at work."""
        for day in self.dates:
            self.lab.drop(day, artifacts, files)
        asked = ("--dag-id", self.lab.dag_id, "--from-date", f"{self.dates[0]}", "--to-date", f"{self.dates[-1]}T23:59")
        self.lab.airflow("backfill", "create", *asked)
        found = self.lab.api.ask("GET", "/backfills", params={"dag_id": self.lab.dag_id, "order_by": "-id"})[
            "backfills"
        ]
        self.id = int(found[0]["id"])
        deadline = time.monotonic() + UNDER_WAY_S
        while not any(one["task_id"] == "artifact.prepare" and one["start_date"] for one in self._tasks()):
            if time.monotonic() > deadline:
                raise LabError(f"the backfill of {self.dates[0]} prepares nothing after {UNDER_WAY_S:.0f} s")
            time.sleep(1.0)  # Airflow offers no event stream

    def end(self, night: dict[str, Any]) -> int:
        """Cancel what is left of it; how many of its tasks ended while the night ran."""
        instances = self._tasks()
        open_runs = [run["dag_run_id"] for run in self._runs() if run["state"] not in ENDED]
        if not open_runs:
            say(f"the backfill of {self.dates[0]} ended before the night: take more artifacts")
            return 0
        self.lab.api.ask("PUT", f"/backfills/{self.id}/cancel")
        for run_id in open_runs:
            self.lab.api.ask("PATCH", f"/dags/{self.lab.dag_id}/dagRuns/{run_id}", json={"state": "failed"})
        deadline = time.monotonic() + UNDER_WAY_S
        while any(one["state"] in {"running", "queued", "scheduled", "deferred"} for one in self._tasks()):
            if time.monotonic() > deadline:
                raise LabError("what is left of the backfill does not end")
            time.sleep(1.0)
        return sum(night["began"] < one.ended < night["ended"] for one in ran(instances))

    def _runs(self) -> list[dict[str, Any]]:
        wanted = {f"backfill__{day}" for day in self.dates}
        return [
            run for run in self.lab.api.runs(self.lab.dag_id, prefix="backfill__") if run["dag_run_id"][:20] in wanted
        ]

    def _tasks(self) -> list[dict[str, Any]]:
        return [one for run in self._runs() for one in self.lab.tasks(run["dag_run_id"])]


@dataclass
class Latest:
    """Reads where the slot's `latest` leads, again and again, through the public URL and with the public key only.

    ``seen``: the builds it led to, in order; ``wrong``: each move to an earlier one, and each reading that failed.
    """

    lab: BenchLab
    samples: int = 0
    seen: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Latest:
        self._thread = threading.Thread(target=self._watch, name="latest")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def note(self, build: str) -> None:
        """One reading: the build it led to. Their ids sort as their dates do."""
        self.samples += 1
        if self.seen and build < self.seen[-1]:
            self.wrong.append(f"from {self.seen[-1]} back to {build}")
        if not self.seen or build != self.seen[-1]:
            self.seen.append(build)

    def _watch(self) -> None:
        path = f"/nightlies/{self.lab.slot.name}/latest"
        while not self._stop.wait(SAMPLE_S):
            try:
                entry = self.lab.site.repository(self.lab.slot.repository).revision.lookup(path)
                if entry is None:
                    raise LabError(f"{path} is not there")
                self.note(entry.symlink.rpartition("/")[2])
            except Exception as error:  # noqa: BLE001 - whatever it is, a client would have had it, too
                self.wrong.append(f"{type(error).__name__}: {error}")


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=int, default=24, help="of each night, and of each past date")
    parser.add_argument("--files", type=int, default=20, help="files in each artifact that all platforms have alike")
    parser.add_argument("--order", default="ABBA", help="A: a night alone, B: one beside a backfill")
    parser.add_argument("--seconds", type=float, default=900.0, help="how long a night may take")
    parser.add_argument("--results", default=str(Path(__file__).parent / "results"))
    options = parser.parse_args(arguments)
    if set(options.order) != {"A", "B"}:
        parser.error("--order needs nights of both kinds, A and B")
    return options


if __name__ == "__main__":
    sys.exit(main())
