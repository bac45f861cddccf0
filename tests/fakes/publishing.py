"""A publisher beside collections, in one process: the real preparation, the real judgement, and the gateway's commit.

Each method is one step, so that a test can do anything in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from include.cvmfs.commit.commit import NewTag, SwitchStep, read_head, store_all
from include.cvmfs.commit.edit import Edit
from include.cvmfs.coordination.generation import Look, look, require_unmoved
from include.cvmfs.errors import GenerationMoved
from include.cvmfs.format.catalog import Catalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.keys import Signer
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import Base, PrepareOptions, prepare
from include.cvmfs.revision.needed_objects import known_objects
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.artifact import DirectorySource
from include.publishers.required_objects import ChangesetCheck, require_spared
from include.site.changes import leave_condemned
from include.storage.store import Store
from tests.fakes.commits import commit_change

JUDGEMENTS = 3
_OPTIONS = PrepareOptions(mtime=1, owner=(0, 0), connections=2)


@dataclass(frozen=True, slots=True)
class Judged:
    """A change that was found fit for publication, and stored; ``seen``: of collections, when that was found."""

    path: str
    base: ObjectHash
    new: ObjectHash
    seen: Look
    tag: NewTag | None = None


def _nothing(_: SwitchStep) -> None: ...


class Publisher:
    """Publishes to a store, as :class:`include.publishers.native.NativePublisher` does through a gateway."""

    def __init__(self, store: Store, fqrn: str, signer: Signer, *, now: Callable[[], datetime], folder: Path) -> None:
        self._store = store
        self._fqrn = fqrn
        self._signer = signer
        self._now = now
        self._folder = folder
        self._numbers = itertools.count()

    def prepare(self, path: str, files: Mapping[str, bytes], known_from: Iterable[str] = ()) -> Changeset:
        """Store a tree, but for what the current revision holds at ``known_from``."""
        tree = self._folder / f"tree-{next(self._numbers)}"
        tree.mkdir(parents=True)
        for name, content in files.items():
            (tree / name).write_bytes(content)
        seen = look(self._store)
        manifest = read_head(self._store, self._fqrn).manifest
        revision = Revision(CatalogCache(self._store), manifest.root)
        known = known_objects(revision, known_from)
        leave_condemned(known, seen, revision)
        return prepare(
            DirectorySource(tree), store=self._store, fqrn=self._fqrn, destination=path, now=self._now(),
            options=_OPTIONS, known=known, base=Base(manifest.root, manifest.revision, seen.moment),
        )  # fmt: skip

    def judge(self, changeset: Changeset, tag: NewTag | None = None) -> Judged:
        """Raises PrepareAgain, CollectionRunning."""
        path, catalogs = changeset.destination, CatalogCache(self._store)
        clearance = ChangesetCheck(self._store, catalogs, changeset)
        catalog = Catalog.load(CatalogCache(self._store, budget=0).database(changeset.root))
        clearance.require_catalogs(catalog)

        def hang(edit: Edit, seen: Look) -> None:
            if (fault := clearance.fault(seen, self._now())) is not None:
                raise fault
            edit.hang(changeset.reference, catalog.root_entry, catalog.statistics.total)

        return self._judged(path, hang, tag)

    def change(self, path: str, apply: Callable[[Edit], None]) -> Judged:
        """A change without a changeset. Raises CollectionRunning."""
        return self._judged(path, lambda edit, _: apply(edit), None)

    def _judged(self, path: str, apply: Callable[[Edit, Look], None], tag: NewTag | None) -> Judged:
        seen = look(self._store)
        base = read_head(self._store, self._fqrn).manifest.root
        edit = Edit(CatalogCache(self._store), base)
        apply(edit, seen)
        new = edit.finish(int(self._now().timestamp()))
        objects = [(one.hash.key, one.data) for one in new.catalogs] + list(new.objects)
        require_spared(self._store, seen, path, objects, fqrn=self._fqrn)
        store_all(self._store, objects)
        return Judged(path, base, new.hash, seen, tag)

    def commit(self, judged: Judged, on_step: Callable[[SwitchStep], None] = _nothing) -> Manifest:
        """What the gateway does. Raises GenerationMoved where a collection went on since the judgement."""
        return commit_change(
            self._store, fqrn=self._fqrn, signer=self._signer, lease_path=judged.path, old_root=judged.base,
            new_root=judged.new, now=int(self._now().timestamp()), tag=judged.tag, on_step=on_step,
            before_switch=partial(require_unmoved, self._store, judged.seen.token, fqrn=self._fqrn),
        ).manifest  # fmt: skip

    def publish(self, changeset: Changeset, tag: NewTag | None = None) -> Manifest:
        """Judge and commit, again where a collection went on in between. Raises PrepareAgain, CollectionRunning."""
        for _ in range(JUDGEMENTS - 1):
            try:
                return self.commit(self.judge(changeset, tag))
            except GenerationMoved:
                continue
        return self.commit(self.judge(changeset, tag))
