"""Artifacts that were taken back, which no night installs again by itself; directories that runs created."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update

from include.json_values import JsonValue
from include.ledger.engine import Bind, reading, writing
from include.nightlies.records.publications import place
from include.nightlies.records.tables import artifacts, created, undone


def note(bind: Bind, run: str, fqrn: str, paths: Iterable[str], *, now: datetime) -> None:
    """Remember that the run creates these; again changes nothing."""
    wanted = dict.fromkeys(paths)

    def work(connection: Connection) -> None:
        known = set(of_run(connection, run, fqrn))
        rows = [
            {"run_id": run, "place": place(fqrn, path), "repository": fqrn, "path": path, "noted_at": now}
            for path in wanted
            if path not in known
        ]
        if rows:
            connection.execute(insert(created), rows)

    writing(bind, work)


def of_run(bind: Bind, run: str, fqrn: str) -> tuple[str, ...]:
    """Return what the run created in a repository, by path."""
    query = select(created.c.path).where(created.c.run_id == run, created.c.repository == fqrn)
    with reading(bind) as connection:
        return tuple(sorted(connection.scalars(query)))


def forget(bind: Bind, run: str, fqrn: str) -> None:
    """Forget what the run created, so that what exists now stays."""
    where = (created.c.run_id == run, created.c.repository == fqrn)

    def work(connection: Connection) -> None:
        connection.execute(delete(created).where(*where))

    writing(bind, work)


@dataclass(frozen=True, slots=True)
class Undone(JsonValue):
    """Artifact that was taken back. `predecessor`: the build whose tree is there instead, None: nothing."""

    artifact: int
    artifact_sha256: str
    repository: str
    destination: str
    nested_hash: str
    predecessor: str | None
    reason: str
    run_id: str
    revision: int | None
    undone_at: datetime

    def __str__(self) -> str:
        instead = f", {self.predecessor} is there instead" if self.predecessor else ""
        return f"undone at {self.undone_at:%Y-%m-%d %H:%M} UTC by {self.run_id}{instead}: {self.reason}"


def record(bind: Bind, taken: Iterable[Undone]) -> None:
    """Keep these; what is recorded of the same artifact already is not recorded twice."""

    def work(connection: Connection) -> None:
        for entry in taken:
            where = (
                undone.c.artifact == entry.artifact,
                undone.c.artifact_sha256 == entry.artifact_sha256,
                undone.c.lifted_at.is_(None),
            )
            row = connection.execute(select(undone.c.id).where(*where)).first()
            if row is None:
                connection.execute(insert(undone).values(**asdict(entry)))
            else:
                connection.execute(update(undone).where(undone.c.id == row.id).values(**asdict(entry)))

    writing(bind, work)


def of_build(bind: Bind, build: int) -> dict[tuple[int, str], Undone]:
    """Return what is undone of a build, by artifact and its sum: a rebuilt artifact is another one."""
    query = (
        select(undone)
        .join(artifacts, undone.c.artifact == artifacts.c.id)
        .where(artifacts.c.build == build, undone.c.lifted_at.is_(None))
    )
    with reading(bind) as connection:
        rows = connection.execute(query).mappings().all()
    found = (Undone.from_json(row) for row in rows)
    return {(entry.artifact, entry.artifact_sha256): entry for entry in found}


def of_artifact(bind: Bind, artifact: int, sha256: str | None) -> Undone | None:
    """Return who took an artifact (its row in the ledger, of that sum) back; None: it was not, or it may come again."""
    query = select(undone).where(
        undone.c.artifact == artifact, undone.c.artifact_sha256 == sha256, undone.c.lifted_at.is_(None)
    )
    with reading(bind) as connection:
        row = connection.execute(query).mappings().first()
    return None if row is None else Undone.from_json(row)


def lift_back(bind: Bind, back: Iterable[tuple[int, str]], *, now: datetime) -> int:
    """Forget that these were taken back: artifacts with their sums that are in the repository again; how many."""

    def work(connection: Connection) -> int:
        count = 0
        for artifact, sha256 in back:
            where = (undone.c.artifact == artifact, undone.c.artifact_sha256 == sha256, undone.c.lifted_at.is_(None))
            count += int(connection.execute(update(undone).where(*where).values(lifted_at=now)).rowcount)
        return count

    return writing(bind, work)


def lift(bind: Bind, ids: Iterable[int], *, now: datetime) -> int:
    """Let these artifacts be installed again by the next run that installs their build; how many there were."""
    wanted = list(ids)

    def work(connection: Connection) -> int:
        where = (undone.c.artifact.in_(wanted), undone.c.lifted_at.is_(None))
        return int(connection.execute(update(undone).where(*where).values(lifted_at=now)).rowcount)

    return writing(bind, work)
