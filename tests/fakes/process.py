"""A store as one process uses it, that dies or falls asleep at one of its writes, while the store itself goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from include.cvmfs.coordination.generation import KEY as GENERATION_KEY, CollectionPhase, Generation
from include.storage.errors import StoreError
from include.storage.kinds import StoreKind, Traits
from include.storage.store import ObjectMeta, Store, Version

_NAMES = {
    ".cvmfsreflog": "reflog",
    ".cvmfspublished": "manifest",
    ".cvmfs_status.json": "status file",
    ".nightshift/collections": "record",
}


class Died(BaseException):
    """The process is gone: no handler of an error runs in it."""


class ProcessStore(Store):
    """``on_write(point)`` is called before and after each write with its name, as ``before fence: manifest``.

    It may raise :class:`Died`; then nothing of this process reaches the store any more, from no thread.
    """

    def __init__(self, store: Store, on_write: Callable[[str], None]) -> None:
        self._store = store
        self._on_write = on_write
        self._lock = threading.RLock()
        self._phase = CollectionPhase.IDLE
        self._dead = False
        self.url, self.counters = store.url, store.counters

    @property
    def kind(self) -> StoreKind:
        return self._store.kind

    @property
    def traits(self) -> Traits | None:
        return self._store.traits

    def get(self, key: str) -> bytes:
        return self._alive().get(key)

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        return self._alive().get_versioned(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._alive().get_range(key, start, length)

    def stream(self, key: str, *, block: int = 1 << 20) -> Iterator[bytes]:
        return self._alive().stream(key, block=block)

    def head(self, key: str) -> ObjectMeta | None:
        return self._alive().head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return self._alive().list(prefix)

    def put(self, key: str, data: bytes) -> None:
        self._write(self._name(key, data), lambda: self._store.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return bool(self._write(self._name(key, data), lambda: self._store.put_if_absent(key, data)))

    def replace(self, key: str, data: bytes, *, expected: Version | None) -> Version:
        name = self._name(key, data)
        version: Version = self._write(name, lambda: self._store.replace(key, data, expected=expected))
        if key == GENERATION_KEY:
            self._phase = Generation.parse(data).phase
        return version

    def delete(self, keys: Iterable[str]) -> int:
        wanted = list(keys)
        return int(self._write("delete lists", lambda: self._store.delete(wanted))) if wanted else 0

    def delete_each(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """One request; a process may die when the store has done half of it."""
        wanted = list(keys)
        half = len(wanted) // 2

        def work() -> Mapping[str, StoreError]:
            refused = dict(self._store.delete_each(wanted[:half]))
            self._reach("within delete objects")
            return refused | dict(self._store.delete_each(wanted[half:]))

        done: Mapping[str, StoreError] = self._write("delete objects", work)
        return done

    def reach(self, point: str) -> None:
        """Come by a point of one's own; meanwhile no thread of the process reaches the store."""
        with self._lock:
            self._reach(point)

    def child(self, prefix: str) -> Store:
        raise NotImplementedError

    def _alive(self) -> Store:
        if self._dead:
            raise Died
        return self._store

    def _write(self, name: str, work: Callable[[], Any]) -> Any:
        with self._lock:
            self._alive()
            self._reach(f"before {name}")
            done = work()
            self._reach(f"after {name}")
            return done

    def _reach(self, point: str) -> None:
        try:
            self._on_write(point)
        except Died:
            self._dead = True
            raise

    def _name(self, key: str, data: bytes) -> str:
        if key == GENERATION_KEY:
            to = Generation.parse(data)
            renewed = to.phase is self._phase
            return f"{'renew' if renewed else 'generation'} {to.phase.value}"
        if key.startswith(".nightshift/condemned/"):
            which = {CollectionPhase.CONDEMNED: "shorter list"}.get(self._phase, "list")
            return f"{which}: {'index' if data.startswith(b'nightshift condemned 2') else 'shard'}"
        what = _NAMES.get(key, key)
        if what in ("reflog", "manifest"):
            return f"{'fence' if self._phase is CollectionPhase.CONDEMNED else 'prune'}: {what}"
        return what
