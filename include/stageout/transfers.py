"""Transfers and FTS jobs as components take them from the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import Column, Row, Table

from include.stageout.files import FileKind
from include.stageout.retry import TransferFailureClass
from include.stageout.states import TransferJobState, TransferState
from include.stageout.tables import stageout_queues

T = TypeVar("T")
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


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
