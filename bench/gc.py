"""Collections: how fast they mark and delete against a floor of the same run, and what publishers notice of them.

A repository is built with removed builds and many young revisions. The first collection runs alone: marking, cold and
warm, and sweeping, between two halves of the floor (plain multi-deletes of as many keys by the same key). The second
one runs beside four publishers, of which one needs what is being deleted. With the curve the first one is done for
several sizes. Ends in one line of JSON; figures and plots go to the folder of results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.collecting import objects
from bench.collecting.fixture import FIRST_GRACE_H, SECOND_GRACE_H, Built, Plan, build
from bench.collecting.stores import FLOOR, RolePlaces, opened
from bench.plot import Series, line_plot
from bench.publishing import lab
from bench.publishing.machine import BENCH, ROOT, Ran, description, run
from bench.publishing.repositories import FQRN
from include.cvmfs.check.check import check
from include.cvmfs.revision.repository import Repository
from include.storage.buckets import Role

CURVE = (0.25, 1.0, 4.0)
LOOPS = 3
SAMPLE = 200
WANTED = {"ratio_to_floor": 0.9, "mark_entries_per_s": 600_000, "excluded_s": 1.0}


@dataclass(slots=True)
class Alone:
    """The first collection and its floor."""

    plan: Plan
    built: Built
    cold: Ran
    collected: Ran
    floors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = self.collected.outcome["report"]
        return report

    @property
    def seconds(self) -> dict[str, float]:
        seconds: dict[str, float] = self.report["seconds"]
        return seconds

    @property
    def deletes_per_s(self) -> float:
        return self.report["deleted"] / self.seconds["sweep"]

    @property
    def floor_per_s(self) -> float:
        return sum(one["keys"] for one in self.floors) / sum(one["seconds"] for one in self.floors)

    @property
    def mark_per_s(self) -> float:
        return self.report["entries"] / self.seconds["mark"]

    def peak_mb(self, ran: Ran) -> float:
        return float(max(ran.rss_mb, ran.outcome["rss_mb"]))

    @property
    def cold_per_s(self) -> float:
        report = self.cold.outcome["report"]
        return float(report["entries"] / report["seconds"]["mark"])


@dataclass(frozen=True, slots=True)
class Beside:
    """The second collection, and the publishers beside it. Rates are commits a second of all of them.

    ``excluded_s``: how long any commit was under way that was refused since the collection went on.
    """

    report: dict[str, Any]
    alone_per_s: float
    during_per_s: float
    excluded_s: float
    moved: int
    condemned: dict[str, Any]

    @property
    def ratio(self) -> float:
        return self.during_per_s / self.alone_per_s if self.alone_per_s else 0.0


class Bench:
    """One repository of one size in a store."""

    def __init__(self, places: RolePlaces, plan: Plan, scratch: Path) -> None:
        self._places = places
        self._plan = plan
        self._scratch = scratch
        scratch.mkdir(parents=True)
        self._built = build(plan, places.owner.below(FQRN), scratch)

    def alone(self) -> Alone:
        """The first collection, with nobody else there."""
        halves = self._floor_keys()
        cold = self._collect(FIRST_GRACE_H, dry_run=True)
        floors = [self._floor(halves[0])]
        collected = self._collect(FIRST_GRACE_H)
        floors.append(self._floor(halves[1]))
        return Alone(self._plan, self._built, cold, collected, floors)

    def beside(self, seconds: float) -> Beside:
        """The second collection, after publishers had so many seconds for themselves."""
        gateway = self._places.of(Role.GATEWAY)
        numbers = self._plan.numbers_of(self._plan.second_build)
        with lab.gateway(gateway, self._built.keys, self._scratch / "gateway.db") as client:
            job = {
                **client,
                "place": self._places.of(Role.PUBLISHER).with_connections(8).as_json(),
                "public_key": str(self._built.public_key),
                "loops": LOOPS,
                "numbers": [numbers.start, numbers.stop],
            }
            with _publishing(job) as publishing:
                began = time.time()
                time.sleep(seconds)
                collected = self._collect(SECOND_GRACE_H)
                ended = time.time()
                time.sleep(min(1.0, seconds))
            told = json.loads(publishing[0])
        return _judged(told, began, collected.outcome, ended)

    def faults(self) -> list[str]:
        """What is wrong with what is left."""
        store, key = self._places.of(Role.PUBLISHER).open(), self._built.public_key.read_bytes()
        report = check(Repository.open(store, fqrn=FQRN, public_keys=[key], now=datetime.now(UTC)), quick=True)
        found = [f"check: {problem.as_dict()}" for problem in report.problems[:5]]
        live = self._plan.live * self._plan.files
        garbage = range(live, live + self._plan.first * self._plan.files)
        for numbers, there in ((range(live), True), (garbage, False)):
            wrong = [key for key in objects.keys(_some(numbers)) if store.exists(key) is not there]
            what = "are gone that are needed" if there else "are left that nothing needs"
            found += [f"{len(wrong)} of {SAMPLE} objects {what}, as {wrong[0]}"] if wrong else []
        return found

    def _collect(self, grace_h: int, *, dry_run: bool = False) -> Ran:
        var = self._scratch / "site"
        var.mkdir(exist_ok=True)
        roles = (Role.PUBLISHER, Role.GATEWAY, Role.COLLECTOR)
        job = {
            **{role.value: self._places.of(role).as_json() for role in roles},
            "keys": str(self._built.keys),
            "public_key": str(self._built.public_key),
            "var": str(var),
            "grace_h": grace_h,
            "orphans": bool(self._plan.orphans),
            "dry_run": dry_run,
        }
        return run("bench.collecting.collector", job=job)

    def _floor_keys(self) -> list[Path]:
        """As many objects as the first collection deletes, in two lists."""
        count = self._plan.first * self._plan.files
        place = self._places.owner.below(FLOOR)
        objects.put(place, range(objects.FLOOR, objects.FLOOR + count))
        middle = objects.FLOOR + count // 2
        lists = []
        for at, numbers in enumerate((range(objects.FLOOR, middle), range(middle, objects.FLOOR + count))):
            lists.append(self._scratch / f"floor{at}")
            lists[-1].write_text("\n".join(sorted(objects.keys(numbers))))
        return lists

    def _floor(self, keys: Path) -> dict[str, Any]:
        place = self._places.of(Role.COLLECTOR, FLOOR).as_json()
        outcome: dict[str, Any] = run("bench.collecting.floors", job={"place": place, "keys": str(keys)}).outcome
        return {**outcome, "keys": len(keys.read_text().split())}


@contextmanager
def _publishing(job: dict[str, Any]) -> Iterator[list[str]]:
    """Publishers while the block lasts; afterwards the list holds what they said."""
    said: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.collecting.publishers"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError("the publishers did not become ready")
        yield said
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the publishers ended with code {process.returncode}")
        said.append(output.splitlines()[-1])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _judged(told: dict[str, Any], began: float, collected: dict[str, Any], ended: float) -> Beside:
    committed, start = told["committed"], collected["began"]
    before = [at for at in committed if began <= at < start]
    during = [at for at in committed if start <= at <= ended]
    return Beside(
        collected["report"],
        len(before) / (start - began),
        len(during) / (ended - start),
        _covered(told["lost"]),
        len(told["lost"]),
        told["condemned"],
    )


def _covered(spans: list[list[float]]) -> float:
    """The length of what spans of time cover together."""
    covered, until = 0.0, 0.0
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def _some(numbers: range) -> Iterator[int]:
    return iter(numbers[:: max(1, len(numbers) // SAMPLE)][:SAMPLE])


def main() -> int:
    options = _options()
    machine = description()
    print(f"machine: {machine}")
    sizes = [share for share in CURVE if share != 1.0] if options.curve else []
    rows: list[Alone] = []
    for share in [1.0, *sizes]:
        plan = _plan(options, share)
        print(f"{options.store}: {plan.total:,} objects, {plan}", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-"))
        try:
            with opened(options.store, folder, options.connections) as places:
                bench = Bench(places, plan, folder / "scratch")
                rows.append(bench.alone())
                _tell(rows[-1])
                if share == 1.0:
                    beside = bench.beside(options.seconds)
                    _tell_beside(beside)
                    faults = bench.faults()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for fault in faults:
        print(f"WRONG: {fault}")
    result = _figures(rows[0], beside) | {
        "store": options.store.split(":")[0],
        "machine": machine,
        "faults": len(faults),
    }
    if sizes:
        result["curve"] = [_row(one) for one in sorted(rows, key=lambda one: one.plan.total)]
        _write(Path(options.results), result)
    print(json.dumps(result))
    return 1 if faults else 0


def _plan(options: argparse.Namespace, share: float) -> Plan:
    on_disk = options.store.startswith("file")
    total, garbage = int(options.objects * share), int(options.garbage * share)
    return Plan.of(total, garbage, options.files, options.revisions, orphans=on_disk)


def _tell(one: Alone) -> None:
    seconds = " ".join(f"{what} {value:.2f}" for what, value in one.seconds.items())
    batch = one.floors[0]["batch"]
    print(
        f"built in {one.built.catalogs_s:.0f} + {one.built.objects_s:.0f} s\n"
        f"mark: {one.mark_per_s:,.0f} entries/s warm (wanted: {WANTED['mark_entries_per_s']:,}), "
        f"{one.cold_per_s:,.0f} cold, of {one.report['entries']:,} in {one.report['catalogs']:,} catalogs\n"
        f"sweep: {one.deletes_per_s:,.0f} deletions/s of {one.report['deleted']:,}, floor {one.floor_per_s:,.0f} "
        f"({batch} to a request): {one.deletes_per_s / one.floor_per_s:.2f} of it (wanted: "
        f"{WANTED['ratio_to_floor']})\ns: {seconds}; {one.peak_mb(one.collected):.0f} MB",
        flush=True,
    )
    for what in ("notes", "failed", "lost"):
        if one.report[what]:
            print(f"  {what}: {one.report[what]}")


def _tell_beside(one: Beside) -> None:
    print(
        f"beside publishers: {one.during_per_s:.1f} commits/s, {one.alone_per_s:.1f} without ({one.ratio:.2f}); "
        f"{one.moved} commits were made again, after {one.excluded_s:.2f} s in vain (wanted: {WANTED['excluded_s']}); "
        f"barrier {one.report['seconds'].get('barrier', 0):.2f} s, {one.report['deleted']:,} deleted; "
        f"condemned content: {one.condemned}",
        flush=True,
    )


def _figures(alone: Alone, beside: Beside) -> dict[str, Any]:
    hours = 4_000_000 / alone.deletes_per_s / 3600
    print(f"4 M deletions take {hours:.1f} h, {4_000_000 / alone.floor_per_s / 3600:.1f} h at the floor")
    return {
        "objects": alone.plan.total,
        "garbage": alone.report["deleted"] + beside.report["deleted"],
        "deletes_per_s": round(alone.deletes_per_s, 1),
        "floor_deletes_per_s": round(alone.floor_per_s, 1),
        "ratio_to_floor": round(alone.deletes_per_s / alone.floor_per_s, 3),
        "mark_entries_per_s": round(alone.mark_per_s),
        "mark_cold_entries_per_s": round(alone.cold_per_s),
        "excluded_s": round(beside.excluded_s, 3),
        "commits_during_ratio": round(beside.ratio, 3),
        "condemned_wait_s": round(beside.condemned.get("wait_s", 0.0), 3),
        "rss_mb": round(alone.peak_mb(alone.collected)),
        "floor_batch": alone.floors[0]["batch"],
        "revisions": alone.plan.revisions,
        "hours_for_4m_deletes": round(hours, 2),
        "seconds": alone.seconds,
    }


def _row(one: Alone) -> dict[str, Any]:
    return {
        "objects": one.plan.total,
        "deleted": one.report["deleted"],
        "entries": one.report["entries"],
        "rss_mb": round(one.peak_mb(one.collected)),
        "cold_rss_mb": round(one.peak_mb(one.cold)),
        "seconds": one.seconds,
        "cold_mark_s": one.cold.outcome["report"]["seconds"]["mark"],
    }


def _write(folder: Path, result: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name, rows = f"gc-{result['store']}", result["curve"]
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    title = f"collections of a quarter of all objects, {result['store']}"

    def series(what: str) -> Series:
        return Series(what, [(row["objects"] / 1000, row["seconds"].get(what, 0.0)) for row in rows])

    plot = line_plot(title, "thousand objects", "seconds", [series(what) for what in ("mark", "weigh", "sweep")])
    (folder / f"{name}-time.svg").write_text(plot)
    memory = [Series("peak", [(row["objects"] / 1000, row["rss_mb"]) for row in rows])]
    (folder / f"{name}-memory.svg").write_text(line_plot(title, "thousand objects", "MB", memory))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=400_000)
    parser.add_argument("--garbage", type=int, default=100_000, help="of these")
    parser.add_argument("--files", type=int, default=1000, help="in each build")
    parser.add_argument("--revisions", type=int, default=1000, help="within the grace")
    parser.add_argument("--store", default="weed", help="weed, radosgw, file (temporary folder) or file:///folder")
    parser.add_argument("--seconds", type=float, default=15.0, help="of commits before the second collection")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--curve", type=int, default=0, help="1: also a quarter and four times as many objects")
    parser.add_argument("--results", default=str(BENCH / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
