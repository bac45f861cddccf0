"""A store of this deployment as a target: an S3 bucket, or a folder that is used as a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from include.benchmarks.errors import AREA_FOREIGN, TARGET_UNUSABLE
from include.benchmarks.targets.base import AREA, MARKER, AreaRemoval, BenchmarkTarget, RunArea, TargetSpace
from include.settings.storage_benchmark.blocks import BucketTarget, TargetKind
from include.storage.errors import NotFound, StoreError
from include.storage.store import Store


class OpenStore(Protocol):
    """Opens the target's store for so many requests at the same time; failed requests are not repeated."""

    def __call__(self, connections: int, *, sign_payload: bool = True) -> Store: ...


class ObjectArea(RunArea):
    """A prefix of the bucket that has the id of the run in it, and no objects of others."""

    def __init__(self, name: str, prefix: str, open_bucket: OpenStore) -> None:
        self._name = name
        self._prefix = prefix
        self._open = open_bucket
        self.where = f"{name}: {prefix}"

    def store(self, connections: int, *, sign_payload: bool = True) -> Store:
        """The area as a store, for so many requests at the same time."""
        return self._open(connections, sign_payload=sign_payload).child(self._prefix)

    def create(self) -> None:
        store = self.store(1)
        try:
            first = next(iter(store.list()), None)
            if first is not None and not self._is_ours(store):
                raise AREA_FOREIGN(self.where, "it has objects and no marker of this run")
            store.put(MARKER, self.where.encode())
        except StoreError as error:
            raise TARGET_UNUSABLE(self._name, f"objects cannot be written: {error}") from error

    def remove_files(self, names: Iterable[str]) -> AreaRemoval:
        try:
            store = self.store(8)
            listed = [key for name in names for key in _keys_of(store, name)]
            refused = store.delete_each(listed)
        except StoreError as error:
            raise TARGET_UNUSABLE(self._name, f"objects cannot be deleted: {error}") from error
        return AreaRemoval(len(listed) - len(refused), tuple(sorted(refused)))

    def remove(self) -> AreaRemoval:
        store = self.store(1)
        try:
            left = tuple(found.key for found in store.list() if found.key != MARKER)
            if not left and self._is_ours(store):
                store.delete([MARKER])
        except StoreError as error:
            raise TARGET_UNUSABLE(self._name, f"objects cannot be listed and deleted: {error}") from error
        return AreaRemoval(0 if left else 1, left)

    def _is_ours(self, store: Store) -> bool:
        try:
            return store.get(MARKER) == self.where.encode()
        except NotFound:
            return False


def _keys_of(store: Store, name: str) -> list[str]:
    """What a name of a plan means: an object, or all objects of a repository, whose names no plan knows."""
    if not name.endswith("/"):
        return [name]
    return [f"{name}{found.key}" for found in store.child(name[:-1]).list()]


class BucketBenchmarkTarget(BenchmarkTarget):
    """The store that the settings name, below their prefix."""

    kind = TargetKind.BUCKET

    def __init__(self, settings: BucketTarget, open_bucket: OpenStore) -> None:
        self.settings: BucketTarget = settings
        self._open = open_bucket

    def check(self) -> None:
        store = self._open(1)
        if not store.writable:
            raise TARGET_UNUSABLE(self.name, f"the store {store.url} can only be read")
        try:
            next(iter(store.child(self.settings.prefix).list()), None)
        except StoreError as error:
            raise TARGET_UNUSABLE(self.name, f"the store does not answer as it should: {error}") from error

    def space(self) -> TargetSpace | None:
        # what S3 does not report, people do
        if self.settings.usable_bytes is None:
            return None
        return TargetSpace(self.settings.usable_bytes, self.settings.usable_bytes)

    def area(self, run: str) -> ObjectArea:
        return ObjectArea(self.name, f"{self.settings.prefix}/{AREA}{run}", self._open)
