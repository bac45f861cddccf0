"""The prepared changes of the publishers: two trees each for its destination, which it hangs there in turn."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.publishing.places import Place
from bench.publishing.production import bench_site
from bench.publishing.repositories import FQRN, TOP
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import prepare
from include.cvmfs.sources.tarball import TarSource

TREES = 2
FILES = 3


@dataclass(frozen=True, slots=True)
class Work:
    """What one publisher does: its destination, and the changesets that it hangs there one after another.

    ``turn``: how often it has done so before.
    """

    name: str
    destination: str
    changesets: tuple[Changeset, ...]
    turn: int = 0

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "changesets": [changeset.format().decode() for changeset in self.changesets]}

    @classmethod
    def from_json(cls, job: dict[str, Any]) -> Work:
        changesets = tuple(Changeset.parse(text) for text in job["changesets"])
        return cls(job["name"], changesets[0].destination, changesets, job["turn"])


def prepared(place: Place, publishers: int, slots: int) -> list[Work]:
    """Trees of a few small files for as many publishers, spread over ``slots`` nightly slots, stored but not hung."""
    store = place.open()
    found = []
    for number in range(publishers):
        destination = f"{TOP}/slot{number % slots:02d}/project{number:02d}"
        changesets = [
            prepare(
                TarSource(io.BytesIO(_tarball(number, tree)), "bench.tar"),
                store=store, fqrn=FQRN, destination=destination, now=datetime.now(UTC),
            )
            for tree in range(TREES)
        ]  # fmt: skip
        found.append(Work(f"publisher{number:02d}", destination, tuple(changesets)))
    return found


def reserve(place: Place, public_key: Path, client: dict[str, str], destinations: Sequence[str]) -> int:
    """An empty nested catalog at each destination, all in one revision; returns that."""
    with tempfile.TemporaryDirectory() as var:
        publisher = bench_site(place, client, public_key, Path(var)).publisher(FQRN)
        return publisher.reserve(destinations, nested=(), holder="bench", now=datetime.now(UTC)).revision


def _tarball(publisher: int, tree: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(FILES):
            content = f"file {number} of tree {tree} of publisher {publisher}\n".encode()
            member = tarfile.TarInfo(f"file{number}")
            member.size, member.mtime = len(content), 1_790_000_000
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
