"""Makes a real build of this machine's software and drops it into a store as a build system would: the index last."""

import datetime
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
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


def pack_build(
    store: Store,
    *,
    slot: str,
    date: datetime.date,
    index_key: str,
    cache: Path,
    projects: Sequence[str] = (),
    platforms: Sequence[str] = (),
    change_seed: str = "",
    rebuild: bool = False,
    processes: int | None = None,
    progress: Callable[[PackedArchive], None] = lambda _: None,
) -> PackedBuild:
    """Packs the build of a date unless it is in the store already.

    Args:
        store: where the slot's builds are dropped; it must be writable.
        index_key: the index's key in that store.
        cache: a folder for compiled code and archives under way.
        projects: packages of the environment, or "python" for the interpreter; by default a choice of both.
        platforms: names whose last part is how modules are compiled: opt or dbg.
        change_seed: another seed changes other files on each day.
        rebuild: pack it even if it is there.
        progress: called as each archive is stored.

    Raises:
        LabError: the machine lacks a project, or the index is not the demonstration's; nothing was stored then.
        StoreError: the store refused.
    """
    projects, platforms = tuple(projects) or PROJECTS, tuple(platforms) or default_platforms()
    data, version = _own_index(store, index_key, slot, date)
    if not rebuild and (there := _stored(store, data, index_key, slot, date, projects, platforms)):
        return PackedBuild(there, index_key, packed=False, reason="already in the store, complete", files=None)
    jobs = [
        Job(
            project,
            platform,
            date,
            change_seed,
            cache / "code",
            cache / "archives" / _key(slot, date, project, platform),
        )
        for project in projects
        for platform in platforms
    ]
    done: dict[tuple[str, str], PackedArchive] = {}
    # Processes by spawn: a store's threads would not survive a fork.
    with (
        ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as packers,
        ThreadPoolExecutor(UPLOADERS) as uploaders,
    ):
        under_way = [packers.submit(pack, job) for job in jobs]
        uploads = [uploaders.submit(_upload, store, slot, date, future.result()) for future in as_completed(under_way)]
        for upload in as_completed(uploads):
            packed = upload.result()
            done[packed.project, packed.platform] = packed
            progress(packed)
    artifacts = tuple(_artifact(slot, date, done[job.project, job.platform], projects) for job in jobs)
    index = BuildIndex(slot, date.isoformat(), date, complete=True, artifacts=artifacts)
    try:
        marked = json.dumps({"made_by": MADE_BY, **json.loads(index.format())}, indent=1)
        store.replace(index_key, marked.encode() + b"\n", expected=version)
    except Conflict as error:
        what = "was written by another while the build was packed; it stays, and names none of the new archives"
        raise FOREIGN_INDEX(f"{store.url}/{index_key} {what}. {_cure(slot, date)}") from error
    files = sum(packed.files for packed in done.values())
    return PackedBuild(index, index_key, packed=True, reason="packed", files=files)


def _own_index(store: Store, key: str, slot: str, date: datetime.date) -> tuple[bytes | None, Version | None]:
    """The index as the demonstration left it, None if there is none; raises LabError for an index of others."""
    try:
        data, version = store.get_versioned(key)
    except NotFound:
        return None, None
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("made_by") != MADE_BY:
        raise FOREIGN_INDEX(
            f"{store.url}/{key} was not made by the demonstration; nothing was changed. {_cure(slot, date)}"
        )
    return data, version


def _cure(slot: str, date: datetime.date) -> str:
    return f"To install that build: nightshift nightly install --slot {slot} --date {date}"


def _stored(
    store: Store,
    data: bytes | None,
    index_key: str,
    slot: str,
    date: datetime.date,
    projects: Sequence[str],
    platforms: Sequence[str],
) -> BuildIndex | None:
    """The build in the store, if it has all that is wanted and every archive is there in its size."""
    if data is None:
        return None
    try:
        index = BuildIndex.parse(data, slot=slot, build_date=date, file=index_key)
    except BadIndex:
        return None
    offered = {(artifact.project, artifact.platform): artifact for artifact in index.artifacts}
    wanted = {(project, platform) for project in projects for platform in platforms}
    if not index.complete or not wanted <= offered.keys():
        return None
    for artifact in index.artifacts:
        found = store.head(artifact.url)
        if found is None or found.size != artifact.size:
            return None
    return index


def _upload(store: Store, slot: str, date: datetime.date, packed: PackedArchive) -> PackedArchive:
    store.put(_key(slot, date, packed.project, packed.platform), packed.path.read_bytes())
    packed.path.unlink()
    return packed


def _artifact(slot: str, date: datetime.date, packed: PackedArchive, projects: Sequence[str]) -> Artifact:
    needs = () if packed.project == INTERPRETER else (INTERPRETER, *REQUIRES.get(packed.project, ()))
    return Artifact(
        project=packed.project,
        platform=packed.platform,
        url=_key(slot, date, packed.project, packed.platform),
        size=packed.size,
        sha256=packed.sha256,
        dependencies=tuple(project for project in needs if project in projects),
    )


def _key(slot: str, date: datetime.date, project: str, platform: str) -> str:
    # below a folder that no build system has
    return f"demonstration/{slot}/{date.isoformat()}/{project}-{platform}.tar.zst"
