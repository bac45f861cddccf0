"""The simulated month, `make month`: 30 nights of two slots under retention, collected every night; NIGHTS=30 SEED=1.

A file store, and a clock that is moved by hand: the real preparation, judgement, commit, rules of retention and
collector, whose first 14 nights are careful; no gateway and no Airflow. After every night readers read every object of
the current revision, of those with tags, and of those that were superseded within the grace. Ends in a picture and one
line of JSON (bench/results/month.svg, month.json), and with code 1 if a reader failed or the store goes on to grow.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.plot import Series, line_plot
from include.cvmfs.collect.report import GRACE, CollectionRules
from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.tags import PruneRule, prune_by_rule
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash, hash_bytes
from include.cvmfs.revision.revision import Revision
from include.nightlies.rules.build import BuildKey
from include.nightlies.rules.retention_rules import HeldBuild, decide
from include.settings.retention import Retention
from include.storage.file import FileStore
from include.storage.store import Version
from tests.fakes.collecting import FQRN, START, Place, master, signer
from tests.fakes.publishing import Publisher

ROOT = Path(__file__).parents[2]
SLOTS = ("main", "next")
RULES = Retention.model_validate({"keep_last": 5, "keep_weekdays": {"days": ["Sun"], "weeks": 2}, "minimum": 2})
TAGS = PruneRule(keep=6, match="auto-*")
FILES, CHANGED, FILE_BYTES = 150, 30, 6000


class ClockedFiles(FileStore):
    """Its files are as old as the clock of the month says."""

    now: Callable[[], datetime] = staticmethod(lambda: START)
    written = 0
    """Bytes that were stored below ``data``: what would be there without a collection."""

    def put(self, key: str, data: bytes) -> None:
        new = key.startswith("data/") and not self.exists(key)
        super().put(key, data)
        self.written += len(data) * new
        self._age(key)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        done = super().put_if_absent(key, data)
        if done:
            self.written += len(data) * key.startswith("data/")
            self._age(key)
        return done

    def replace(self, key: str, data: bytes, *, expected: Version | None) -> Version:
        version = super().replace(key, data, expected=expected)
        self._age(key)
        return version

    def _age(self, key: str) -> None:
        os.utime(self.root / key, (self.now().timestamp(),) * 2)


@dataclass
class Revisions:
    """The roots that readers may be on, with the time of their end."""

    place: Place
    seen: dict[ObjectHash, datetime | None]

    def look(self) -> None:
        """After each change."""
        current = self.place.manifest().root
        for root, end in self.seen.items():
            if end is None and root != current:
                self.seen[root] = self.place.now
        self.seen.setdefault(current, None)

    def read_all(self) -> int:
        """Read and hash all that a reader may read; how many objects. Raises what is wrong."""
        for root, end in list(self.seen.items()):
            if end is not None and end <= self.place.now - GRACE:
                del self.seen[root]
        names: dict[str, ObjectHash] = {}
        for root in {*self.seen, *(tag.hash for tag in self.place.tags())}:
            tree = Revision(CatalogCache(self.place.store, budget=0), root)
            names.update((name.key, name) for name, _ in tree.objects_below(""))
        for key, name in names.items():
            if hash_bytes(self.place.store.get(key)).digest != name.digest:
                raise ValueError(f"{key} is damaged")
        return len(names)


class Month:
    def __init__(self, folder: Path, seed: int) -> None:
        store = ClockedFiles(folder / "store")
        create_repository(store, FQRN, master=master(), signer=signer(), now=START)
        self.place = Place(folder / "collections", store)
        store.now = lambda: self.place.now
        self.store = store
        self.publisher: Publisher = self.place.publisher()
        self.random = random.Random(seed)
        self.revisions = Revisions(self.place, {})
        self.builds: dict[str, dict[str, HeldBuild]] = {slot: {} for slot in SLOTS}
        self.trees = {slot: {f"f{number}": self._content() for number in range(FILES)} for slot in SLOTS}

    def nights(self, count: int) -> Iterator[dict[str, Any]]:
        for number in range(count):
            day = (START + timedelta(days=number)).date()
            self.place.now = START + timedelta(days=number)
            removed = 0
            for slot in SLOTS:
                self._install(slot, day, number)
                removed += self._retain(slot, day)
            prune_by_rule(self.store, FQRN, TAGS, signer=signer(), now=self.place.now)
            self.place.pass_time(hours=1)
            report = self.place.collect(CollectionRules())
            sizes = [found.size for found in self.store.list("data")]
            yield {
                "night": number + 1, "mb": round(sum(sizes) / 1e6, 2), "objects": len(sizes),
                "written_mb": round(self.store.written / 1e6, 2), "deleted": report.deleted, "careful": report.careful,
                "removed_builds": removed, "read": self.revisions.read_all(), "ok": report.ok,
            }  # fmt: skip

    def _content(self) -> bytes:
        return self.random.randbytes(FILE_BYTES)

    def _install(self, slot: str, day: date, number: int) -> None:
        for name in self.random.sample(sorted(self.trees[slot]), CHANGED):
            self.trees[slot][name] = self._content()
        directory, builds = f"/nightlies-{slot}-{day}", self.builds[slot]
        changeset = self.publisher.prepare(directory, self.trees[slot], known_from=list(builds)[-1:])
        self.place.pass_time(minutes=10)
        manifest = self.publisher.publish(changeset, NewTag(f"auto-{slot}-{day}"))
        self.revisions.look()
        builds[directory] = HeldBuild(
            directory, BuildKey(day, str(number)), str(manifest.root), self.place.now, FILES, FILES * FILE_BYTES
        )

        def link(edit: Edit) -> None:
            edit.symlink(f"/latest-{slot}", directory.removeprefix("/"), now=self.place.seconds)

        self._change(f"/latest-{slot}", link)

    def _retain(self, slot: str, day: date) -> int:
        builds = self.builds[slot]
        gone = [
            one.build.directory for one in decide(builds.values(), RULES, now=self.place.now, today=day) if one.remove
        ]
        for directory in gone:
            self._change("", lambda edit, path=directory: edit.remove(path))  # type: ignore[misc]
            del builds[directory]
        return len(gone)

    def _change(self, path: str, apply: Callable[[Edit], None]) -> None:
        self.place.pass_time(minutes=1)
        self.publisher.commit(self.publisher.change(path, apply))
        self.revisions.look()


def main() -> int:
    options = _options()
    began, nights = time.monotonic(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="month-") as folder:
        month = Month(Path(folder), options.seed)
        for night in month.nights(options.nights):
            nights.append(night)
            print(f"{time.monotonic() - began:6.1f} s  {night}", flush=True)
        problems = month.place.problems()
    third = max(1, len(nights) // 6)
    late, before = max(one["mb"] for one in nights[-third:]), max(one["mb"] for one in nights[-2 * third : -third])
    result = {
        "good": not problems and late <= before * 1.1 and all(one["ok"] for one in nights),
        "seed": options.seed, "wall_s": round(time.monotonic() - began, 1), "problems": problems,
        "last_mb": late, "before_mb": before, "written_mb": nights[-1]["written_mb"], "nights": nights,
    }  # fmt: skip
    write(Path(options.results), result)
    print(json.dumps({key: value for key, value in result.items() if key != "nights"}))
    return 0 if result["good"] else 1


def write(folder: Path, result: dict[str, Any]) -> None:
    """The figures and the picture as files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "month.json").write_text(json.dumps(result, indent=1) + "\n")
    series = [
        Series(name, [(one["night"], one[key]) for one in result["nights"]])
        for name, key in (("stored", "mb"), ("without collections", "written_mb"))
    ]
    title = "A month of two slots under retention, collected every night"
    (folder / "month.svg").write_text(line_plot(title, "night", "MB below data/", series, ticks=range(0, 31, 5)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
