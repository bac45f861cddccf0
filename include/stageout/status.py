"""Questions about transfers, of the command, the REST API and the pages: counts, lists, one file's history.

`wanted` is a `TransferFilter`; a user who may see only own transfers has `owner` in it. Counts and the choice of rows
read indices only; a page reads a bounded number of rows, so it may have fewer than `limit` and still a next one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, Table, func, literal, or_, select

from include.fts.errors import redact
from include.ledger.engine import Bind, reading
from include.settings.sites import RemoteSite
from include.stageout.errors import StageoutError
from include.stageout.files import SiteOperation, digest_of, is_bare, site_urls
from include.stageout.requests import AT_ONCE, pieces, rows_in
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.tables import (
    stageout_analytics,
    stageout_archive,
    stageout_jobs,
    stageout_queues,
    stageout_requests,
    stageout_transfers,
    stageout_workflows,
)

MAX_PAGE = 1000
SPAN = 20_000
"""Ids that a page of a filter without owner and workflow looks through."""
NEWEST = 64
"""Requests of a workflow that are looked through at once for a page."""
MIXED = timedelta(minutes=2)
"""Requests that came within this time may have their transfers' ids mixed: one may wait for rows that others hold."""
_BY_QUEUE = "FORCE INDEX (ix_stageout_transfers_state_queue_due_at)"
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TransferFilter:
    """A choice of transfers; fields with None or an empty value match anything.

    Attributes:
        owner: The user whom they belong to.
        workflow: What they belong to.
        user_job: The job of the workflow that wrote them.
        source: The site that they come from.
        destination: The site that they go to.
        site: Either of both.
        name: The logical name at the source or the destination.
        failure: The class of the last failure, as in `TransferFailureClass`.
        states: Their states.
    """

    owner: str | None = None
    workflow: str | None = None
    user_job: str | None = None
    source: str | None = None
    destination: str | None = None
    site: str | None = None
    name: str | None = None
    failure: str | None = None
    states: tuple[TransferState, ...] = ()


@dataclass(frozen=True, slots=True)
class TransferCount:
    """A number of transfers by what they share; workflow and failure are known of archived ones, or if asked for."""

    owner: str
    source: str
    destination: str
    state: TransferState
    files: int
    workflow: str | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class TransferStatus:
    """A transfer as it is now. `fts_id`: that of its last job; `due_at`: when something happens next, if it does."""

    id: int
    owner: str
    workflow: str
    source: str
    source_name: str
    destination: str
    destination_name: str
    size: int | None
    checksum: str | None
    dataset: str | None
    user_job: str | None
    state: TransferState
    reason: str
    retries: int
    failure: str | None
    fts_id: str | None
    created_at: datetime
    copied_at: datetime | None
    moved_at: datetime
    due_at: datetime | None
    archived: bool

    @classmethod
    def from_row(cls, row: RowMapping) -> TransferStatus:
        """From a row of `_of_transfers` or `_of_archive`. A URL is shown without what its query may hide."""
        names = {name: redact(row[name]) for name in ("source_name", "destination_name") if is_bare(row[name])}
        values = {**row, **names}
        state = TransferState(values.pop("state"))
        due_at = None if state in TRANSFER_ENDED else values.pop("due_at", None)
        values.pop("due_at", None)
        return cls(**values, state=state, due_at=due_at)


@dataclass(frozen=True, slots=True)
class TransferPage:
    """Some transfers; `after`: what the next page is asked for with, None: there is none."""

    rows: tuple[TransferStatus, ...]
    after: int | None


@dataclass(frozen=True, slots=True)
class WorkflowStatus:
    """A workflow; `files`: those that were requested, also if they were resubmitted or archived."""

    owner: str
    name: str
    requests: int
    files: int
    first_at: datetime
    last_at: datetime
    closed_at: datetime | None
    killed_at: datetime | None


