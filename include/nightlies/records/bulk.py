"""Records of many publications in one transaction: a night of thousands does not wait for the disk at each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

from sqlalchemy import Connection, insert, update
from sqlalchemy.exc import IntegrityError

from include.ledger.engine import Bind, writing
from include.nightlies.records import publications as records
from include.nightlies.records.tables import publications
from include.nightlies.rules.publication import Planned, Publication, PublicationKey, State

_AT_ONCE = 500
"""Rows of one statement; SQLite takes 32,766 values at most."""
_GOOD = tuple(state.value for state in State if state.good)


def plan_many(
    bind: Bind, planned: Mapping[PublicationKey, Planned], *, try_number: int, now: datetime
) -> dict[PublicationKey, Publication]:
    """Plan each as `records.plan` does, all in one transaction or none. Raises StaleAttempt."""

    def work(connection: Connection) -> dict[PublicationKey, Publication]:
        there = {run: _of_run(connection, run) for run in {key.run_id for key in planned}}
        new = [key for key in planned if key not in there[key.run_id]]
        inserted = _insert(connection, new, planned, try_number, now)
        found: dict[PublicationKey, Publication] = {}
        for run in there:
            found |= _of_run(connection, run)
        for key, item in planned.items():
            if key in inserted:
                continue
            found[key] = records.plan(connection, key, item, try_number=try_number, now=now)
        return {key: found[key] for key in planned}

    return writing(bind, work)


def note_verified(bind: Bind, keys: Collection[PublicationKey], *, now: datetime) -> None:
    """Record that these were read back through the public URL; what is not published (any more) is left as it is."""

    def work(connection: Connection) -> None:
        for run in {key.run_id for key in keys}:
            places = (records.place(key.repository, key.destination) for key in keys if key.run_id == run)
            for piece in _pieces(places):
                where = (publications.c.run_id == run, publications.c.place.in_(piece), publications.c.state.in_(_GOOD))
                connection.execute(update(publications).where(*where).values(verified_at=now, updated_at=now))

    if keys:
        writing(bind, work)


def _of_run(connection: Connection, run: str) -> dict[PublicationKey, Publication]:
    return {publication.key: publication for publication in records.publications_of_run(connection, run)}


def _insert(
    connection: Connection,
    keys: Sequence[PublicationKey],
    planned: Mapping[PublicationKey, Planned],
    try_number: int,
    now: datetime,
) -> frozenset[PublicationKey]:
    """The keys, if they are new rows now; none if another process planned one of them in this moment."""
    rows = [records.new_row(key, planned[key], try_number, now) for key in keys]
    if not rows:
        return frozenset()
    try:
        with connection.begin_nested():
            connection.execute(insert(publications), rows)
    except IntegrityError:
        return frozenset()
    return frozenset(keys)


def _pieces(places: Iterator[str]) -> Iterator[list[str]]:
    while piece := list(islice(places, _AT_ONCE)):
        yield piece
