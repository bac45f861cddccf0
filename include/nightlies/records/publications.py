"""Publications in the ledger: planned, moved, verified, read back, alone and in bulk. Times are passed in, of any zone.

Every function takes an engine (and is one transaction) or a connection (and joins the caller's). In bulk, a night of
thousands does not wait for the disk at each of them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, insert, select, update
from sqlalchemy.exc import IntegrityError

from include.errors import code_of
from include.ledger.engine import Bind, reading, writing
from include.ledger.errors import LedgerError
from include.nightlies.errors import IllegalMove, PublicationUnknown, StaleAttempt
from include.nightlies.records.tables import artifacts, builds, installed, publications
from include.nightlies.rules.publication import (
    ENDED,
    Figures,
    Move,
    MoveVerdict,
    Phase,
    Planned,
    Publication,
    PublicationKey,
    State,
    Wait,
    decide,
)

log = logging.getLogger(__name__)

_TRY = {
    Phase.PLAN: publications.c.plan_try,
    Phase.PREPARE: publications.c.prepare_try,
    Phase.APPROVE: publications.c.approve_try,
    Phase.PUBLISH: publications.c.publish_try,
}
_REASON_LENGTH = 4000
_WAITING = {State.PREPARED, State.PUBLISHING}
_OUTCOME = ("code", "skip_reason", "blocked_by")
_BEGUN_AGAIN = (
    "state", "reason", "artifact", "artifact_sha256", "phase", "try_number", "plan_try", "seconds", "updated_at",
)  # fmt: skip
NEIGHBOURS = 4
"""Number of earlier destinations of a project are read; a night mostly repeats the one before."""
LOOKED_AT = 8 * NEIGHBOURS
"""Number of its newest artifacts are read for these: some were never published."""
_AT_ONCE = 500
"""Rows of one statement; SQLite takes 32,766 values at most."""
_GOOD = tuple(state.value for state in State if state.good)


def place(fqrn: str, destination: str) -> str:
    """The digest that identifies a destination of a repository in the ledger's indices."""
    return hashlib.sha256(f"{fqrn}\0{destination}".encode()).hexdigest()


def plan(bind: Bind, key: PublicationKey, planned: Planned, *, try_number: int, now: datetime) -> Publication:
    """Have the publication in the ledger, `planned` if it is new or if a later try of the plan begins it again.

    The same try again changes nothing. A replaced try raises StaleAttempt. What earlier runs recorded stays.
    """

    def work(connection: Connection) -> Publication:
        row = _locked(connection, key)
        if row is None:
            try:
                with connection.begin_nested():
                    connection.execute(insert(publications).values(**new_row(key, planned, try_number, now)))
                return _found(connection, key)
            except IntegrityError:
                # another process planned it in this moment: then it is treated as any other row
                row = _locked(connection, key)
        if row is None:
            raise PublicationUnknown(str(key))
        if try_number < row["plan_try"]:
            raise StaleAttempt(str(key), Phase.PLAN.value, try_number, row["plan_try"])
        if try_number > row["plan_try"]:
            was = f"{row['state']} at revision {row['revision_after']}" if row["revision_after"] else row["state"]
            again = replace(planned, reason=f"{planned.reason}; planned again, was {was}")
            begun = new_row(key, again, try_number, now)
            cleared = dict.fromkeys((*_FIGURES, "ended_at", "verified_at", "holder", *_OUTCOME))
            _set(connection, key, cleared | {name: begun[name] for name in _BEGUN_AGAIN})
        return _found(connection, key)

    return writing(bind, work)


def move(
    bind: Bind, key: PublicationKey, move: Move, *, try_number: int, now: datetime, holder: str | None = None
) -> Publication:
    """Record that try `try_number` of the move's phase made this move; `holder` names that try as leases do.

    The same move by the same try again changes nothing. Raises StaleAttempt for a process that a later try has
    replaced, IllegalMove for what `states.MOVES` does not have, PublicationUnknown for one that was not planned.
    """

    to, phase = move.to, move.phase

    def work(connection: Connection) -> Publication:
        row = _locked(connection, key)
        if row is None:
            raise PublicationUnknown(str(key))
        current, recorded = State(row["state"]), int(row[_TRY[phase].name])
        decision = decide(
            current, to, phase=phase, try_number=try_number, recorded_try=recorded, last_phase=Phase(row["phase"])
        )
        if decision.verdict is MoveVerdict.STALE:
            raise StaleAttempt(str(key), phase.value, try_number, recorded)
        if decision.verdict is MoveVerdict.ILLEGAL:
            raise IllegalMove(str(key), current.value, to.value, decision.reason)
        if decision.verdict is MoveVerdict.MOVE:
            code = None if move.error is None else code_of(move.error)
            values = _recorded(move.figures or Figures(), row) | {
                "state": to.value,
                "reason": move.reason[:_REASON_LENGTH],
                "code": code,
                "skip_reason": None if move.skip is None else move.skip.value,
                "blocked_by": move.blocked_by,
                "phase": phase.value,
                "try_number": try_number,
                _TRY[phase].name: try_number,
                "updated_at": now,
                "ended_at": now if to.ended else None,
                "holder": holder,
            }
            _set(connection, key, values)
            if to.good:
                _note_installed(connection, key, now)
        return _found(connection, key)

    return writing(bind, work)


