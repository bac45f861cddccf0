"""Ledger records of the quality gate: the verdict of each suite in a run, and the figures that nights have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from enum import Enum

from sqlalchemy import Connection, RowMapping, exists, func, insert, or_, select, update

from include.json_values import JsonValue
from include.ledger.engine import Bind, reading, writing
from include.nightlies.records.tables import artifacts, builds, publications, quality
from include.nightlies.records.undos import of_build
from include.nightlies.rules.build import BuildKey
from include.nightlies.rules.publication import State
from include.settings.prepare import QualityMode, QualitySettings, Suite

_REASON_LENGTH = 4000
ROWS, ROW_LENGTH = 100, 500
"""Rows that are kept of a suite, and characters of each; the Data Docs have all."""
_GOOD = [state.value for state in State if state.good]
LOOKED_AT = 60
"""Number of earlier builds that are searched for those that count: some were refused or undone."""


class QualityVerdict(Enum):
    """The verdict of a suite on a build. Only `BLOCKED` stops a run."""

    PASSED = "passed"
    WARNED = "warned"
    BLOCKED = "blocked"
    ACCEPTED = "accepted"
    """Faults were found, and a person accepted them with a reason."""


@dataclass(frozen=True, slots=True)
class QualityRecord(JsonValue):
    """Verdict of a suite in a run. `reason`: its first fault, or why there is none; `faults`: their number.

    `accepted`: why a person accepted the faults, "" if they were not accepted. `build_date`, `fault_rows`: the date of
    the build, and its first faults; None and empty in what earlier versions recorded.
    """

    run_id: str
    suite: Suite
    slot: str
    build_id: str
    verdict: QualityVerdict
    reason: str
    accepted: str
    faults: int
    checked_at: datetime
    build_date: date | None = None
    fault_rows: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" (and {self.faults - 1} more)" if self.faults > 1 else ""
        return f"quality, suite {self.suite.value}: {self.reason}{more}"


@dataclass(frozen=True, slots=True)
class ArtifactFigures:
    """Ledger's figures of an artifact of a build; None where nothing of it is in the repository.

    `size`: of the artifact itself; `files`, `bytes`: of its tree; `seconds`: of work, of all runs; `added_bytes`,
    `added_objects`: what they stored of it. Sizes in bytes.
    """

    size: int
    sha256: str
    files: int | None = None
    bytes: int | None = None
    seconds: float = 0.0
    added_bytes: int = 0
    added_objects: int = 0


@dataclass(frozen=True, slots=True)
class NightFigures:
    """A build with the figures of its artifacts, by name."""

    key: BuildKey
    artifacts: Mapping[str, ArtifactFigures]


def record(bind: Bind, found: QualityRecord) -> None:
    """Record the result of a suite in a run; the same suite of the same run again replaces it."""
    values = asdict(found) | {
        "suite": found.suite.value, "verdict": found.verdict.value, "reason": found.reason[:_REASON_LENGTH],
        "fault_rows": [row[:ROW_LENGTH] for row in found.fault_rows[:ROWS]],
    }  # fmt: skip

    def work(connection: Connection) -> None:
        where = (quality.c.run_id == found.run_id, quality.c.suite == found.suite.value)
        if connection.execute(select(quality.c.id).where(*where).with_for_update()).first():
            connection.execute(update(quality).where(*where).values(**values))
        else:
            connection.execute(insert(quality).values(**values))

    writing(bind, work)


def of_run(bind: Bind, run: str) -> dict[Suite, QualityRecord]:
    """The result of each suite in a run."""
    return {judged.suite: judged for judged in _records(bind, quality.c.run_id == run)}


def blocked(bind: Bind, slot: str, build_id: str, settings: QualitySettings | None) -> list[QualityRecord]:
    """Return which suites that block the slot's builds rejected this one, in the newest run that asked them."""
    return _blocking(_records(bind, quality.c.slot == slot, quality.c.build_id == build_id), settings)


def blocked_night(
    bind: Bind, slot: str, day: date, build_ids: Iterable[str], settings: QualitySettings | None
) -> list[QualityRecord]:
    """The same of all builds of a night, also of one whose index was blocked before the ledger knew the build."""
    if settings is None:
        return []
    of_night = or_(quality.c.build_id.in_(list(build_ids)), quality.c.build_date == day)
    return _blocking(_records(bind, quality.c.slot == slot, of_night), settings)