def count_transfers(bind: Bind, wanted: TransferFilter) -> tuple[TransferCount, ...]:
    """Transfers that are not archived, by owner, link and state.

    Without `workflow`, `user_job`, `name` and `failure` only an index is read.
    """
    with reading(bind) as connection:
        found: dict[tuple[int, str], int] = {}
        columns = stageout_transfers.c
        counted = select(columns.queue, columns.state, func.count().label("files")).group_by(
            columns.state, columns.queue
        )
        queues = _queues(connection, wanted)
        for query, _ in _narrowed(connection, counted, wanted, queues, AT_ONCE):
            for row in connection.execute(query):
                found[row.queue, row.state] = found.get((row.queue, row.state), 0) + row.files
        known = _queue_names(connection, {queue for queue, _ in found})
        return tuple(
            TransferCount(*known[queue], TransferState(state), files, wanted.workflow, wanted.failure)
            for (queue, state), files in found.items()
        )


def count_archived(bind: Bind, wanted: TransferFilter, *, since: datetime | None = None) -> tuple[TransferCount, ...]:
    """Transfers that are archived, by owner, link, state, workflow and failure class, from their daily sums.

    `wanted`: which; `user_job` and `name` are not in the sums, and are not considered. `since`: only days from this one
    on; without it and without `owner` or `workflow`, all days are read.
    """
    columns = stageout_analytics.c
    names = (columns.owner, columns.source, columns.destination, columns.state, columns.workflow, columns.failure)
    query = select(*names, func.sum(columns.files).label("files")).group_by(*names)
    equal = {"owner": wanted.owner, "workflow": wanted.workflow, "failure": wanted.failure}
    query = query.where(*(columns[name] == value for name, value in equal.items() if value is not None))
    query = query.where(*_of_link(stageout_analytics, wanted))
    if wanted.states:
        query = query.where(columns.state.in_([state.value for state in wanted.states]))
    if since is not None:
        query = query.where(columns.day >= since)
    with reading(bind) as connection:
        return tuple(
            TransferCount(**{**row, "state": TransferState(row["state"]), "files": int(row["files"])})
            for row in connection.execute(query).mappings()
        )


def sum_counts(counts: Iterable[TransferCount], key: Callable[[TransferCount], K]) -> dict[K, int]:
    """Files by what `key` takes of a count, in the order of the counts."""
    sums: dict[K, int] = {}
    for count in counts:
        sums[key(count)] = sums.get(key(count), 0) + count.files
    return sums


