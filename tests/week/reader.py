"""A reader of the repository, by the public URL and the public key alone: where the links lead, moment by moment."""

from __future__ import annotations

import posixpath
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.storage.errors import StoreError
from include.storage.store import Store
from tests.week.trees import STAMP

EVERY_S = 0.25
CATALOGS_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Led:
    """Where a link led. `lacking`: what that build had not, at that revision; a build that is whole lacks nothing."""

    target: str
    lacking: tuple[str, ...] = ()


@dataclass(slots=True)
class Sample:
    """One revision as it was read, from the first look to the last, in seconds of the week; `looks`: how many."""

    revision: int
    links: Mapping[str, Led]
    first_s: float
    last_s: float
    looks: int = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What makes a build whole. `required`: destinations by the build's directory; `stamps`: by each destination, the
    objects of the file that says which tree it is, of every tree that may stand there."""

    required: Mapping[str, Iterable[str]]
    stamps: Mapping[str, frozenset[str]]


@dataclass
class Reader:
    """Looks at the repository until it is stopped. `faults`: what it could not read, and when. `at`: the moment that
    decides whether its whitelist is in force; by default the present one."""

    store: Store
    key: bytes
    fqrn: str
    links: tuple[str, ...]
    wanted: Wanted
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0
    at: datetime | None = None

    def __post_init__(self) -> None:
        self._catalogs = CatalogCache(self.store, budget=CATALOGS_BYTES)
        self._judged: dict[tuple[str, str], tuple[str, ...]] = {}
        self._revision = 0
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="reader", daemon=True)

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Ends after the look that is under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def now_s(self) -> float:
        """Seconds of the week."""
        return time.monotonic() - self._began

    def look(self) -> Sample:
        """One look. Raises CvmfsError or StoreError for what no reader should ever see."""
        found = Repository.open(
            self.store,
            fqrn=self.fqrn,
            public_keys=[self.key],
            min_revision=self._revision,
            catalogs=self._catalogs,
            now=self.at,
        )
        self._revision = found.manifest.revision
        if self.samples and self.samples[-1].revision == found.manifest.revision:
            last = self.samples[-1]
            last.last_s, last.looks = self.now_s, last.looks + 1
            return last
        led = {path: one for path in self.links if (one := self._led(found.revision, path)) is not None}
        now = self.now_s
        self.samples.append(Sample(found.manifest.revision, led, now, now))
        return self.samples[-1]

    def _work(self) -> None:
        before = self.now_s
        while not self._stop.wait(EVERY_S):
            try:
                self.look()
            except (CvmfsError, StoreError) as error:
                self.faults.append(f"{self.now_s:.1f} s: {type(error).__name__}: {error}")
            self.longest_gap_s, before = max(self.longest_gap_s, self.now_s - before), self.now_s

    def _led(self, tree: Revision, path: str) -> Led | None:
        entry = tree.lookup(path) if tree.lookup(posixpath.dirname(path)) is not None else None
        if entry is None:
            return None
        if not entry.is_symlink:
            return Led(path, ("it is no link",))
        target = followed(path, entry.symlink)
        # a nested catalog's hash stands for the whole tree, but for what its links lead to
        there = tree.nested_at(target) if tree.lookup(target) is not None else None
        if there is None:
            return Led(target, ("nothing stands there",))
        known = (target, str(there.hash))
        lacking = self._judged.get(known)
        if lacking is None or lacking:
            lacking, linked = self._lacking(tree, target)
            if not linked:
                self._judged[known] = lacking
        return Led(target, lacking)

    def _lacking(self, tree: Revision, directory: str) -> tuple[tuple[str, ...], bool]:
        """What is not there of what a build has to have, and whether any of it is there by a link only."""
        required = self.wanted.required.get(directory)
        if required is None:
            return ("it is no build of the week",), False
        lacking, linked = [], False
        for destination in required:
            real, entry = destination, tree.lookup(destination) if tree.lookup(posixpath.dirname(destination)) else None
            if entry is not None and entry.is_symlink:
                linked = True
                real = followed(destination, entry.symlink)
                entry = tree.lookup(real)
            if entry is None or not entry.is_directory:
                lacking.append(f"{destination} is not there")
                continue
            above = tree.lookup(f"{real}/{posixpath.dirname(STAMP)}")
            stamp = tree.lookup(f"{real}/{STAMP}") if above is not None else None
            if stamp is None or str(stamp.hash) not in self.wanted.stamps.get(real, frozenset()):
                lacking.append(f"{destination} holds {'no tree' if stamp is None else 'another tree'}")
        return tuple(lacking), linked


def followed(path: str, text: str) -> str:
    """The path that a symbolic link at `path` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), text))


def tree_of(tree: Revision) -> dict[str, str]:
    """Every path of a revision below `/nightlies`: `directory`, the text of a link, or the object of a file."""
    found = {}
    for path, entry in tree.walk("/nightlies"):
        if entry.is_directory:
            found[path] = "directory"
        elif entry.is_symlink:
            found[path] = entry.symlink
        else:
            found[path] = str(entry.hash)
    return found
