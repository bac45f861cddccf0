"""History and reflog of a repository, kept decoded between the commits of one signer.

What is kept is used only if it is what the manifest names by its hash: anybody else's commit makes it void. A reflog of
fifty thousand rows is then neither fetched nor parsed for a commit that adds three to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from include.cvmfs.errors import FormatError, HeadDamaged, ObjectDamaged, ObjectMissing, ReflogError
from include.cvmfs.format.hashes import HISTORY, ObjectHash, hash_bytes
from include.cvmfs.format.history import History
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import load
from include.cvmfs.format.reflog import Reflog
from include.storage.errors import NotFound
from include.storage.store import Store, Version

REFLOG_KEY = ".cvmfsreflog"


@dataclass(frozen=True, slots=True)
class StoredReflog:
    """A reflog, its file, and the store's version of that for compare-and-swap."""

    reflog: Reflog
    data: bytes
    version: Version
    hash: ObjectHash

    def is_of(self, manifest: Manifest) -> bool:
        """Whether the manifest names it; one that is ahead was left by a commit that died before its switch."""
        return manifest.reflog is None or self.hash.digest == manifest.reflog.digest


class Records:
    """Not for several threads at once. What is taken is the taker's to change; he keeps it again when it is stored."""

    def __init__(self) -> None:
        self._history: tuple[bytes, History] | None = None
        self._reflog: StoredReflog | None = None

    def history(self, store: Store, manifest: Manifest) -> History:
        """The tags of a revision, to be read. Raises HeadDamaged, StoreError."""
        history = self.take_history(store, manifest)
        if manifest.history is not None:
            self.keep_history(manifest.history, history)
        return history

    def take_history(self, store: Store, manifest: Manifest) -> History:
        kept, self._history = self._history, None
        if manifest.history is None:
            return History.create(manifest.fqrn)
        if kept is not None and kept[0] == manifest.history.digest:
            return kept[1]
        try:
            return History.load(load(store, manifest.history.with_suffix(HISTORY)))
        except (ObjectMissing, ObjectDamaged, FormatError) as fault:
            cure = f"its tags cannot be read: {fault}; run: nightshift repo repair {manifest.fqrn} --empty-history"
            raise HeadDamaged(manifest.fqrn, cure) from fault

    def keep_history(self, name: ObjectHash, history: History) -> None:
        self._history = name.digest, history

    def reflog(self, store: Store, manifest: Manifest) -> StoredReflog:
        """The reflog, to be read. Raises ReflogError, StoreError."""
        reflog = self.take_reflog(store, manifest)
        self.keep_reflog(reflog)
        return reflog

    def take_reflog(self, store: Store, manifest: Manifest) -> StoredReflog:
        kept, self._reflog = self._reflog, None
        if kept is not None and manifest.reflog is not None and kept.hash.digest == manifest.reflog.digest:
            return kept
        try:
            data, version = store.get_versioned(REFLOG_KEY)
        except NotFound:
            raise ReflogError(manifest.fqrn, f"{REFLOG_KEY} is missing; run: nightshift repo repair --reflog") from None
        try:
            reflog = Reflog.load(data)
        except FormatError as fault:
            raise ReflogError(manifest.fqrn, f"unreadable: {fault}; run: nightshift repo repair --reflog") from fault
        return StoredReflog(reflog, data, version, hash_bytes(data, manifest.root.algorithm))

    def keep_reflog(self, reflog: StoredReflog) -> None:
        self._reflog = reflog
