"""The builder: puts tarballs into its store, and the index that lists them, version by version."""

from __future__ import annotations

import hashlib
from datetime import date

from include.nightlies.rules.index import Artifact, BuildIndex, ParentBuild
from include.nightlies.steps.sources import index_place
from include.settings.model import Slot
from include.storage.store import Store
from tests.fakes.builds import tree
from tests.week.plan import Listed, Stage, dependencies


class Builder:
    """The builder of one slot's build."""

    def __init__(self, store: Store, slot: Slot, day: date, build_id: str, base: tuple[str, date] | None) -> None:
        self._store = store
        self._slot = slot
        self._day = day
        self._build_id = build_id
        self._base = ParentBuild(*base) if base else None
        self._there: dict[str, Artifact] = {}

    def publish(self, stage: Stage, serial: int) -> None:
        """Upload what is new of a stage, then write its index, as its version `serial`."""
        listed = tuple(self._artifact(one) for one in stage.listed)
        index = BuildIndex(
            self._slot.name, self._build_id, self._day, stage.complete, listed, base=self._base, serial=serial
        )
        self._store.put(index_place(self._slot, self._day), index.format())

    def _artifact(self, listed: Listed) -> Artifact:
        one = listed.tree
        key = f"{one.slot}/{self._day}/{one.build_id}/{one.project}-{one.platform}-{one.version}.tar.gz"
        if key not in self._there:
            data = tree(one.files())
            self._store.put(key, damaged(data) if listed.damaged else data)
            self._there[key] = Artifact(
                one.project, one.platform, key, len(data), hashlib.sha256(data).hexdigest(), dependencies(one.project)
            )
        return self._there[key]


def damaged(data: bytes) -> bytes:
    """As many bytes, some of them wrong."""
    half = len(data) // 2
    return data[:half] + bytes(byte ^ 0xFF for byte in data[half : half + 64]) + data[half + 64 :]
