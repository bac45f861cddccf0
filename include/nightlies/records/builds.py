"""Ledger records of builds, their artifacts and the changesets made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from include.cvmfs.ingest.changeset import Changeset
from include.ledger.engine import Bind, reading, writing
from include.nightlies.errors import BuildMoved, BuildOvertaken
from include.nightlies.records.publications import place
from include.nightlies.records.tables import artifacts, builds, changesets
from include.nightlies.rules.build import ArtifactRecord, BuildKey, BuildRecord, build_directory, build_of_directory
from include.nightlies.rules.index import Artifact, BuildIndex, ParentBuild, RejectedArtifact
from include.settings.model import Slot

_OF_ARTIFACT = tuple(field.name for field in fields(Artifact))
"""Columns of an artifact's row that are as its index has them."""


@dataclass(frozen=True, slots=True)
class ChangesetRecord:
    """A stored changeset: `body` is its JSON, `digest` what names it, `source_sha256` the artifact it was made of."""

    digest: str
    repository: str
    destination: str
    source_sha256: str
    root_hash: str
    generation: int
    base_revision: int | None
    body: str
    created_at: datetime

    @classmethod
    def of(cls, changeset: Changeset) -> ChangesetRecord:
        """Changeset as it is kept."""
        return cls(
            digest=changeset.digest,
            repository=changeset.repository,
            destination=changeset.destination,
            source_sha256=changeset.source_sha256 or "",
            root_hash=str(changeset.root),
            generation=changeset.generation,
            base_revision=changeset.base_revision,
            body=changeset.format().decode(),
            created_at=changeset.created,
        )


def record_build(
    bind: Bind,
    index: BuildIndex,
    *,
    index_url: str,
    now: datetime,
    inherited: Sequence[Artifact] = (),
    seen: frozenset[tuple[int, datetime]] | None = None,
) -> BuildRecord:
    """Record the build and its artifacts as the index lists them; what an index no longer lists stays.

    `inherited`: what a partial build takes from its base. `seen`: what `seen_of` gave before the index was read. Raises
    BuildMoved when the ledger has that build id for another date, BuildOvertaken when it was recorded since `seen`.
    """

    def work(connection: Connection) -> BuildRecord:
        if seen is not None and seen_of(connection, index.slot, index.date) != seen:
            raise BuildOvertaken(index.slot, index.build_id)
        values = {
            "complete": index.complete,
            "index_url": index_url,
            "artifacts": len(index.artifacts),
            "rejected": [artifact.to_json() for artifact in index.rejected],
            "updated_at": now,
            "serial": index.serial,
            "written_at": index.created,
            "base_build": index.base.build_id if index.base else None,
            "base_date": index.base.date if index.base else None,
        }
        key = {"slot": index.slot, "build_id": index.build_id}
        row = _upsert(connection, builds, key, values, {"build_date": index.date, "first_seen_at": now})
        if row["build_date"] != index.date:
            raise BuildMoved(index.slot, index.build_id, row["build_date"], index.date)
        for artifact in index.artifacts:
            _record_artifact(connection, row["id"], artifact, now)
        for artifact in inherited:
            _record_artifact(connection, row["id"], artifact, now, index.base.build_id if index.base else None)
        return _build(connection, row)

    return writing(bind, work)


def build(bind: Bind, slot: str, build_id: str) -> BuildRecord | None:
    """The build of that id, or None."""
    with reading(bind) as connection:
        query = select(builds).where(builds.c.slot == slot, builds.c.build_id == build_id)
        row = connection.execute(query).mappings().first()
        return None if row is None else _build(connection, row)


def builds_of(bind: Bind, slot: str, build_date: date) -> tuple[BuildRecord, ...]:
    """The builds of a slot's date, the newest first; usually one."""
    with reading(bind) as connection:
        query = (
            select(builds)
            .where(builds.c.slot == slot, builds.c.build_date == build_date)
            .order_by(builds.c.first_seen_at.desc(), builds.c.id.desc())
        )
        return tuple(_build(connection, row) for row in connection.execute(query).mappings().all())