def list_transfers(
    bind: Bind, wanted: TransferFilter, *, after: int | None = None, limit: int = 100, archived: bool = True
) -> TransferPage:
    """Transfers, archived or not, the newest request first.

    `after`: the `after` of the page before; None: the first page. `limit`: how many at most, up to MAX_PAGE.
    `archived`: whether archived ones are among them. Returns a page; without `owner` and `workflow` it may have fewer
    rows than `limit`, or none, and a next page, unless few have the wanted states and link and none of them is
    archived.
    """
    limit = max(1, min(limit, MAX_PAGE))
    with reading(bind) as connection:
        top = after if after is not None else _highest(connection) + 1
        archived = archived and (not wanted.states or not TRANSFER_ENDED.isdisjoint(wanted.states))
        # those of an owner or workflow have an index, and so have few of a state; of others a bounded number is read
        indexed = bool(wanted.owner or wanted.workflow)
        few = None if indexed else _few_ids(connection, wanted, top)
        low = 0 if indexed or (few is not None and not archived) else max(0, top - SPAN)
        if few is None:
            ids = _live_ids(connection, wanted, low, top, limit + 1)
        else:
            ids = [number for number in few if number >= low][: limit + 1]
        if archived:
            ids += connection.scalars(_archived_ids(wanted, low, top, limit + 1))
        chosen = sorted(set(ids), reverse=True)  # one that is just being archived may be in both
        rows = _statuses(connection, chosen[:limit])
    if len(chosen) > limit:
        return TransferPage(rows, chosen[limit - 1])
    return TransferPage(rows, low or None)


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file of a request at its destination. `url`: None as long as no copy is verified; `reason`: of its state."""

    id: int
    site: str
    name: str
    url: str | None
    size: int | None
    checksum: str | None
    dataset: str | None
    registered: bool
    state: TransferState
    reason: str


_PLACED = frozenset({TransferState.REGISTERED, TransferState.CLEANING, TransferState.CLEANED, TransferState.KEPT})


def copy_of(sites: Mapping[str, RemoteSite], row: TransferStatus) -> FileCopy:
    """The file of a transfer at its destination."""
    verified = row.state in _PLACED or row.state is TransferState.DONE
    return FileCopy(
        row.id, row.destination, row.destination_name, _read_url(sites, row) if verified else None, row.size,
        row.checksum, row.dataset, row.dataset is not None and row.state in _PLACED, row.state, row.reason,
    )  # fmt: skip


def copies_of(bind: Bind, sites: Mapping[str, RemoteSite], chosen: TransferFilter) -> Iterator[FileCopy]:
    """Give the files of these transfers, archived or not, the newest request first."""
    after = None
    while True:
        page = list_transfers(bind, chosen, after=after, limit=MAX_PAGE)
        yield from (copy_of(sites, row) for row in page.rows)
        if page.after is None:
            return
        after = page.after


def _read_url(sites: Mapping[str, RemoteSite], row: TransferStatus) -> str | None:
    try:
        urls = site_urls(sites.get(row.destination), SiteOperation.READ, row.destination_name)
    except StageoutError:  # the configuration has no rule for it any more
        return None
    return next(iter(urls.values()))


def transfers_of_request(bind: Bind, request: int) -> tuple[TransferStatus, ...]:
    """The transfers of a request, archived or not, by id."""
    with reading(bind) as connection:
        tables = (stageout_transfers, stageout_archive)
        ids = [
            number
            for table in tables
            for number in connection.scalars(select(table.c.id).where(table.c.request == request))
        ]
        return _statuses(connection, sorted(ids))


def transfer_status(bind: Bind, number: int) -> TransferStatus | None:
    """A transfer, archived or not, by its id; None: there is none."""
    with reading(bind) as connection:
        return next(iter(_statuses(connection, [number])), None)


def workflow_status(bind: Bind, owner: str, name: str) -> WorkflowStatus | None:
    """A workflow of a user; None: no request in the ledger names it."""
    with reading(bind) as connection:
        return next(iter(_workflows(connection, owner, name=name, limit=1)), None)


def list_workflows(bind: Bind, owner: str, *, after: str = "", limit: int = 100) -> tuple[WorkflowStatus, ...]:
    """The workflows of a user, by name; `after`: the last name of the page before."""
    with reading(bind) as connection:
        return _workflows(connection, owner, after=after, limit=min(limit, MAX_PAGE))


def waiting_since(bind: Bind) -> dict[TransferState, datetime]:
    """Return since when a transfer is due, of each state in which something happens by itself."""
    columns = stageout_transfers.c
    found: dict[TransferState, datetime] = {}
    with reading(bind) as connection:
        for state in (state for state in TransferState if state not in TRANSFER_ENDED):
            first = connection.scalar(select(func.min(columns.due_at)).where(columns.state == state.value))
            if first is not None:
                found[state] = first
    return found


def _of_link(table: Table, wanted: TransferFilter) -> list[ColumnElement[bool]]:
    """Return what holds for source and destination of the rows of a table that has both."""
    where = [table.c[name] == getattr(wanted, name) for name in ("source", "destination") if getattr(wanted, name)]
    if wanted.site is not None:
        where.append(or_(table.c.source == wanted.site, table.c.destination == wanted.site))
    return where


def _of_file(table: Table, wanted: TransferFilter) -> list[ColumnElement[bool]]:
    """Return what holds for the file; these columns are in no index."""
    where = [table.c[name] == getattr(wanted, name) for name in ("user_job", "failure") if getattr(wanted, name)]
    if wanted.name is not None:
        where.append(or_(table.c.source_name == wanted.name, table.c.destination_name == wanted.name))
    return where


def _queues(connection: Connection, wanted: TransferFilter) -> list[int] | None:
    """The queues that can have what is wanted; None: all."""
    where = _of_link(stageout_queues, wanted)
    if wanted.owner is not None:
        where.append(stageout_queues.c.owner == wanted.owner)
    return list(connection.scalars(select(stageout_queues.c.id).where(*where))) if where else None


def _queue_names(connection: Connection, queues: Iterable[int]) -> dict[int, tuple[str, str, str]]:
    columns = stageout_queues.c
    query = select(columns.id, columns.owner, columns.source, columns.destination)
    rows = rows_in(connection, query, columns.id, queues)
    return {row.id: (row.owner, row.source, row.destination) for row in rows}


def _narrowed(
    connection: Connection, query: Select[Any], wanted: TransferFilter, queues: Sequence[int] | None, at_once: int
) -> Iterator[tuple[Select[Any], Sequence[int]]]:
    """The query for what is wanted, in pieces; for a workflow by its requests, the newest first, with their ids."""
    columns = stageout_transfers.c
    query = query.where(*_of_file(stageout_transfers, wanted))
    if wanted.states or wanted.workflow is None:  # the index by request has no states
        query = query.where(columns.state.in_([state.value for state in wanted.states or TransferState]))
    if wanted.workflow is not None:
        where = [stageout_requests.c.workflow == wanted.workflow]
        where += [stageout_requests.c.owner == wanted.owner] if wanted.owner is not None else []
        newest = select(stageout_requests.c.id).where(*where).order_by(stageout_requests.c.id.desc())
        requests = connection.scalars(newest).all()
        query = query.with_hint(stageout_transfers, "FORCE INDEX (ix_stageout_transfers_request_state_queue)", "mysql")
        if queues is not None and _of_link(stageout_queues, wanted):
            link = select(stageout_queues.c.id).where(*_of_link(stageout_queues, wanted))
            query = query.where(columns.queue.in_(link))
        for start in range(0, len(requests), at_once):
            yield query.where(columns.request.in_(ids := requests[start : start + at_once])), ids
        return
    query = query.with_hint(stageout_transfers, _BY_QUEUE, "mysql")
    for piece in [None] if queues is None else pieces(queues):
        yield query if piece is None else query.where(columns.queue.in_(piece)), ()


def _live_ids(connection: Connection, wanted: TransferFilter, low: int, top: int, limit: int) -> list[int]:
    columns = stageout_transfers.c
    newest = select(columns.id).where(columns.id >= low, columns.id < top).order_by(columns.id.desc()).limit(limit)
    if wanted.owner is None and wanted.workflow is None:
        where = _of_file(stageout_transfers, wanted)
        if wanted.states:
            where.append(columns.state.in_([state.value for state in wanted.states]))
        if _of_link(stageout_queues, wanted):
            link = select(stageout_queues.c.id).where(*_of_link(stageout_queues, wanted))
            where.append(columns.queue.in_(link))
        newest = newest.with_hint(stageout_transfers, "FORCE INDEX (PRIMARY)", "mysql")
        return list(connection.scalars(newest.where(*where)))
    found: list[int] = []
    until: datetime | None = None
    for query, requests in _narrowed(connection, newest, wanted, _queues(connection, wanted), NEWEST):
        if until is not None and _created_at(connection, requests[0]) < until:
            break
        found += connection.scalars(query)
        if requests and until is None and len(found) >= limit:
            until = _created_at(connection, requests[-1]) - MIXED
    return sorted(found, reverse=True)[:limit]


def _created_at(connection: Connection, request: int) -> datetime:
    query: Select[datetime] = select(stageout_requests.c.created_at).where(stageout_requests.c.id == request)
    return connection.scalars(query).one()


def _few_ids(connection: Connection, wanted: TransferFilter, top: int) -> list[int] | None:
    """The ids of these states and this link below `top`, the newest first; None if there are more than SPAN."""
    queues = _queues(connection, wanted)
    if not wanted.states and queues is None:
        return None
    columns = stageout_transfers.c
    states = [state.value for state in wanted.states or TransferState]
    query = select(columns.id).with_hint(stageout_transfers, _BY_QUEUE, "mysql")
    query = query.where(columns.state.in_(states), columns.id < top)
    choices = [query] if queues is None else [query.where(columns.queue.in_(piece)) for piece in pieces(queues)]
    left = SPAN
    for choice in choices:
        # counted by the server: to fetch as many ids takes several times as long
        left -= connection.scalar(select(func.count()).select_from(choice.limit(left + 1).subquery())) or 0
        if left < 0:
            return None
    found = [number for choice in choices for number in connection.scalars(choice)]
    of_file = _of_file(stageout_transfers, wanted)
    if of_file:
        chosen = select(columns.id).where(*of_file)
        found = [
            number for piece in pieces(found) for number in connection.scalars(chosen.where(columns.id.in_(piece)))
        ]
    return sorted(found, reverse=True)


def _archived_ids(wanted: TransferFilter, low: int, top: int, limit: int) -> Select[tuple[int]]:
    columns = stageout_archive.c
    where = [columns.id >= low, columns.id < top, *_of_link(stageout_archive, wanted)]
    where += _of_file(stageout_archive, wanted)
    where += [columns[name] == getattr(wanted, name) for name in ("owner", "workflow") if getattr(wanted, name)]
    if wanted.states:
        where.append(columns.state.in_([state.value for state in wanted.states]))
    index = "workflow" if wanted.workflow else "owner" if wanted.owner else None
    hint = f"FORCE INDEX ({f'ix_stageout_archive_{index}' if index else 'PRIMARY'})"
    query = select(columns.id).with_hint(stageout_archive, hint, "mysql")
    return query.where(*where).order_by(columns.id.desc()).limit(limit)


def _highest(connection: Connection) -> int:
    return max(connection.scalar(select(func.max(table.c.id))) or 0 for table in (stageout_transfers, stageout_archive))


_SAME = (
    "id", "source_name", "destination_name", "size", "checksum", "dataset", "user_job", "state", "reason", "retries",
    "failure", "copied_at", "created_at", "moved_at",
)  # fmt: skip
"""Columns that both tables have."""


def _statuses(connection: Connection, ids: Sequence[int]) -> tuple[TransferStatus, ...]:
    """The transfers with these ids, in their order."""
    found: dict[int, TransferStatus] = {}
    for piece in pieces(ids):
        for query in (_of_transfers(piece), _of_archive(piece)):
            found |= {row["id"]: TransferStatus.from_row(row) for row in connection.execute(query).mappings()}
    return tuple(found[number] for number in ids if number in found)


def _of_transfers(ids: Sequence[int]) -> Select[Any]:
    query = select(
        *(stageout_transfers.c[name] for name in (*_SAME, "due_at")),
        stageout_queues.c.owner, stageout_queues.c.source, stageout_queues.c.destination,
        stageout_requests.c.workflow, stageout_jobs.c.fts_id, literal(False).label("archived"),
    )  # fmt: skip
    query = query.join(stageout_queues, stageout_transfers.c.queue == stageout_queues.c.id)
    query = query.join(stageout_requests, stageout_transfers.c.request == stageout_requests.c.id)
    query = query.outerjoin(stageout_jobs, stageout_transfers.c.job == stageout_jobs.c.id)
    return query.where(stageout_transfers.c.id.in_(ids))


def _of_archive(ids: Sequence[int]) -> Select[Any]:
    names = (*_SAME, "owner", "source", "destination", "workflow", "fts_id")
    query = select(*(stageout_archive.c[name] for name in names), literal(True).label("archived"))
    return query.where(stageout_archive.c.id.in_(ids))


def _workflows(
    connection: Connection, owner: str, *, limit: int, name: str | None = None, after: str = ""
) -> tuple[WorkflowStatus, ...]:
    columns = stageout_requests.c
    query = select(
        columns.workflow, func.count().label("requests"), func.sum(columns.files).label("files"),
        func.min(columns.created_at).label("first_at"), func.max(columns.created_at).label("last_at"),
    ).where(columns.owner == owner, columns.workflow > after)  # fmt: skip
    query = query.where(columns.workflow == name) if name is not None else query
    rows = connection.execute(query.group_by(columns.workflow).order_by(columns.workflow).limit(limit)).all()
    whole: Mapping[str, Row[Any]] = {}
    if rows:
        digests = [digest_of(owner, row.workflow) for row in rows]
        marked = select(stageout_workflows).where(stageout_workflows.c.digest.in_(digests))
        whole = {row.name: row for row in connection.execute(marked)}
    return tuple(
        WorkflowStatus(
            owner, row.workflow, row.requests, int(row.files), row.first_at, row.last_at,
            whole[row.workflow].closed_at if row.workflow in whole else None,
            whole[row.workflow].killed_at if row.workflow in whole else None,
        )
        for row in rows
    )  # fmt: skip
