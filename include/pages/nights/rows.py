"""What the page *Nights* reads from the ledger. Every query has a bound or asks for one night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import and_, func, or_, select

from include.ledger.engine import Bind, reading
from include.nightlies.records.links import LINK, LinkRecord
from include.nightlies.records.tables import artifacts, builds, links, publications
from include.nightlies.rules.links import LinkState
from include.nightlies.rules.states import Skip, State

PAGE = 20
"""Nights of one page of the list."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the list of nights goes on: after the build of that date and row."""

    date: date
    id: int


@dataclass(frozen=True, slots=True)
class BuildRow:
    """One build in the list of nights. `states`: how many of its artifacts are in which state, by their last run."""

    id: int
    slot: str
    build_id: str
    date: date
    complete: bool
    artifacts: int
    updated_at: datetime
    states: Counter[State]


@dataclass(frozen=True, slots=True)
class RunRow:
    """What one run did for a night."""

    run: str
    began_at: datetime
    ended_at: datetime
    states: Counter[State]

    @property
    def busy(self) -> bool:
        """Whether something that it planned has not ended."""
        return any(not state.ended for state in self.states)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Where one link leads, and what was decided of it last. `leads_to`: the build's id; None: it does not exist."""

    path: str
    leads_to: str | None
    leads_to_date: date | None
    last: LinkRecord


def newest_builds(
    bind: Bind, *, slot: str | None = None, after: Cursor | None = None, limit: int = PAGE
) -> tuple[BuildRow, ...]:
    """The builds of one slot or of all, the newest first."""
    names = ("id", "slot", "build_id", "build_date", "complete", "updated_at")
    query = select(*(builds.c[name] for name in names)).order_by(builds.c.build_date.desc(), builds.c.id.desc())
    if slot is not None:
        query = query.where(builds.c.slot == slot)
    if after is not None:
        same = and_(builds.c.build_date == after.date, builds.c.id < after.id)
        query = query.where(or_(builds.c.build_date < after.date, same))
    with reading(bind) as connection:
        rows = connection.execute(query.limit(limit)).all()
        ids = [row.id for row in rows]
        listed = select(artifacts.c.build, func.count()).where(artifacts.c.build.in_(ids)).group_by(artifacts.c.build)
        counts = {build: count for build, count in connection.execute(listed)}  # noqa: C416 - rows are no pairs
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
            select(artifacts.c.build, publications.c.state, func.count())
            .join(publications, publications.c.id == newest)
            .where(artifacts.c.build.in_(ids))
            .group_by(artifacts.c.build, publications.c.state)
        )
        found: dict[int, Counter[State]] = {}
        for build, state, count in connection.execute(states):
            found.setdefault(build, Counter())[State(state)] = count
    return tuple(
        BuildRow(row.id, row.slot, row.build_id, row.build_date, row.complete, counts.get(row.id, 0), row.updated_at,
                 found.get(row.id, Counter()))
        for row in rows
    )  # fmt: skip


def neighbours(bind: Bind, slot: str, day: date) -> tuple[date | None, date | None]:
    """The dates of the slot's builds before and after that one."""
    of_slot, when = builds.c.slot == slot, builds.c.build_date
    with reading(bind) as connection:
        before = connection.scalar(select(func.max(when)).where(of_slot, when < day))
        after = connection.scalar(select(func.min(when)).where(of_slot, when > day))
    return before, after


def newest_date(bind: Bind, slot: str) -> date | None:
    """The date of the slot's newest build."""
    with reading(bind) as connection:
        found: date | None = connection.scalar(select(func.max(builds.c.build_date)).where(builds.c.slot == slot))
    return found


def night_of_run(bind: Bind, run: str) -> tuple[str, date] | None:
    """Slot and date that a run worked on; None if it recorded no artifact."""
    query = (
        select(builds.c.slot, builds.c.build_date)
        .join(artifacts, artifacts.c.build == builds.c.id)
        .join(publications, publications.c.artifact == artifacts.c.id)
        .where(publications.c.run_id == run)
        .limit(1)
    )
    with reading(bind) as connection:
        row = connection.execute(query).first()
    return None if row is None else (row.slot, row.build_date)


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
    found: dict[str, RunRow] = {}
    with reading(bind) as connection:
        for row in connection.execute(query):
            before = found.get(row.run_id)
            states = Counter({State(row.state): row.count})
            if before is None:
                found[row.run_id] = RunRow(row.run_id, row.began, row.ended, states)
            else:
                began, ended = min(before.began_at, row.began), max(before.ended_at, row.ended)
                found[row.run_id] = RunRow(row.run_id, began, ended, before.states + states)
    return tuple(sorted(found.values(), key=lambda run: (run.began_at, run.run)))


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


def links_of_slot(bind: Bind, slot: str, paths: Sequence[str], repository: str) -> tuple[LinkRow, ...]:
    """Where these links of a slot lead, in this order; those that nothing was decided of are left out."""
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
    found = {}
    for row_id in ids[0]:
        path = by_id[row_id]["path"]
        last = LinkRecord(**{name: by_id[row_id][name] for name in LinkRecord.__slots__})
        to = leads.get(path)
        if to is None or to["state"] == LinkState.REMOVED.value:
            found[path] = LinkRow(path, None, None, last)
        else:
            found[path] = LinkRow(path, to["build_id"], to["build_date"], last)
    return tuple(found[path] for path in paths if path in found)
