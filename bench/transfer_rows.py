"""Rows of stage-out in bulk: users, links, requests, and transfers of which most are complete."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Engine, String, case, cast, func, insert, literal, select, text

from include.ledger.engine import writing
from include.stageout.files import digest_of
from include.stageout.tables import stageout_queues, stageout_requests, stageout_transfers

USERS, SITES, QUEUES = 200, 60, 5000
FILES = 100
"""Of a request."""
AT_ONCE = 200
"""Requests of one transaction."""
DAY = timedelta(days=1)
NEEDS_CREDENTIAL = 20
"""The first transfers."""
SPREAD = 7919
"""A prime: states are mixed as if they were drawn."""


def fill(engine: Engine, wanted: int) -> None:
    """So many transfers of the last day, and up to a request more; the server makes their rows itself."""
    chance, now = random.Random(1), datetime.now(UTC)
    queues = []
    for number in range(QUEUES):
        source, destination = chance.sample(range(SITES), 2)
        queues.append({
            "id": number + 1, "digest": digest_of(str(number)), "owner": f"user{number % USERS}",
            "source": f"site{source}", "destination": f"site{destination}", "activity": "default", "kind": "output",
        })  # fmt: skip
    _insert(engine, stageout_queues, queues)
    count = -(-wanted // FILES)
    for start in range(0, count, AT_ONCE):
        end = min(count, start + AT_ONCE)
        requests = [
            {"id": number + 1, "owner": f"user{number % USERS}", "key": f"k{number}", "digest": "a" * 64,
             "workflow": f"w{number // QUEUES}", "files": FILES, "created_at": now - DAY * (count - number) / count}
            for number in range(start, end)
        ]  # fmt: skip
        _insert(engine, stageout_requests, requests)
        transfers = _transfers(start + 1, end)
        with engine.begin() as connection:
            connection.execute(transfers)
    if engine.dialect.name == "mysql":
        with engine.begin() as connection:
            connection.execute(text("ANALYZE TABLE stageout_transfers, stageout_requests, stageout_queues")).all()


def _transfers(first: int, last: int) -> Any:
    """The transfers of some requests: as many rows of another table as each has files."""
    request, files = stageout_requests.c, stageout_queues.alias("file")
    file = files.c
    number = cast((request.id - 1) * FILES + file.id, BigInteger)
    drawn, few = number * SPREAD % 1000, number <= NEEDS_CREDENTIAL
    name = literal("/store/user/data/file_").concat(cast(number, String(16))).concat(".root")
    values = {
        "id": number,
        "request": request.id,
        "queue": (request.id - 1) % QUEUES + 1,
        "place": func.substr(literal("0" * 64).concat(cast(number, String(16))), -64),
        "source_name": name,
        "destination_name": name,
        "state": case(
            (few, "needs-credential"), (drawn < 10, "new"), (drawn < 20, "submitted"), (drawn < 30, "failed"),
            (drawn < 40, "retry-wait"), else_="cleaned",
        ),
        "reason": literal("bench"),
        "retries": literal(0),
        "failure": case((few, None), (drawn.between(20, 29), "quota"), (drawn.between(30, 39), "timeout"), else_=None),
        **dict.fromkeys(("due_at", "created_at", "moved_at"), request.created_at),
    }  # fmt: skip
    both = stageout_requests.join(files, file.id <= FILES)
    rows = select(*values.values()).select_from(both).where(request.id.between(first, last))
    return insert(stageout_transfers).from_select(list(values), rows.order_by(request.id, file.id))


def _insert(engine: Engine, table: Any, rows: list[dict[str, Any]]) -> None:
    writing(engine, lambda connection: connection.execute(insert(table), rows))