def blocked_unknown(
    bind: Bind, slots: Iterable[str], *, since: date | None, before: date | None, limit: int
) -> list[QualityRecord]:
    """Builds whose index was blocked before the ledger knew them: the newest record of each, the newest first.

    Args:
        bind: The ledger.
        slots: Slots to look at.
        since: The first build date; None: any.
        before: The build date after the last one; None: any.
        limit: Records at most.
    """
    there = exists().where(builds.c.slot == quality.c.slot, builds.c.build_id == quality.c.build_id)
    newest = (
        select(func.max(quality.c.id))
        .where(quality.c.slot.in_(list(slots)), quality.c.build_date.is_not(None), ~there)
        .group_by(quality.c.slot, quality.c.build_id)
    )
    where = [quality.c.id.in_(newest), quality.c.verdict == QualityVerdict.BLOCKED.value]
    where += [quality.c.build_date >= since] if since is not None else []
    where += [quality.c.build_date < before] if before is not None else []
    query = select(quality).where(*where).order_by(quality.c.build_date.desc(), quality.c.id.desc()).limit(limit)
    with reading(bind) as connection:
        return [_record(row) for row in connection.execute(query).mappings()]


def _blocking(records: Iterable[QualityRecord], settings: QualitySettings | None) -> list[QualityRecord]:
    if settings is None:
        return []
    newest = {(judged.build_id, judged.suite): judged for judged in records}
    return [
        judged
        for (_, suite), judged in newest.items()
        if judged.verdict is QualityVerdict.BLOCKED and settings.mode(suite) is QualityMode.BLOCK
    ]


def earlier_nights(bind: Bind, slot: str, before: BuildKey, *, limit: int) -> tuple[NightFigures, ...]:
    """The newest complete builds of a slot before that one that are in the repository, the newest first.

    A build that a suite refused is not among them, nor is what was undone.
    """
    query = (
        select(builds.c.id, builds.c.build_id, builds.c.build_date)
        .where(builds.c.slot == slot, builds.c.build_date <= before.date, builds.c.complete)
        .order_by(builds.c.build_date.desc(), builds.c.id.desc())
        .limit(LOOKED_AT)
    )
    nights: list[NightFigures] = []
    with reading(bind) as connection:
        found = {BuildKey(row.build_date, row.build_id): row.id for row in connection.execute(query)}
        refused = _refused(connection, slot, [key.build_id for key in found])
        for key in sorted(found, reverse=True):
            if len(nights) == limit:
                break
            if key < before and key.build_id not in refused:
                known = NightFigures(key, _figures(connection, found[key]))
                nights += [known] if any(figures.files is not None for figures in known.artifacts.values()) else []
    return tuple(nights)


def night(bind: Bind, slot: str, build_id: str, build_date: date) -> NightFigures:
    """The figures of one build; it may have none."""
    query = select(builds.c.id).where(builds.c.slot == slot, builds.c.build_id == build_id)
    with reading(bind) as connection:
        row = connection.scalar(query)
        return NightFigures(BuildKey(build_date, build_id), {} if row is None else _figures(connection, row))


def _figures(connection: Connection, build: int) -> dict[str, ArtifactFigures]:
    """By artifact. Each counts as its build lists it now, not as it was before it was rebuilt."""
    query = select(artifacts).where(artifacts.c.build == build)
    gone = of_build(connection, build)
    listed = {row["id"]: row for row in connection.execute(query).mappings() if (row["id"], row["sha256"]) not in gone}
    figures = {number: ArtifactFigures(row["size"], row["sha256"]) for number, row in listed.items()}
    done = (
        select(publications)
        .join(artifacts, publications.c.artifact == artifacts.c.id)
        .where(artifacts.c.build == build, publications.c.state.in_(_GOOD))
        .order_by(publications.c.updated_at, publications.c.id)
    )
    for row in connection.execute(done).mappings():
        before = figures.get(row["artifact"])
        if before is None or row["artifact_sha256"] != before.sha256:
            continue
        figures[row["artifact"]] = replace(
            before,
            files=before.files if row["files"] is None else row["files"],
            bytes=before.bytes if row["bytes"] is None else row["bytes"],
            seconds=before.seconds + sum(row["seconds"].values()),
            added_bytes=before.added_bytes + (row["bytes_uploaded"] or 0),
            added_objects=before.added_objects + (row["objects_new"] or 0),
        )
    return {f"{listed[number]['project']}/{listed[number]['platform']}": figure for number, figure in figures.items()}


def _refused(connection: Connection, slot: str, build_ids: Iterable[str]) -> set[str]:
    newest = {
        (judged.build_id, judged.suite): judged
        for judged in _records(connection, quality.c.slot == slot, quality.c.build_id.in_(list(build_ids)))
    }
    return {build_id for (build_id, _), judged in newest.items() if judged.verdict is QualityVerdict.BLOCKED}


def _records(bind: Bind, *where: object) -> list[QualityRecord]:
    query = select(quality).where(*where).order_by(quality.c.checked_at, quality.c.id)  # type: ignore[arg-type]
    with reading(bind) as connection:
        rows = connection.execute(query).mappings().all()
    return [_record(row) for row in rows]


def _record(row: RowMapping) -> QualityRecord:
    return QualityRecord.from_json({**row, "fault_rows": row["fault_rows"] or ()})
