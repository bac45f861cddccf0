"""Requests for transfers, and rows of them in a ledger."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, Row, Table, func, select

from include.ledger.engine import reading
from include.stageout.files import FileToTransfer, StageoutRequest
from include.stageout.requests import Transfer, record_request
from include.stageout.states import TransferState
from include.stageout.tables import stageout_transfers

NOW = datetime(2026, 11, 23, 12, 0, 0, 123456, tzinfo=UTC)
_numbers = itertools.count()


def transfer(**fields: Any) -> Transfer:
    """A transfer as a component has it, that FTS has."""
    plain: dict[str, Any] = {field.name: None for field in dataclasses.fields(Transfer)}
    plain |= {
        "id": 7, "request": 1, "state": TransferState.SUBMITTED, "retries": 0, "size": 10, "may_overwrite": False,
        "source": "pisa", "source_name": "/store/temp/7", "destination": "bari", "destination_name": "/store/7",
        "owner": "ann", "activity": "default", "created_at": NOW, "moved_at": NOW,
    }  # fmt: skip
    return Transfer(**plain | fields)


def file_to_transfer(**fields: object) -> FileToTransfer:
    """One with a destination that no other has."""
    number = next(_numbers)
    plain = {
        "source": "pisa",
        "source_name": f"/store/temp/user/ann/out_{number}.root",
        "destination": "bari",
        "destination_name": f"/store/user/ann/out_{number}.root",
    }
    return FileToTransfer(**{**plain, **fields})  # type: ignore[arg-type]


def request_of(count: int = 1, *, owner: str = "ann", key: str | None = None, **fields: object) -> StageoutRequest:
    """A request for so many files with these fields."""
    files = tuple(file_to_transfer(**fields) for _ in range(count))
    return StageoutRequest(owner, key or f"key-{next(_numbers)}", "workflow", files)


def recorded(ledger: Engine, count: int = 1, *, now: datetime = NOW, **fields: object) -> list[int]:
    """The ids of so many new transfers with these fields."""
    receipt = record_request(ledger, request_of(count, **fields), now=now)  # type: ignore[arg-type]
    columns = stageout_transfers.c
    with reading(ledger) as connection:
        return list(connection.scalars(select(columns.id).where(columns.request == receipt.id).order_by(columns.id)))


def states(ledger: Engine) -> dict[int, TransferState]:
    """The state of every transfer."""
    with reading(ledger) as connection:
        rows = connection.execute(select(stageout_transfers.c.id, stageout_transfers.c.state))
        return {row.id: TransferState(row.state) for row in rows}


def row_of(ledger: Engine, number: int, table: Table = stageout_transfers) -> Row[Any]:
    """A row by its id."""
    with reading(ledger) as connection:
        return connection.execute(select(table).where(table.c.id == number)).one()


def count_rows(ledger: Engine, table: Table) -> int:
    with reading(ledger) as connection:
        return int(connection.scalar(select(func.count()).select_from(table)) or 0)