def plan_many(
    bind: Bind, planned: Mapping[PublicationKey, Planned], *, try_number: int, now: datetime
) -> dict[PublicationKey, Publication]:
    """Plan each as `plan` does, all in one transaction or none. Raises StaleAttempt."""

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
            found[key] = plan(connection, key, item, try_number=try_number, now=now)
        return {key: found[key] for key in planned}

    return writing(bind, work)


def note_verified(bind: Bind, keys: Collection[PublicationKey], *, now: datetime) -> None:
    """Record that these were read back through the public URL; what is not published (any more) is left as it is."""

    def work(connection: Connection) -> None:
        for run in {key.run_id for key in keys}:
            places = (place(key.repository, key.destination) for key in keys if key.run_id == run)
            for piece in _pieces(places):
                where = (publications.c.run_id == run, publications.c.place.in_(piece), publications.c.state.in_(_GOOD))
                connection.execute(update(publications).where(*where).values(verified_at=now, updated_at=now))

    if keys:
        writing(bind, work)


def note_wait(
    bind: Bind, waits: Mapping[PublicationKey, Wait | None], what: str | None, *, try_number: int, now: datetime
) -> None:
    """Record as the reason what prepared publications wait for, and since when; the same again changes nothing.

    State and time of the last move stay, and so does the beginning of a wait that is for something else now. `waits`:
    as this try read them, since its own moves replace the reason. `what`: None if they are published from `now` on.
    Nothing is recorded of a try that was replaced. A ledger that does not answer stops nothing.
    """

    def work(connection: Connection) -> None:
        for key, read in waits.items():
            row = _locked(connection, key)
            if row is None or State(row["state"]) not in _WAITING or row["publish_try"] > try_number:
                continue
            before = Wait.of_reason(row["reason"])
            if what is not None:
                before = before or read
                reason = str(Wait(before.since if before else now, what))[:_REASON_LENGTH]
                if reason != row["reason"]:
                    _set(connection, key, {"reason": reason})
            elif before is not None:
                _set(connection, key, {"reason": f"try {try_number}", "updated_at": now})

    try:
        writing(bind, work)
    except LedgerError as error:
        log.info("what %s waits for is not recorded: %s", ", ".join(map(str, waits)), error)


def publication(bind: Bind, key: PublicationKey) -> Publication | None:
    """The publication of that key, or None."""
    with reading(bind) as connection:
        row = connection.execute(_joined().where(*_is(key))).mappings().first()
    return None if row is None else Publication.from_json(row)


def publications_of_run(bind: Bind, run_id: str) -> tuple[Publication, ...]:
    """Everything that a run planned, by repository and destination."""
    order = (publications.c.repository, publications.c.destination)
    return _all(bind, _joined().where(publications.c.run_id == run_id).order_by(*order))


def publications_of_build(bind: Bind, build: int) -> tuple[Publication, ...]:
    """Everything that runs did for the artifacts of a build (its row in the ledger), the newest first."""
    return _all(bind, _joined().where(artifacts.c.build == build).order_by(*_NEWEST))


def open_elsewhere(bind: Bind, run_id: str, fqrn: str, destinations: Iterable[str]) -> dict[str, str]:
    """Return which of these destinations other runs still have to publish, with the name of the latest such run."""
    places = [place(fqrn, path) for path in destinations]
    query = select(publications.c.destination, publications.c.run_id).where(
        publications.c.place.in_(places),
        publications.c.run_id != run_id,
        publications.c.state.not_in([state.value for state in ENDED]),
    )
    with reading(bind) as connection:
        return {row.destination: row.run_id for row in connection.execute(query.order_by(publications.c.id))}


