"""Rows of the ledger for the page *Nights*. Every query has a bound or asks for one night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from sqlalchemy import and_, func, or_, select

from include.ledger.engine import Bind, reading
from include.monitoring.summary import NightVerdict, expected, verdict_of
from include.nightlies.records import quality
from include.nightlies.records.builds import preceding_row
from include.nightlies.records.links import LINK, LinkRecord
from include.nightlies.records.quality import QualityRecord
from include.nightlies.records.tables import artifacts, builds, changesets, links, publications
from include.nightlies.rules.build import BuildKey, LinkState
from include.nightlies.rules.dependencies import is_required, is_taken
from include.nightlies.rules.publication import Skip, State
from include.settings.model import Slot

_STATES = {state.value: state for state in State}
PAGE = 20
"""Nights of one page of the list."""
NIGHTS, DAY_S = 7, 86400.0
"""Earlier nights from which the end of a running one is expected, and the seconds of each that count."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place where the list of nights goes on: after the build of that date and row."""

    date: date
    id: int


@dataclass(frozen=True, slots=True)
class BuildRow:
    """A build in the list of nights. `states`: how many of its artifacts are in which state, by their last run.

    `complete`: whether its index is; None: no run has taken the build. `fates`: the last state of each artifact, by
    project and platform, None where no run has taken it; `rejected`: what its index made unusable.
    """

    id: int
    slot: str
    build_id: str
    date: date
    complete: bool | None
    artifacts: int
    updated_at: datetime
    states: Counter[State]
    fates: Mapping[tuple[str, str], State | None] = field(default_factory=dict)
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RunRow:
    """The work of a run for a night."""

    run: str
    began_at: datetime
    ended_at: datetime
    states: Counter[State]

    @property
    def busy(self) -> bool:
        """Tell whether a part of its plan has not ended."""
        return any(not state.ended for state in self.states)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A link, where it leads, and the last decision about it. `leads_to`: the build's id; None: it does not exist."""

    path: str
    leads_to: str | None
    leads_to_date: date | None
    last: LinkRecord


def newest_builds(
    bind: Bind, *, slot: str | None = None, after: Cursor | None = None, since: date | None = None, limit: int = PAGE
) -> tuple[BuildRow, ...]:
    """The builds of one slot or of all, the newest first; `since`: none before that date."""
    names = ("id", "slot", "build_id", "build_date", "complete", "updated_at", "rejected")
    query = select(*(builds.c[name] for name in names)).order_by(builds.c.build_date.desc(), builds.c.id.desc())
    if slot is not None:
        query = query.where(builds.c.slot == slot)
    if since is not None:
        query = query.where(builds.c.build_date >= since)
    if after is not None:
        same = and_(builds.c.build_date == after.date, builds.c.id < after.id)
        query = query.where(or_(builds.c.build_date < after.date, same))
    with reading(bind) as connection:
        rows = connection.execute(query.limit(limit)).all()
        ids = [row.id for row in rows]
        newest = (
            select(func.max(publications.c.id))
            .where(
                publications.c.artifact == artifacts.c.id,
                func.coalesce(publications.c.skip_reason, "") != Skip.DRY_RUN.value,
            )
            .correlate(artifacts)
            .scalar_subquery()
        )
        states = (
            select(artifacts.c.build, artifacts.c.project, artifacts.c.platform, publications.c.state)
            .outerjoin(publications, publications.c.id == newest)
            .where(artifacts.c.build.in_(ids))
        )
        fates: dict[int, dict[tuple[str, str], State | None]] = {row.id: {} for row in rows}
        for build, project, platform, state in connection.execute(states):
            fates[build][project, platform] = None if state is None else _STATES[state]
    return tuple(
        BuildRow(
            row.id, row.slot, row.build_id, row.build_date, row.complete, len(fates[row.id]), row.updated_at,
            Counter(state for state in fates[row.id].values() if state is not None), fates[row.id],
            tuple((entry.get("project") or "", entry.get("platform") or "") for entry in row.rejected),
        )
        for row in rows
    )  # fmt: skip


def kept_back(
    bind: Bind, slots: Iterable[str], shown: Sequence[BuildRow], *, after: Cursor | None, more: bool
) -> tuple[BuildRow, ...]:
    """The builds of a page of the list, with those among their dates whose index was blocked before any was taken.

    Args:
        bind: The ledger.
        slots: Slots of the list.
        shown: Builds of the page, the newest first.
        after: Where the page begins.
        more: Whether the list goes on after it.
    """
    since, before = shown[-1].date if more else None, after.date if after is not None else None
    blocked = [
        BuildRow(0, record.slot, record.build_id, record.build_date, None, 0, record.checked_at, Counter())
        for record in quality.blocked_unknown(bind, slots, since=since, before=before, limit=PAGE)
        if record.build_date is not None
    ]
    return tuple(sorted([*shown, *blocked], key=lambda row: (row.date, row.id), reverse=True))


