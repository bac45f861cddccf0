"""Requests in the ledger, each recorded once; transfers and FTS jobs as components take them from there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import Column, ColumnElement, Connection, Insert, Row, Select, Table, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from include.fts.errors import redact
from include.ledger.engine import Bind, writing
from include.stageout.errors import DESTINATION_TAKEN, REQUEST_CHANGED, USER_CAPPED, WORKFLOW_CLOSED
from include.stageout.files import FileKind, FileToTransfer, StageoutRequest, digest_of
from include.stageout.retry import TransferFailureClass
from include.stageout.states import TRANSFER_ENDED, TransferJobState, TransferState
from include.stageout.tables import stageout_queues, stageout_requests, stageout_transfers, stageout_workflows

AT_ONCE = 500
"""Rows of one statement; SQLite takes 32,766 values at most."""
HOUR = timedelta(hours=1)
T = TypeVar("T")
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


@dataclass(frozen=True, slots=True)
class RequestReceipt:
    """The request's row; `repeated`: it was recorded by an earlier call."""

    id: int
    files: int
    repeated: bool


def pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items, in pieces that one statement takes."""
    return (items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE))


def rows_in(
    connection: Connection, query: Select[Any], column: ColumnElement[Any], values: Iterable[Any]
) -> Iterator[Row[Any]]:
    """The rows of a query whose column has one of the values; the values are asked for in order, in pieces."""
    for piece in pieces(sorted(set(values))):
        yield from connection.execute(query.where(column.in_(piece)))


def update_rows(
    connection: Connection, table: Table, ids: Iterable[int], values: Mapping[str, Any], *where: ColumnElement[bool]
) -> None:
    """Change rows in the same way, those that a further condition holds for."""
    for piece in pieces(sorted(set(ids))):
        connection.execute(update(table).where(table.c.id.in_(piece), *where).values(values))


def insert_new(table: Table) -> Insert:
    """Insert rows, but for those that a unique index has already."""
    return insert(table).prefix_with("IGNORE", dialect="mysql").prefix_with("OR IGNORE", dialect="sqlite")


@dataclass(frozen=True, slots=True)
class UserCaps:
    """The most files of one user: on the way, and asked for within an hour."""

    files: int
    files_per_hour: int


def record_request(
    bind: Bind, request: StageoutRequest, *, now: datetime, caps: UserCaps | None = None
) -> RequestReceipt:
    """Record the transfers of a request as new, in one transaction. The same request again changes nothing.

    `request`: one that `check_request` has passed. `caps`: of its owner; None: no limit. Raises StageoutError:
    REQUEST_CHANGED if the key was used for other files, DESTINATION_TAKEN if a transfer in the ledger has the
    destination of one of the files, WORKFLOW_CLOSED, USER_CAPPED. Nothing is recorded then.
    """

    def work(connection: Connection) -> RequestReceipt:
        found = _recorded(connection, request)
        if found is not None:
            return found
        _refuse_closed(connection, request)
        if caps is not None:
            _refuse_more(connection, request, caps, now)
        try:
            with connection.begin_nested():
                values = {
                    "owner": request.owner, "key": request.key, "workflow": request.workflow,
                    "digest": request.digest, "files": len(request.files), "created_at": now,
                }  # fmt: skip
                number = int(connection.execute(insert(stageout_requests).values(values)).lastrowid)
        except IntegrityError:
            # another process recorded it in this moment
            found = _recorded(connection, request)
            if found is None:
                raise
            return found
        _insert_transfers(connection, request, number, now)
        return RequestReceipt(number, len(request.files), repeated=False)

    return writing(bind, work)


def _recorded(connection: Connection, request: StageoutRequest) -> RequestReceipt | None:
    same = (stageout_requests.c.owner == request.owner, stageout_requests.c.key == request.key)
    row = connection.execute(select(stageout_requests).where(*same)).first()
    if row is None:
        return None
    if row.digest != request.digest:
        raise REQUEST_CHANGED(f"request {request.key} of {request.owner}", "the key was used for other files")
    return RequestReceipt(row.id, row.files, repeated=True)


def _refuse_closed(connection: Connection, request: StageoutRequest) -> None:
    columns = stageout_workflows.c
    of_it = (columns.digest == digest_of(request.owner, request.workflow), columns.closed_at.is_not(None))
    # locked: a workflow is closed before this request or after it
    closed_at = connection.scalar(select(columns.closed_at).where(*of_it).with_for_update(read=True))
    if closed_at is not None:
        workflow = f"workflow {request.workflow} of {request.owner}"
        raise WORKFLOW_CLOSED(workflow, f"it was closed at {closed_at.isoformat(timespec='seconds')}")


def _refuse_more(connection: Connection, request: StageoutRequest, caps: UserCaps, now: datetime) -> None:
    columns, queues, requests = stageout_transfers.c, stageout_queues.c, stageout_requests.c
    more = len(request.files)
    lately = (requests.owner == request.owner, requests.created_at > now - HOUR)
    hourly = int(connection.scalar(select(func.coalesce(func.sum(requests.files), 0)).where(*lately)) or 0)
    if hourly + more > caps.files_per_hour:
        why = f"{hourly} files were asked for within the last hour, of {caps.files_per_hour} at most"
        raise USER_CAPPED(f"user {request.owner}", f"{why}; this request has {more}")
    own = select(queues.id).where(queues.owner == request.owner)
    on_the_way = [state.value for state in TransferState if state not in TRANSFER_ENDED]
    rows = select(columns.id).where(columns.state.in_(on_the_way), columns.queue.in_(own)).limit(caps.files + 1)
    count = int(connection.scalar(select(func.count()).select_from(rows.subquery())) or 0)
    if count + more > caps.files:
        why = f"{count} files are on the way, of {caps.files} at most"
        raise USER_CAPPED(f"user {request.owner}", f"{why}; this request has {more}")


def _insert_transfers(connection: Connection, request: StageoutRequest, number: int, now: datetime) -> None:
    queues = _queues(connection, [_queue(request, file) for file in request.files])
    _refuse_taken(connection, request.files)
    rows = [
        {
            "request": number,
            "queue": queues[_queue(request, file)["digest"]],
            "place": file.place,
            "source_name": file.source_name,
            "destination_name": file.destination_name,
            "size": file.size,
            "checksum": file.checksum,
            "dataset": file.dataset,
            "user_job": file.user_job,
            "state": TransferState.NEW.value,
            "reason": "requested",
            "retries": 0,
            "may_overwrite": request.task is not None and request.task.overwrite,
            "due_at": now,
            "created_at": now,
            "moved_at": now,
        }
        for file in request.files
    ]
    try:
        for piece in pieces(rows):
            connection.execute(insert(stageout_transfers), piece)
    except IntegrityError:
        # another process took a destination in this moment
        _refuse_taken(connection, request.files)
        raise


def _queue(request: StageoutRequest, file: FileToTransfer) -> dict[str, Any]:
    values = {
        "owner": request.owner,
        "source": file.source,
        "destination": file.destination,
        "activity": file.activity,
        "kind": file.kind.value,
    }
    task = request.task
    options = {"fts": task and task.fts, "verify": task and task.verify, "priority": task and task.priority}
    chosen = map(str, options.values()) if task else ()
    return {"digest": digest_of(*values.values(), *chosen), **values, **options}


def _queues(connection: Connection, wanted: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The rows of these queues by digest; those that are new are made."""
    # in one order: two processes that insert the same wait for each other, and do not deadlock
    rows = [row for _, row in sorted({row["digest"]: row for row in wanted}.items())]
    found = _known_queues(connection, rows)
    missing = [row for row in rows if row["digest"] not in found]
    if not missing:
        return found
    for piece in pieces(missing):
        connection.execute(insert_new(stageout_queues), piece)
    return found | _known_queues(connection, missing)


