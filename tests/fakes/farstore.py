"""A remote kind of store that the product has never heard of: where its place is decided, it must count as remote."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.storage import kinds
from include.storage.kinds import StoreKind
from tests.fakes.memorystore import MemoryStore

_opened: list[FarStore] = []
FAR = StoreKind("far", is_local=False, writable=True, opens=lambda *_: _opened[-1])


class FarStore(MemoryStore):
    """Objects in memory, at a URL of the scheme ``far``."""

    kind = FAR

    def __init__(self, before: Callable[[str, str], None] = lambda verb, key: None, *, url: str = "far://pool") -> None:
        super().__init__(before)
        self.url = url
        self._children: dict[str, FarStore] = {}

    def child(self, prefix: str) -> FarStore:
        return self._children.setdefault(prefix, FarStore(self.before, url=f"{self.url}/{prefix}"))


def register(patch: pytest.MonkeyPatch) -> FarStore:
    """Make ``far://`` a scheme as a new kind of store does; whatever is opened there is the store returned."""
    store = FarStore()
    patch.setitem(kinds.SCHEMES, "far", FAR)  # type: ignore[arg-type]
    _opened.append(store)
    return store