def known_hashes(bind: Bind, fqrn: str, destination: str) -> frozenset[str]:
    """Every nested catalog that runs of this ledger published at a destination, or were about to when they died."""
    where = place(fqrn, destination)
    with reading(bind) as connection:
        done = connection.scalars(select(installed.c.nested_hash).where(installed.c.place == where)).all()
        begun = select(publications.c.nested_hash).where(
            publications.c.place == where, publications.c.nested_hash.is_not(None)
        )
        return frozenset([*done, *connection.scalars(begun)])


def note_installed(bind: Bind, fqrn: str, destination: str, sha256: str, nested: str, *, now: datetime) -> None:
    """Know a nested catalog as what an artifact became at a destination, though no publication brought it there."""

    def work(connection: Connection) -> None:
        key = {"place": place(fqrn, destination), "artifact_sha256": sha256}
        _keep_installed(connection, key, {"nested_hash": nested, "updated_at": now})

    writing(bind, work)


def waiting_changesets(bind: Bind, fqrn: str) -> tuple[Publication, ...]:
    """Return what runs have prepared for a repository and not published yet."""
    waits = (
        publications.c.repository == fqrn,
        publications.c.changeset.is_not(None),
        publications.c.state.not_in([state.value for state in ENDED]),
    )
    return _all(bind, _joined().where(*waits).order_by(publications.c.id))


def rehash(bind: Bind, replaced: Mapping[str, str]) -> int:
    """Know nested catalogs by new hashes: of trees that were rewritten and hold the same. How many were known."""

    def work(connection: Connection) -> int:
        known = set[str]()
        for table in (installed, publications):
            known.update(
                nested_hash
                for nested_hash in connection.scalars(select(table.c.nested_hash).distinct())
                if nested_hash is not None
            )
        for old in sorted(known & replaced.keys()):
            for table in (installed, publications):
                values = {"nested_hash": replaced[old]}
                connection.execute(update(table).where(table.c.nested_hash == old).values(**values))
        return len(known & replaced.keys())

    return writing(bind, work)


def history(bind: Bind, fqrn: str, destination: str, *, limit: int = 100) -> tuple[Publication, ...]:
    """Return what became of a destination over the runs, the newest first."""
    where = publications.c.place == place(fqrn, destination)
    return _all(bind, _joined().where(where).order_by(*_NEWEST).limit(limit))


def recorded_nested_hash(bind: Bind, fqrn: str, destination: str, sha256: str) -> str | None:
    """The nested catalog's hash under which this artifact was last published there, or None.

    Whether the repository still holds it is not known here: compare with the signed manifest's catalogs.
    """
    query = select(installed.c.nested_hash).where(
        installed.c.place == place(fqrn, destination), installed.c.artifact_sha256 == sha256
    )
    with reading(bind) as connection:
        found: str | None = connection.scalar(query)
    return found


def artifact_that_became(bind: Bind, fqrn: str, destination: str, nested: str) -> str | None:
    """The sum of the artifact that became this nested catalog at a destination; None if this ledger knows of none."""
    where = place(fqrn, destination)
    known = select(installed.c.artifact_sha256).where(installed.c.place == where, installed.c.nested_hash == nested)
    done = (
        select(publications.c.artifact_sha256)
        .where(publications.c.place == where, publications.c.nested_hash == nested)
        .order_by(publications.c.id.desc())
    )
    with reading(bind) as connection:
        found: str | None = connection.scalar(known.limit(1)) or connection.scalar(done.limit(1))
    return found


def earlier_destinations(bind: Bind, publication: Publication) -> tuple[str, ...]:
    """Return where the same project of the same slot was published before, its own platform first, then the newest.

    Looked for among the project's newest artifacts, so that it costs the same however old the ledger is.
    """
    if publication.slot is None or publication.project is None:
        return ()
    platform = artifacts.c.platform
    with reading(bind) as connection:
        own = _published(connection, publication, platform == publication.platform)
        others = _published(connection, publication, platform != publication.platform)
    # dictionaries keep the first of equal ones, in order
    return tuple(dict.fromkeys([*own[:2], *others]))[:NEIGHBOURS]


_FIGURES = tuple(field.name for field in fields(Figures) if field.name != "seconds")
_NEWEST = (publications.c.updated_at.desc(), publications.c.id.desc())


