"""Collections in the ledger, and objects that a repository needs and its store lacks, or has in part.

Written where they are found (by a check, the reading back after a night, a publication), read by every preparation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from include.cvmfs.check.check import CheckReport
from include.cvmfs.collect.report import CollectionReport
from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import hash_of_key, identity
from include.cvmfs.format.objects import Hasher
from include.cvmfs.sources.source import printable
from include.ledger.engine import Bind, reading, writing
from include.nightlies.records.tables import collections, damaged
from include.storage.errors import NotFound
from include.storage.store import Store


def note_collection(bind: Bind, report: CollectionReport, *, now: datetime) -> None:
    """Record a collection that ended, and list as damaged what it found lost. The same report again changes nothing.

    Args:
        bind: The ledger, or the caller's transaction.
        report: Of a collection, not of a dry run.
        now: When it ended, if the report has no time.
    """
    ended = report.ended or now
    row = {
        "repository": report.fqrn,
        "ended_at": ended,
        "number": report.number,
        "kept": report.objects_kept,
        "deleted": report.deleted,
        "bytes_deleted": report.bytes_deleted,
        "garbage": report.once + len(report.failed),
        "lost": len(report.lost),
        "seconds": sum(report.seconds.values()),
    }

    def work(connection: Connection) -> None:
        same = (collections.c.repository == report.fqrn, collections.c.ended_at == ended)
        connection.execute(delete(collections).where(*same))
        connection.execute(insert(collections).values(row))
        note_lost(connection, report, now=now)

    writing(bind, work)


_REASON_LENGTH = 1000
_KEYS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged object by its key; ``path``: the first that needs it; ``size``: stored bytes when found, None: absent."""

    key: str
    path: str
    reason: str
    size: int | None = None

    @property
    def identity(self) -> bytes:
        """Name by which a preparation knows it (``digests.identity``)."""
        return identity(hash_of_key(self.key))


def of_report(report: CheckReport) -> tuple[Damage, ...]:
    """Return what a check has found of it."""
    return tuple(Damage(lost.hash.key, printable(lost.path), lost.what, lost.stored) for lost in report.lost)


def note_report(bind: Bind, report: CheckReport, *, everything: bool, now: datetime) -> int:
    """Have what a check found in the list; ``everything``: it looked for all objects of the current revision."""
    found = of_report(report)
    kept = replace if everything else note
    return kept(bind, report.fqrn, found, now=now)


def note_lost(bind: Bind, report: CollectionReport, *, now: datetime) -> int:
    """Have in the list what a collection found lost; how many."""
    lost = (
        Damage(missing.key, "", f"a collection found that it {missing.reason}", missing.size) for missing in report.lost
    )
    return note(bind, report.fqrn, lost, now=now)


def note(bind: Bind, fqrn: str, found: Iterable[Damage], *, now: datetime) -> int:
    """Have these in the list, with what was found last; how many there were. Keys that name no object are left out."""
    rows = {damage.key: damage for damage in found if _is_object(damage.key)}

    def work(connection: Connection) -> int:
        _forget(connection, fqrn, rows)
        if rows:
            values = [
                {
                    "repository": fqrn, "object": damage.key, "path": damage.path[:1024], "stored_size": damage.size,
                    "reason": damage.reason[:_REASON_LENGTH], "found_at": now,
                }
                for damage in rows.values()
            ]  # fmt: skip
            connection.execute(insert(damaged), values)
        return len(rows)

    return writing(bind, work)


def replace(bind: Bind, fqrn: str, found: Iterable[Damage], *, now: datetime) -> int:
    """The list after a check of everything: what it did not find is whole again."""
    everything = tuple(found)

    def work(connection: Connection) -> int:
        connection.execute(delete(damaged).where(damaged.c.repository == fqrn))
        return note(connection, fqrn, everything, now=now)

    return writing(bind, work)


def of_repository(bind: Bind, fqrn: str) -> tuple[Damage, ...]:
    """All that is damaged, by key."""
    query = select(damaged).where(damaged.c.repository == fqrn).order_by(damaged.c.object)
    with reading(bind) as connection:
        rows = connection.execute(query).mappings().all()
    return tuple(Damage(row["object"], row["path"], row["reason"], row["stored_size"]) for row in rows)


def forget(bind: Bind, fqrn: str, keys: Iterable[str]) -> None:
    """Take these off the list."""
    wanted = tuple(keys)
    writing(bind, lambda connection: _forget(connection, fqrn, wanted))


def look_again(bind: Bind, fqrn: str, store: Store, among: Iterable[Damage]) -> tuple[Damage, ...]:
    """Take off the list what was sent again and is whole; what is left of them.

    If the size is still the one that was found damaged, the object is read, since its bytes may have rotted; an object
    of another size need not be read.
    """
    back: list[Damage] = []
    left: list[Damage] = []
    for damage in among:
        there = store.head(damage.key)
        mended = there is not None and there.size > 0 and (there.size != damage.size or _is_whole(store, damage.key))
        (back if mended else left).append(damage)
    if back:
        forget(bind, fqrn, [damage.key for damage in back])
    return tuple(left)


def _is_whole(store: Store, key: str) -> bool:
    """Tell whether the stored bytes have the hash by which they are named."""
    name = hash_of_key(key)
    digest = Hasher(name.algorithm)
    try:
        for block in store.stream(key):
            digest.update(block)
    except NotFound:
        return False
    return digest.finish() == name.digest


def _forget(connection: Connection, fqrn: str, keys: Iterable[str]) -> None:
    wanted = list(keys)
    for start in range(0, len(wanted), _KEYS_AT_ONCE):
        some = wanted[start : start + _KEYS_AT_ONCE]
        connection.execute(delete(damaged).where(damaged.c.repository == fqrn, damaged.c.object.in_(some)))


def _is_object(key: str) -> bool:
    try:
        hash_of_key(key)
    except FormatError:
        return False
    return True
