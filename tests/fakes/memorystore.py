"""A store in memory, for tests of what stands above it; it keeps conditional writes and can be made to fail."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from include.storage.errors import Conflict, NotFound
from include.storage.kinds import StoreKind, Traits
from include.storage.store import Counters, ObjectMeta, Store, Version

MEMORY = StoreKind("memory", is_local=True, writable=True, opens=lambda *_: MemoryStore())


class MemoryStore(Store):
    """``before(verb, key)`` is called before every request and may raise or change the store."""

    kind = MEMORY

    def __init__(self, before: Callable[[str, str], None] = lambda verb, key: None) -> None:
        self.url = "memory:"
        self.counters = Counters()
        self.objects: dict[str, bytes] = {}
        self.before = before

    def get(self, key: str) -> bytes:
        return self.get_versioned(key)[0]

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        self.before("get", key)
        if key not in self.objects:
            raise NotFound("no such object", key=key)
        self.counters.add(gets=1)
        return self.objects[key], self._version(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def stream(self, key: str, *, block: int = 1 << 20) -> Iterator[bytes]:
        data = self.get(key)
        yield from (data[place : place + block] for place in range(0, len(data), block))

    def head(self, key: str) -> ObjectMeta | None:
        self.before("head", key)
        self.counters.add(heads=1)
        if key not in self.objects:
            return None
        return ObjectMeta(key, len(self.objects[key]), datetime(2026, 1, 1, tzinfo=UTC), self._version(key))

    def put(self, key: str, data: bytes) -> None:
        self.before("put", key)
        self.counters.add(puts=1)
        self.objects[key] = bytes(data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.put(key, data)
        return True

    def replace(self, key: str, data: bytes, *, expected: Version | None) -> Version:
        self.before("replace", key)
        there = self._version(key) if key in self.objects else None
        if there != expected:
            raise Conflict("another writer came first", key=key)
        self.objects[key] = bytes(data)
        return self._version(key)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ObjectMeta(key, len(self.objects[key]), datetime(2026, 1, 1, tzinfo=UTC), self._version(key))

    def delete(self, keys: Iterable[str]) -> int:
        gone = 0
        for key in keys:
            self.before("delete", key)
            gone += self.objects.pop(key, None) is not None
        return gone

    def child(self, prefix: str) -> Store:
        raise NotImplementedError

    @property
    def traits(self) -> Traits | None:
        return Traits(put_if_absent=True, replace=True, bulk_delete=True)

    def _version(self, key: str) -> Version:
        return Version(hashlib.sha256(self.objects[key]).hexdigest())