def verdicts(bind: Bind, slots: Mapping[str, Slot], shown: Iterable[BuildRow]) -> dict[tuple[str, date], NightVerdict]:
    """The verdict of each night, as its summary has it, without reading what runs did for each artifact.

    Args:
        bind: The ledger.
        slots: The slots of the configuration; nights of others have no verdict.
        shown: All builds of the nights.
    """
    nights: dict[tuple[str, date], list[BuildRow]] = {}
    for row in shown:
        if row.slot in slots:
            nights.setdefault((row.slot, row.date), []).append(row)
    figures = {}
    with reading(bind) as connection:
        before = {
            (slot, day): preceding_row(
                connection,
                slot,
                min((BuildKey(day, row.build_id) for row in rows if row.id), default=BuildKey(day, "")),
            )
            for (slot, day), rows in nights.items()
        }
        had: dict[int | None, list[tuple[str, str]]] = {}
        query = select(artifacts.c.build, artifacts.c.project, artifacts.c.platform)
        rows_ = {row for row in before.values() if row is not None}
        for build, project, platform in connection.execute(query.where(artifacts.c.build.in_(rows_))):
            had.setdefault(build, []).append((project, platform))
        for (slot, day), rows in nights.items():
            blocked = quality.blocked_night(
                connection, slot, day, [row.build_id for row in rows], slots[slot].quality
            )  # fmt: skip
            taken = [row for row in rows if row.id]
            figures[slot, day] = _verdict(slots[slot], taken, had.get(before[slot, day], []), blocked)
    return figures


def _verdict(
    slot: Slot, rows: Sequence[BuildRow], before: Sequence[tuple[str, str]], blocked: Sequence[QualityRecord]
) -> NightVerdict:
    lacking, open_ones, present = list[str](), 0, set[tuple[str, str]]()
    for row in rows:
        unusable = {pair: State.FAILED for pair in row.rejected if all(pair)}
        for pair, state in {**unusable, **row.fates}.items():
            if is_taken(slot, *pair):
                present.add(pair)
                if not (state is not None and state.good) and is_required(slot, *pair):
                    lacking.append("/".join(pair))
                    open_ones += state is None or not state.ended
    missing = [pair for pair in expected(slot, before, "", present) if pair not in present and is_required(slot, *pair)]
    newest = rows[0] if rows else None
    return verdict_of(
        builds=[row.build_id for row in rows],
        complete=bool(newest and newest.complete),
        lacking=[*lacking, *("/".join(pair) for pair in missing)],
        open_ones=open_ones,
        blocked=blocked,
    )


def neighbours(bind: Bind, slot: str, day: date) -> tuple[date | None, date | None]:
    """The dates of the slot's builds before and after that one."""
    of_slot, when = builds.c.slot == slot, builds.c.build_date
    with reading(bind) as connection:
        before = connection.scalar(select(func.max(when)).where(of_slot, when < day))
        after = connection.scalar(select(func.min(when)).where(of_slot, when > day))
    return before, after


def night_of_run(bind: Bind, run: str) -> tuple[str, date] | None:
    """Slot and date that a run worked on; None if it recorded no artifact and judged no build."""
    query = (
        select(builds.c.slot, builds.c.build_date)
        .join(artifacts, artifacts.c.build == builds.c.id)
        .join(publications, publications.c.artifact == artifacts.c.id)
        .where(publications.c.run_id == run)
        .limit(1)
    )
    with reading(bind) as connection:
        row = connection.execute(query).first()
    if row is not None:
        return row.slot, row.build_date
    judged = next(iter(quality.of_run(bind, run).values()), None)
    return None if judged is None or judged.build_date is None else (judged.slot, judged.build_date)


def runs_of(bind: Bind, builds_: Sequence[int]) -> tuple[RunRow, ...]:
    """The runs that worked on these builds, the first first."""
    query = (
        select(
            publications.c.run_id,
            publications.c.state,
            func.count().label("count"),
            func.min(publications.c.created_at).label("began"),
            func.max(publications.c.updated_at).label("ended"),
        )
        .join(artifacts, publications.c.artifact == artifacts.c.id)
        .where(artifacts.c.build.in_(builds_))
        .group_by(publications.c.run_id, publications.c.state)
    )
    runs: dict[str, RunRow] = {}
    with reading(bind) as connection:
        for row in connection.execute(query):
            before = runs.get(row.run_id)
            states = Counter({State(row.state): row.count})
            if before is None:
                runs[row.run_id] = RunRow(row.run_id, row.began, row.ended, states)
            else:
                began, ended = min(before.began_at, row.began), max(before.ended_at, row.ended)
                runs[row.run_id] = RunRow(row.run_id, began, ended, before.states + states)
    return tuple(sorted(runs.values(), key=lambda run: (run.began_at, run.run)))