def new_row(key: PublicationKey, planned: Planned, try_number: int, now: datetime) -> dict[str, Any]:
    """The row of a publication that is new."""
    return {
        "run_id": key.run_id,
        "place": place(key.repository, key.destination),
        "repository": key.repository,
        "destination": key.destination,
        "artifact": planned.artifact,
        "artifact_sha256": planned.sha256,
        "state": State.PLANNED.value,
        "reason": planned.reason[:_REASON_LENGTH],
        "phase": Phase.PLAN.value,
        "try_number": try_number,
        "plan_try": try_number,
        "prepare_try": 0,
        "publish_try": 0,
        "approve_try": 0,
        "seconds": {},
        "created_at": now,
        "updated_at": now,
    }


def _recorded(figures: Figures, row: RowMapping) -> dict[str, Any]:
    values = {name: getattr(figures, name) for name in _FIGURES if getattr(figures, name) is not None}
    if figures.seconds:
        values["seconds"] = {**row["seconds"], **figures.seconds}
    return values


def _is(key: PublicationKey) -> tuple[Any, Any]:
    where_place = publications.c.place == place(key.repository, key.destination)
    return publications.c.run_id == key.run_id, where_place


def _locked(connection: Connection, key: PublicationKey) -> RowMapping | None:
    # SQLite has no FOR UPDATE and needs none: a writing transaction there is alone from its start
    return connection.execute(select(publications).where(*_is(key)).with_for_update()).mappings().first()


def _set(connection: Connection, key: PublicationKey, values: Mapping[str, Any]) -> None:
    connection.execute(update(publications).where(*_is(key)).values(**values))


def _note_installed(connection: Connection, key: PublicationKey, now: datetime) -> None:
    # kept apart from the publication's row, which begins again when its run is cleared
    row = connection.execute(select(publications).where(*_is(key))).mappings().one()
    if row["nested_hash"] is None or row["artifact_sha256"] is None:
        return
    key_columns = {"place": row["place"], "artifact_sha256": row["artifact_sha256"]}
    _keep_installed(connection, key_columns, {"nested_hash": row["nested_hash"], "updated_at": now})


def _keep_installed(connection: Connection, key_columns: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    where = [installed.c[name] == value for name, value in key_columns.items()]
    if connection.execute(update(installed).where(*where).values(**values)).rowcount:
        return
    try:
        with connection.begin_nested():
            connection.execute(insert(installed).values(**key_columns, **values))
    except IntegrityError:
        connection.execute(update(installed).where(*where).values(**values))


def _joined() -> Any:
    return select(
        publications, builds.c.slot, builds.c.build_id, artifacts.c.project, artifacts.c.platform
    ).select_from(
        publications.outerjoin(artifacts, publications.c.artifact == artifacts.c.id).outerjoin(
            builds, artifacts.c.build == builds.c.id
        )
    )


def _found(connection: Connection, key: PublicationKey) -> Publication:
    return Publication.from_json(connection.execute(_joined().where(*_is(key))).mappings().one())


def _all(bind: Bind, query: Any) -> tuple[Publication, ...]:
    with reading(bind) as connection:
        rows: Sequence[RowMapping] = connection.execute(query).mappings().all()
    return tuple(Publication.from_json(row) for row in rows)


def _published(connection: Connection, publication: Publication, platform: ColumnElement[bool]) -> list[str]:
    """Return where the newest artifacts of the project on these platforms were published, what was published last
    first."""
    newest = (
        select(artifacts.c.id)
        .join(builds, artifacts.c.build == builds.c.id)
        .where(builds.c.slot == publication.slot, artifacts.c.project == publication.project, platform)
        .order_by(builds.c.build_date.desc(), builds.c.id.desc())
        .limit(LOOKED_AT)
    )
    ids = connection.scalars(newest).all()
    # by its artifact alone: with repository or state beside it a database may walk all that was ever published
    columns = (publications.c.repository, publications.c.state, publications.c.destination)
    when = (publications.c.updated_at, publications.c.id)
    rows = connection.execute(select(*columns, *when).where(publications.c.artifact.in_(ids))).all()
    good = [row for row in rows if row.repository == publication.repository and State(row.state).good]
    return [row.destination for row in sorted(good, key=lambda row: (row.updated_at, row.id), reverse=True)]


def _of_run(connection: Connection, run: str) -> dict[PublicationKey, Publication]:
    return {publication.key: publication for publication in publications_of_run(connection, run)}


def _insert(
    connection: Connection,
    keys: Sequence[PublicationKey],
    planned: Mapping[PublicationKey, Planned],
    try_number: int,
    now: datetime,
) -> frozenset[PublicationKey]:
    """The keys, if they are new rows now; none if another process planned one of them in this moment."""
    rows = [new_row(key, planned[key], try_number, now) for key in keys]
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
