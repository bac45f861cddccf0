"""Makes a real build of this machine's software and drops it into a store as a build system would: the index last."""

import datetime
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from include.nightlies.errors import BadIndex
from include.nightlies.rules.index import Artifact, BuildIndex
from include.storage.errors import Conflict, NotFound
from include.storage.store import Store, Version
from lab.errors import FOREIGN_INDEX
from lab.software import INTERPRETER, PROJECTS, REQUIRES, Job, PackedArchive, default_platforms, pack

UPLOADERS = 4
MADE_BY = "nightshift demonstration"
"""Of an index that the demonstration made, in its field `made_by`; no other one is replaced."""


@dataclass(frozen=True, slots=True)
class PackedBuild:
    """A build in its store; `files`: None if it was there already."""

    index: BuildIndex
    index_key: str
    packed: bool
    reason: str
    files: int | None

    @property
    def size(self) -> int:
        """Bytes of all archives."""
        return sum(artifact.size for artifact in self.index.artifacts)


@dataclass(frozen=True, slots=True)
class _Order:
    """A build of a slot and date, and its place in a store."""

    store: Store
    slot: str
    date: datetime.date
    index_key: str
    projects: tuple[str, ...]
    platforms: tuple[str, ...]

    def key(self, project: str, platform: str) -> str:
        # below a folder that no build system has
        return f"demonstration/{self.slot}/{self.date.isoformat()}/{project}-{platform}.tar.zst"

    @property
    def cure(self) -> str:
        return f"To install that build: nightshift nightly install --slot {self.slot} --date {self.date}"

    def own_index(self) -> tuple[bytes | None, Version | None]:
        """The index as the demonstration left it, or None without one; raises LabError for an index of others."""
        try:
            data, version = self.store.get_versioned(self.index_key)
        except NotFound:
            return None, None
        try:
            document = json.loads(data)
        except ValueError:
            document = None
        if not isinstance(document, dict) or document.get("made_by") != MADE_BY:
            what = "was not made by the demonstration; nothing was changed"
            raise FOREIGN_INDEX(f"{self.store.url}/{self.index_key} {what}. {self.cure}")
        return data, version

    def stored(self, data: bytes | None) -> BuildIndex | None:
        """The build in the store, if it has all that is asked for and every archive is there in its size."""
        if data is None:
            return None
        try:
            index = BuildIndex.parse(data, slot=self.slot, build_date=self.date, file=self.index_key)
        except BadIndex:
            return None
        offered = {(artifact.project, artifact.platform) for artifact in index.artifacts}
        if not index.complete or not offered.issuperset(product(self.projects, self.platforms)):
            return None
        for artifact in index.artifacts:
            archive = self.store.head(artifact.url)
            if archive is None or archive.size != artifact.size:
                return None
        return index

    def upload(self, packed: PackedArchive) -> PackedArchive:
        self.store.put(self.key(packed.project, packed.platform), packed.path.read_bytes())
        packed.path.unlink()
        return packed

    def artifact(self, packed: PackedArchive) -> Artifact:
        needs = () if packed.project == INTERPRETER else (INTERPRETER, *REQUIRES.get(packed.project, ()))
        return Artifact(
            packed.project, packed.platform, self.key(packed.project, packed.platform), packed.size, packed.sha256,
            dependencies=tuple(project for project in needs if project in self.projects),
        )  # fmt: skip


def pack_build(
    store: Store,
    *,
    slot: str,
    date: datetime.date,
    index_key: str,
    cache: Path,
    projects: Sequence[str] = (),
    platforms: Sequence[str] = (),
    rebuild: bool = False,
    processes: int | None = None,
    progress: Callable[[PackedArchive], None] = lambda _: None,
) -> PackedBuild:
    """Packs the build of a date unless it is in the store already, or with `rebuild` even then.

    Args:
        store: where the slot's builds are dropped; it must be writable.
        index_key: the index's key in that store.
        cache: a folder for compiled code and archives under way.
        projects: packages of the environment, or "python" for the interpreter; by default a choice of both.
        platforms: names whose last part is how modules are compiled: opt or dbg.
        progress: called as each archive is stored.

    Raises LabError: the machine lacks a project, or the index is not the demonstration's; nothing was stored then.
    """
    order = _Order(store, slot, date, index_key, tuple(projects) or PROJECTS, tuple(platforms) or default_platforms())
    data, version = order.own_index()
    if not rebuild and (complete := order.stored(data)):
        return PackedBuild(complete, index_key, packed=False, reason="already in the store, complete", files=None)
    pairs = list(product(order.projects, order.platforms))
    jobs = [Job(*pair, date, cache / "code", cache / "archives" / order.key(*pair)) for pair in pairs]
    done: dict[tuple[str, str], PackedArchive] = {}
    # Processes by spawn: a store's threads would not survive a fork.
    with (
        ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as packers,
        ThreadPoolExecutor(UPLOADERS) as uploaders,
    ):
        under_way = [packers.submit(pack, job) for job in jobs]
        uploads = [uploaders.submit(order.upload, future.result()) for future in as_completed(under_way)]
        for upload in as_completed(uploads):
            packed = upload.result()
            done[packed.project, packed.platform] = packed
            progress(packed)
    artifacts = tuple(order.artifact(done[pair]) for pair in pairs)
    index = BuildIndex(slot, date.isoformat(), date, complete=True, artifacts=artifacts)
    try:
        marked = json.dumps({"made_by": MADE_BY, **json.loads(index.format())}, indent=1)
        store.replace(index_key, marked.encode() + b"\n", expected=version)
    except Conflict as error:
        what = "was written by another while the build was packed; it stays, and names none of the new archives"
        raise FOREIGN_INDEX(f"{store.url}/{index_key} {what}. {order.cure}") from error
    files = sum(packed.files for packed in done.values())
    return PackedBuild(index, index_key, packed=True, reason="packed", files=files)