def earlier_builds(bind: Bind, slot: str, before: BuildKey) -> tuple[BuildRecord, ...]:
    """The builds of a slot that come before that one, the newest first."""
    with reading(bind) as connection:
        query = select(builds).where(builds.c.slot == slot, builds.c.build_date <= before.date)
        found = [_build(connection, row) for row in connection.execute(query).mappings().all()]
    return tuple(sorted((known for known in found if known.key < before), key=lambda known: known.key, reverse=True))


def preceding_build(bind: Bind, slot: str, before: BuildKey) -> BuildRecord | None:
    """The newest build of a slot that comes before that one; costs the same however many there are.

    Builds that became known after the first of that date do not count, so a backfill of older dates changes no verdict.
    """
    with reading(bind) as connection:
        row_id = preceding_row(connection, slot, before)
        if row_id is None:
            return None
        row = connection.execute(select(builds).where(builds.c.id == row_id)).mappings().one()
        return _build(connection, row)


def preceding_row(bind: Bind, slot: str, before: BuildKey) -> int | None:
    """The row of the build that `preceding_build` finds."""
    columns = (builds.c.id, builds.c.build_id, builds.c.build_date)
    of_slot = builds.c.slot == slot
    with reading(bind) as connection:
        first = select(func.min(builds.c.first_seen_at)).where(of_slot, builds.c.build_date == before.date)
        seen_at = connection.scalar(first)
        earlier = [of_slot] if seen_at is None else [of_slot, builds.c.first_seen_at <= seen_at]
        day = func.max(builds.c.build_date)
        last = connection.scalar(select(day).where(*earlier, builds.c.build_date < before.date))
        query = select(*columns).where(*earlier, builds.c.build_date.in_([before.date, *([last] if last else [])]))
        keys = {BuildKey(row.build_date, row.build_id): row.id for row in connection.execute(query)}
        newest = max((key for key in keys if key < before), default=None)
        return None if newest is None else keys[newest]


def partial_builds(bind: Bind, slot: str) -> tuple[BuildRecord, ...]:
    """The builds of a slot that have a parent build."""
    with reading(bind) as connection:
        query = select(builds).where(builds.c.slot == slot, builds.c.base_build.is_not(None))
        return tuple(_build(connection, row) for row in connection.execute(query).mappings().all())


def taken_from(bind: Bind, artifact: int) -> str | None:
    """The build that an artifact (its row in the ledger) was inherited from; None: its own build lists it."""
    with reading(bind) as connection:
        found: str | None = connection.scalar(select(artifacts.c.inherited).where(artifacts.c.id == artifact))
    return found


def rebuilt_as(bind: Bind, artifact: int | None, sha256: str | None) -> str | None:
    """The sum that an artifact (its row in the ledger) is listed with now, if it is another one than this."""
    if artifact is None:
        return None
    with reading(bind) as connection:
        found: str | None = connection.scalar(select(artifacts.c.sha256).where(artifacts.c.id == artifact))
    return None if found == sha256 else found


def seen_of(bind: Bind, slot: str, build_date: date) -> frozenset[tuple[int, datetime]]:
    """Return what changes whenever a build of that date is recorded; for `record_build`."""
    with reading(bind) as connection:
        query = select(builds.c.id, builds.c.updated_at).where(builds.c.slot == slot, builds.c.build_date == build_date)
        return frozenset((row.id, row.updated_at) for row in connection.execute(query.with_for_update()))


def key_of_directory(bind: Bind, slot: Slot, path: str) -> BuildKey | None:
    """The build whose directory a path is, by the slot's rule and the ledger; None if no such build is known."""
    parts = build_of_directory(slot, path)
    if parts is None:
        return None
    if (build_id := parts.get("build_id")) is not None:
        found = build(bind, slot.name, build_id)
    else:
        found = next(iter(builds_of(bind, slot.name, date.fromisoformat(parts["date"]))), None)
    if found is None or build_directory(slot, found.build_id, build_date=found.date) != path:
        return None
    return found.key


