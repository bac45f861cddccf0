"""Storages of sites in memory, that fail when a test says so, and what components are given with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, update

from include.errors import NightshiftError
from include.fts.states import FailureReason
from include.ledger.engine import writing
from include.settings.sites import ChecksumMode, RemoteSite
from include.settings.stageout import StageoutSettings
from include.stageout.claims import StageoutWorker
from include.stageout.opening import Stageout
from include.stageout.places.facts import UNKNOWN_TIME, FileAnswer, FileFacts, ListedFile
from include.stageout.states import TransferState
from include.stageout.tables import stageout_transfers

AREA = "/store/temp"
OLD = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class MemoryPlace:
    """Files by name. `refusals`: answers that are no files, by name, to each question; `broken`: to every look."""

    files: dict[str, FileFacts] = field(default_factory=dict)
    refusals: dict[str, FailureReason] = field(default_factory=dict)
    broken: FailureReason | None = None
    removed: list[str] = field(default_factory=list)
    unlisted: NightshiftError | None = None

    def put(self, *names: str, size: int = 7, checksum: str | None = None, modified: datetime = OLD) -> None:
        self.files |= dict.fromkeys(names, FileFacts(size, checksum, modified))

    def look(self, names: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, FileAnswer]:
        files = self.files
        if checksum is ChecksumMode.NONE:
            files = {name: replace(files[name], checksum=None) for name in names if name in files}
        return {name: self.broken or self.refusals.get(name) or files.get(name) for name in names}

    def remove(self, names: Sequence[str]) -> Mapping[str, FailureReason | None]:
        for name in names:
            if name not in self.refusals:
                self.removed += [name] if self.files.pop(name, None) else []
        return {name: self.refusals.get(name) for name in names}

    def read(self, name: str, offset: int, length: int) -> bytes | FailureReason:
        return self.broken or self.refusals.get(name) or bytes(length)

    def write(self, name: str, data: bytes) -> FailureReason | None:
        if self.broken is None and name not in self.refusals:
            self.put(name, size=len(data))
        return self.broken or self.refusals.get(name)

    def copy(self, source: str, name: str) -> FailureReason | None:
        if self.broken is None and name not in self.refusals:
            self.files[name] = self.files[source]
        return self.broken or self.refusals.get(name)

    def listed(self, prefix: str) -> Iterator[ListedFile]:
        below = ((name, facts) for name, facts in self.files.items() if name.startswith(f"{prefix}/"))
        yield from [(name, facts.size, facts.modified or UNKNOWN_TIME) for name, facts in below]
        if self.unlisted is not None:
            raise self.unlisted

    def close(self) -> None:
        """Nothing is open."""


def site(name: str, **fields: Any) -> RemoteSite:
    """A site that is cleaned, with URLs of its own."""
    rules = [{"prefix": "/store", "url": f"davs://{name}.example.org/cms"}]
    plain = {"read": rules, "write": rules, "third_party": rules, "temporary": AREA, "clean": True}
    return RemoteSite.model_validate({"name": name, **plain, **fields})


def ruled(name: str = "pisa", **blocks: Any) -> RemoteSite:
    """A site with rules as pairs of a prefix and a URL, and other blocks as they are."""
    rules = {
        key: [{"prefix": prefix, "url": url} for prefix, url in value] if isinstance(value, list) else value
        for key, value in blocks.items()
    }
    return RemoteSite.model_validate({"name": name, **rules})


def stageout_of(ledger: Engine, *sites: RemoteSite, place: Any, **fields: Any) -> Stageout:
    """What a component is given; `place` opens storages, or is the one that there is."""
    given: dict[str, Any] = {
        "ledger": ledger,
        "settings": StageoutSettings(),
        "sites": {one.name: one for one in sites},
        "worker": StageoutWorker("cleaner-1"),
        "fts": None,
        "place": place if callable(place) else lambda *_: place,
    }
    return Stageout(**{**given, **fields})


def put_in(ledger: Engine, ids: Sequence[int], state: TransferState, moved_at: datetime, **values: Any) -> None:
    """Bring rows into a state as their components would have."""
    changes = {"state": state.value, "due_at": moved_at, "moved_at": moved_at, **values}
    rows = update(stageout_transfers).where(stageout_transfers.c.id.in_(ids)).values(changes)
    writing(ledger, lambda connection: connection.execute(rows))
