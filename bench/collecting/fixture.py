"""A repository with garbage: builds that stand, builds that were removed before two moments, and many young revisions.

Trees, catalogs, reflog and manifest are made by the library's own parts in a folder, where that is quick, and copied
into the store that is measured; the objects of the files go there directly, in parallel.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.collecting import objects
from bench.publishing.places import Place
from bench.publishing.repositories import FQRN, TOP
from include.cvmfs.commit.commit import Head, switch
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.metadata_objects import Records
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import Algorithm, path_hash
from include.cvmfs.format.keys import Signer, format_public_key, generate_master, generate_repository_key, save_signer
from include.cvmfs.format.schema import Counts
from include.storage.open import open_store
from include.storage.store import Store

HOUR_S = 3600
FOUNDED_H, FIRST_H, SECOND_H, YOUNG_H = 480, 240, 30, 20
"""How long ago the repository began, the first and the second garbage were removed, and the young revisions began."""
FIRST_GRACE_H, SECOND_GRACE_H = 72, 24
"""Graces by which the first garbage goes, and by which the second one goes too; the young revisions never do."""
_PART = 50  # builds in a directory with a catalog of its own
_AT_ONCE = 50  # builds in a revision
_DIRECTORY = Dirent("", 0o40755, size=4096, mtime=1_780_000_000, linkcount=2)


@dataclass(frozen=True, slots=True)
class Plan:
    """``live``, ``first``, ``second``: builds; ``files``: of each. ``revisions``: young ones. ``orphans``: objects."""

    live: int
    first: int
    second: int
    files: int
    revisions: int
    orphans: int = 0

    @classmethod
    def of(cls, total: int, garbage: int, files: int, revisions: int, *, orphans: bool) -> Plan:
        """So many objects of which so many are garbage: a fifth of that is left for the second collection."""
        lost = garbage // 10 if orphans else 0
        second = max(1, garbage // 5 // files)
        first = max(1, (garbage - lost) // files - second)
        live = max(1, (total - lost) // files - first - second)
        return cls(live, first, second, files, revisions, lost)

    @property
    def builds(self) -> Iterator[tuple[str, int]]:
        """Path and number of each build, the live ones first."""
        number = 0
        for group, count in (("live", self.live), ("first", self.first), ("second", self.second)):
            for at in range(count):
                yield f"{TOP}/{group}/part{at // _PART:03d}/build{at:05d}", number
                number += 1

    def numbers_of(self, build: int) -> range:
        return range(build * self.files, (build + 1) * self.files)

    @property
    def total(self) -> int:
        """Objects of files."""
        return (self.live + self.first + self.second) * self.files + self.orphans

    @property
    def second_build(self) -> int:
        """The first build of the second garbage."""
        return self.live + self.first


@dataclass(frozen=True, slots=True)
class Built:
    """Where the keys are, and how long it took."""

    keys: Path
    public_key: Path
    catalogs_s: float
    objects_s: float


def build(plan: Plan, place: Place, folder: Path) -> Built:
    """Make the repository at a place, as its owner opens it; ``folder``: for what it is copied from, and the keys."""
    keys, started = folder / "keys", time.monotonic()
    keys.mkdir(parents=True)
    template = open_store((folder / "template").as_uri())
    signer = _write_history(plan, template, keys)
    _copy(template, place)
    catalogs_s = time.monotonic() - started
    objects_s = objects.put(place, range(plan.total - plan.orphans))
    if plan.orphans:
        objects_s += objects.put(place, range(objects.ORPHANS, objects.ORPHANS + plan.orphans), aged=True)
    save_signer(keys, FQRN, signer)
    return Built(keys, keys / f"{FQRN}.pub", catalogs_s, objects_s)


def _write_history(plan: Plan, store: Store, keys: Path) -> Signer:
    now = int(time.time())
    founded = datetime.fromtimestamp(now - FOUNDED_H * HOUR_S, UTC)
    master, signer = generate_master(), generate_repository_key(FQRN, founded)
    (keys / f"{FQRN}.pub").write_bytes(format_public_key(master.public_key()))
    writer = _Writer(store, create_repository(store, FQRN, master=master, signer=signer, now=founded), signer)
    builds = list(plan.builds)
    for start in range(0, len(builds), _AT_ONCE):
        edit = writer.edit()
        for path, number in builds[start : start + _AT_ONCE]:
            _make_above(edit, path)
            edit.make_nested(path, _DIRECTORY)
            _fill(edit, path, plan.numbers_of(number))
        writer.publish(edit, now - FOUNDED_H * HOUR_S + start)
    for group, hours in (("first", FIRST_H), ("second", SECOND_H)):
        edit = writer.edit()
        edit.remove(f"{TOP}/{group}")
        writer.publish(edit, now - hours * HOUR_S)
    step = (YOUNG_H - 1) * HOUR_S / max(1, plan.revisions)
    for revision in range(plan.revisions):
        edit = writer.edit()
        path, number = builds[revision % plan.live]
        _add(edit, path, f"later{revision:05d}", plan.numbers_of(number)[0])
        writer.publish(edit, int(now - YOUNG_H * HOUR_S + revision * step))
    return signer


class _Writer:
    """The head of a repository that nobody else writes to."""

    def __init__(self, store: Store, head: Head, signer: Signer) -> None:
        self._store = store
        self._head = head
        self._signer = signer
        self._catalogs = CatalogCache(store)
        self._records = Records()

    def edit(self) -> Edit:
        return Edit(self._catalogs, self._head.manifest.root)

    def publish(self, edit: Edit, now: int) -> None:
        new = edit.finish(now)
        self._head = switch(self._store, self._head, new, signer=self._signer, now=now, records=self._records)
        edit.close()


def _make_above(edit: Edit, path: str) -> None:
    steps = path.split("/")[1:-1]
    for depth in range(len(steps)):
        above = "/" + "/".join(steps[: depth + 1])
        if edit.nested_at(above) is None:
            edit.make_nested(above, _DIRECTORY)


def _fill(edit: Edit, directory: str, numbers: range) -> None:
    parent, size, rows = path_hash(directory), 0, []
    for number in numbers:
        entry = _file(f"file{number:09d}", number)
        rows.append((*path_hash(f"{directory}/{entry.name}"), *parent, *entry.to_row()))
        size += entry.size
    edit.add_rows(directory, rows, [], Counts(regular=len(rows), file_size=size))


def _add(edit: Edit, directory: str, name: str, number: int) -> None:
    entry = _file(name, number)
    row = (*path_hash(f"{directory}/{name}"), *path_hash(directory), *entry.to_row())
    edit.add_rows(directory, [row], [], Counts(regular=1, file_size=entry.size))


def _file(name: str, number: int) -> Dirent:
    return Dirent(
        name, 0o100644, size=len(objects.content(number)), mtime=1_780_000_000, hash=objects.packed(number)[0],
        algorithm=Algorithm.SHA1,
    )  # fmt: skip


def _copy(template: Store, place: Place) -> None:
    """Everything, the manifest and what is beside it last."""
    store = place.open()
    keys = sorted((found.key for found in template.list()), key=lambda key: key.startswith(".cvmfs"))
    with ThreadPoolExecutor(place.connections) as pool:
        for _ in pool.map(lambda key: store.put(key, template.get(key)), keys):
            pass