def save_changeset(bind: Bind, record: ChangesetRecord) -> None:
    """Keep a changeset; of the same digest the one that was begun last."""
    values = asdict(record) | {"place": place(record.repository, record.destination)}

    def work(connection: Connection) -> None:
        if connection.scalar(select(changesets.c.digest).where(changesets.c.digest == record.digest)) is None:
            try:
                with connection.begin_nested():
                    connection.execute(insert(changesets).values(**values))
            except IntegrityError:
                pass  # two tries stored the same changeset in the same moment
        connection.execute(
            update(changesets)
            .where(changesets.c.digest == record.digest, changesets.c.created_at < record.created_at)
            .values(body=record.body, created_at=record.created_at)
        )

    writing(bind, work)


def changeset(bind: Bind, digest: str) -> ChangesetRecord | None:
    """The changeset of that digest, or None."""
    with reading(bind) as connection:
        row = connection.execute(select(changesets).where(changesets.c.digest == digest)).mappings().first()
    return None if row is None else _changeset(row)


def latest_changeset(bind: Bind, fqrn: str, destination: str, source_sha256: str) -> ChangesetRecord | None:
    """The changeset of this artifact for this destination that was begun last, or None."""
    query = (
        select(changesets)
        .where(changesets.c.place == place(fqrn, destination), changesets.c.source_sha256 == source_sha256)
        .order_by(changesets.c.created_at.desc(), changesets.c.digest)
        .limit(1)
    )
    with reading(bind) as connection:
        row = connection.execute(query).mappings().first()
    return None if row is None else _changeset(row)


def _record_artifact(
    connection: Connection, build_row: int, artifact: Artifact, now: datetime, inherited: str | None = None
) -> None:
    key = {"build": build_row, "project": artifact.project, "platform": artifact.platform}
    values = {name: getattr(artifact, name) for name in _OF_ARTIFACT if name not in key}
    values |= {"inherited": inherited, "updated_at": now}
    _upsert(connection, artifacts, key, values, {"first_seen_at": now})


def _upsert(
    connection: Connection, table: Any, key: Mapping[str, Any], values: Mapping[str, Any], once: Mapping[str, Any]
) -> RowMapping:
    """Insert the row or update its `values`; `once` is only written when the row is new."""
    where = [table.c[name] == value for name, value in key.items()]
    if not connection.execute(select(table.c.id).where(*where).with_for_update()).first():
        try:
            with connection.begin_nested():
                connection.execute(insert(table).values(**key, **values, **once))
        except IntegrityError:
            pass  # another process inserted it in this moment: it is updated below
    connection.execute(update(table).where(*where).values(**values))
    return connection.execute(select(table).where(*where)).mappings().one()


def _build(connection: Connection, row: RowMapping) -> BuildRecord:
    query = select(artifacts).where(artifacts.c.build == row["id"]).order_by(artifacts.c.project, artifacts.c.platform)
    return BuildRecord(
        id=row["id"],
        slot=row["slot"],
        build_id=row["build_id"],
        date=row["build_date"],
        complete=row["complete"],
        index_url=row["index_url"],
        rejected=tuple(RejectedArtifact.from_json(artifact) for artifact in row["rejected"]),
        first_seen_at=row["first_seen_at"],
        updated_at=row["updated_at"],
        artifacts=tuple(_artifact(artifact) for artifact in connection.execute(query).mappings()),
        base=None if row["base_build"] is None else ParentBuild(row["base_build"], row["base_date"]),
        serial=row["serial"],
        written_at=row["written_at"],
    )


def _artifact(row: RowMapping) -> ArtifactRecord:
    values = {name: row[name] for name in _OF_ARTIFACT}
    artifact = Artifact(**values | {"dependencies": tuple(row["dependencies"])})
    times = (row["first_seen_at"], row["updated_at"])
    return ArtifactRecord(row["id"], row["build"], artifact, *times, row["inherited"])


def _changeset(row: RowMapping) -> ChangesetRecord:
    return ChangesetRecord(**{name: row[name] for name in row if name != "place"})