def bytes_before(bind: Bind, build: int) -> dict[tuple[str, str], int]:
    """The size that each artifact of a build had when it was prepared, by project and platform."""
    query = (
        select(artifacts.c.project, artifacts.c.platform, publications.c.bytes)
        .join(publications, publications.c.artifact == artifacts.c.id)
        .where(artifacts.c.build == build, publications.c.bytes.is_not(None))
        .order_by(publications.c.id)
    )
    with reading(bind) as connection:
        return {(row.project, row.platform): row.bytes for row in connection.execute(query)}


def prepared_since(bind: Bind, changesets_: Iterable[str]) -> dict[str, datetime]:
    """Return when the preparation of each of these changesets began, by its digest."""
    query = select(changesets.c.digest, changesets.c.created_at).where(changesets.c.digest.in_(list(changesets_)))
    with reading(bind) as connection:
        return {row.digest: row.created_at for row in connection.execute(query)}


def earlier_courses(bind: Bind, slot: str, before: date, *, nights: int = NIGHTS) -> list[list[float]]:
    """Return of each of the last nights the seconds from its first plan to the first end of each artifact, in order.

    What ended more than a day after its night had begun does not count: it was installed again by a person.
    """
    when = builds.c.build_date
    with reading(bind) as connection:
        last = select(when).where(builds.c.slot == slot, when < before).group_by(when).order_by(when.desc())
        dates = connection.scalars(last.limit(nights)).all()
        listed = select(builds.c.id, when).where(builds.c.slot == slot, when.in_(dates))
        days = {row.id: row.build_date for row in connection.execute(listed)}
        ends = (
            select(
                artifacts.c.build,
                func.min(publications.c.created_at).label("began"),
                func.min(publications.c.ended_at).label("ended"),
            )
            .join(artifacts, publications.c.artifact == artifacts.c.id)
            .where(artifacts.c.build.in_(list(days)), publications.c.ended_at.is_not(None))
            .where(func.coalesce(publications.c.skip_reason, "") != Skip.DRY_RUN.value)
            .group_by(artifacts.c.build, publications.c.artifact)
        )
        rows = connection.execute(ends).all()
    by_day: dict[date, list[tuple[datetime, datetime]]] = {}
    for row in rows:
        by_day.setdefault(days[row.build], []).append((row.began, row.ended))
    courses = []
    for times in by_day.values():
        first = min(began for began, _ in times)
        lengths = sorted((ended - first).total_seconds() for _, ended in times)
        courses.append([seconds for seconds in lengths if seconds <= DAY_S])
    return [course for course in courses if course]


def places_of(bind: Bind, build: int) -> dict[str, str]:
    """Return where the artifacts of a build are in the repository, by name, as the last good run recorded it."""
    good = [state.value for state in State if state.good]
    query = (
        select(artifacts.c.project, artifacts.c.platform, publications.c.destination)
        .join(publications, publications.c.artifact == artifacts.c.id)
        .where(artifacts.c.build == build, publications.c.state.in_(good))
        .order_by(publications.c.id)
    )
    with reading(bind) as connection:
        return {f"{row.project}/{row.platform}": row.destination for row in connection.execute(query)}


def links_of_slot(bind: Bind, slot: str, paths: Sequence[str], repository: str) -> tuple[LinkRow, ...]:
    """Return these links of a slot, in this order; those that nothing was decided of are left out."""
    changed = (LinkState.MOVED.value, LinkState.UNCHANGED.value, LinkState.REMOVED.value)
    of_slot = (
        links.c.slot == slot, links.c.repository == repository, links.c.kind == LINK, links.c.path.in_(paths)
    )  # fmt: skip
    newest = select(func.max(links.c.id)).where(*of_slot).group_by(links.c.path)
    leading = select(func.max(links.c.id)).where(*of_slot, links.c.state.in_(changed)).group_by(links.c.path)
    with reading(bind) as connection:
        ids = connection.scalars(newest).all(), connection.scalars(leading).all()
        rows = connection.execute(select(links).where(links.c.id.in_([*ids[0], *ids[1]]))).mappings().all()
    by_id = {row["id"]: row for row in rows}
    leads = {by_id[row_id]["path"]: by_id[row_id] for row_id in ids[1]}
    latest = {}
    for row_id in ids[0]:
        path = by_id[row_id]["path"]
        last = LinkRecord(**{name: by_id[row_id][name] for name in LinkRecord.__slots__})
        to = leads.get(path)
        if to is None or to["state"] == LinkState.REMOVED.value:
            latest[path] = LinkRow(path, None, None, last)
        else:
            latest[path] = LinkRow(path, to["build_id"], to["build_date"], last)
    return tuple(latest[path] for path in paths if path in latest)