def _known_queues(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    columns = stageout_queues.c
    digests = (row["digest"] for row in rows)
    found = rows_in(connection, select(columns.digest, columns.id), columns.digest, digests)
    return {row.digest: row.id for row in found}


def _refuse_taken(connection: Connection, files: Sequence[FileToTransfer]) -> None:
    columns = stageout_transfers.c
    for piece in pieces(files):
        taken = select(columns.id, columns.state, columns.destination_name)
        row = connection.execute(taken.where(columns.place.in_([file.place for file in piece])).limit(1)).first()
        if row is not None:
            what = f"transfer {row.id} ({row.state}) has this destination"
            raise DESTINATION_TAKEN(redact(row.destination_name), what)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferAtFts:
    """The part of a transfer that is compared with FTS's answers, or with its destination."""

    id: int
    job: int | None
    state: TransferState
    size: int | None
    checksum: str | None
    retries: int
    failure: TransferFailureClass | None
    source_name: str
    destination_name: str
    may_write_until: datetime | None
    began_at: datetime | None
    moved_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(TransferAtFts):
    """A transfer with its queue; the columns are explained in `tables`."""

    request: int
    dataset: str | None
    user_job: str | None
    may_overwrite: bool
    kept_by: str | None
    copied_at: datetime | None
    created_at: datetime
    owner: str
    source: str
    destination: str
    activity: str
    fts: str | None
    verify: str | None
    priority: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferJob:
    """An FTS job with its queue."""

    id: int
    sid: str
    fts_id: str
    server: str
    queue: int
    files: int
    overwrites: bool
    tries: int
    state: TransferJobState
    reason: str
    created_at: datetime
    moved_at: datetime
    owner: str
    source: str
    destination: str
    kind: FileKind
    fts: str | None


def columns_of(kind: type[Any], table: Table) -> list[Column[Any]]:
    """The columns that a type is made of, of its table or of that of queues."""
    names = [field.name for field in fields(kind)]
    return [table.c[name] if name in table.c else stageout_queues.c[name] for name in names]


def from_rows(kind: type[T], found: Iterable[Row[Any]]) -> tuple[T, ...]:
    """Rows with these columns as values of the type."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(tuple[kind, ...])  # type: ignore[valid-type]
    rows: tuple[T, ...] = _ADAPTERS[kind].validate_python([row._asdict() for row in found])
    return rows


def document_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, with texts for times and enumerations."""
    return {name: _text(field) for name, field in asdict(value).items()}


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.value if isinstance(value, Enum) else value
