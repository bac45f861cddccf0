"""Whether all that a changeset needs is sure to be in the store when it is published (docs/decisions, collections)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from include.cvmfs.coordination.condemned import condemned_among
from include.cvmfs.coordination.generation import CHANGESET_LIFE, CLOCK_SKEW, Look
from include.cvmfs.errors import (
    CHANGESET_EXPIRED,
    OBJECTS_COLLECTED,
    CollectionRunning,
    CommitError,
    ObjectMissing,
    ObjectsLost,
)
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.digests import DigestSet, hash_of_key, identity
from include.cvmfs.format.hashes import CATALOG
from include.cvmfs.ingest.changeset import Changeset, objects_of
from include.storage.store import Store

_AT_ONCE = 32


class Clearance:
    """Judges one changeset. What is true at one collection generation is not looked up twice."""

    def __init__(self, store: Store, catalogs: CatalogCache, changeset: Changeset) -> None:
        self._store = store
        self._catalogs = catalogs
        self._changeset = changeset
        self._judged: dict[str, CommitError | None] = {}
        self._hashes: DigestSet | None = None

    def fault(self, look: Look, now: datetime) -> CommitError | None:
        """Why the changeset must not be published at the generation that was looked at; None if it may be.

        Its age and, only if a collection ran or runs since it was begun, its objects: those on the list of a collection
        that has ended were deleted, those on the list of one that runs will be. Raises what reading them raises.
        """
        made = self._changeset
        age = now - made.created
        if age > CHANGESET_LIFE or age < -CLOCK_SKEW:
            hours = CHANGESET_LIFE.total_seconds() / 3600
            what = (
                f"the changeset was begun at {made.created:%Y-%m-%d %H:%M} UTC, more than {hours:.0f} h away from now"
            )
            return CHANGESET_EXPIRED(made.destination, what)
        if look.token not in self._judged:
            self._judged[look.token] = self._collected(look)
        return self._judged[look.token]

    def require_catalogs(self, root: Catalog) -> None:
        """Look for the catalogs below the root: a store may acknowledge and lose. Raises ObjectsLost."""
        path, wanted, seen = self._changeset.destination, root.statistics.total.nested, 0
        level = root.nested()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while level:
                there = pool.map(lambda one: self._store.exists(one.hash.with_suffix(CATALOG).key), level)
                lost = [one for one, found in zip(level, there, strict=True) if not found]
                if lost:
                    raise self._lost(path, lost)
                seen += len(level)
                # only catalogs say what is below them: when all are seen, the last level need not be read
                level = [] if seen >= wanted else [below for one in level for below in self._open(one).nested()]

    def _open(self, reference: NestedRef) -> Catalog:
        return self._catalogs.open_nested(reference.path, reference.hash)

    @staticmethod
    def _lost(path: str, lost: Sequence[NestedRef]) -> ObjectsLost:
        keys = tuple(one.hash.with_suffix(CATALOG).key for one in lost)
        return ObjectsLost(path, f"{len(lost)} of its catalogs are not in the store, as {keys[0]}", keys)

    def _collected(self, look: Look) -> CommitError | None:
        path, began = self._changeset.destination, self._changeset.generation
        since = look.lists_since(began)
        if since is None:
            return OBJECTS_COLLECTED(
                path, f"begun at generation {began}; what was collected until {look.token} is unknown"
            )
        if not since and look.running_list is None:
            return None
        try:
            if self._hashes is None:
                self._hashes = objects_of(self._changeset, self._catalogs)
        except ObjectMissing as gone:
            return OBJECTS_COLLECTED(path, f"{gone.key} is gone, and a collection ran or runs since it was begun")
        for name in since:
            if gone_now := condemned_among(self._store, name, self._hashes):
                return OBJECTS_COLLECTED(path, f"{len(gone_now)} of its objects were collected since it was begun")
        if look.running_list and (going := condemned_among(self._store, look.running_list, self._hashes)):
            return CollectionRunning(path, f"{len(going)} of its objects are on the list of collection {look.token}")
        return None


def require_spared(store: Store, look: Look, path: str, objects: Iterable[tuple[str, bytes]]) -> None:
    """Raises CollectionRunning if one of these objects, stored just now under their keys, is about to be deleted."""
    identities = [identity(hash_of_key(key)) for key, _ in objects]
    if look.running_list and condemned_among(store, look.running_list, identities):
        raise CollectionRunning(path, f"what it needs is on the list of collection {look.token}")
