"""Rows of stage-out in bulk: users, links, requests, and transfers of which most are complete."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, insert

from include.ledger.engine import writing
from include.stageout.files import digest_of
from include.stageout.tables import stageout_queues, stageout_requests, stageout_transfers

USERS, SITES, QUEUES = 200, 60, 5000
FILES = 100
"""Of a request."""
AT_ONCE = 20_000
STATES = ["cleaned"] * 960 + ["new", "submitted", "failed", "retry-wait"] * 10
FAILURES = {"failed": "quota", "retry-wait": "timeout"}


def fill(engine: Engine, wanted: int) -> None:
    """So many transfers of the last day; the first ones need a credential."""
    chance, now = random.Random(1), datetime.now(UTC)
    queues = []
    for number in range(QUEUES):
        source, destination = chance.sample(range(SITES), 2)
        queues.append({
            "id": number + 1, "digest": digest_of(str(number)), "owner": f"user{number % USERS}",
            "source": f"site{source}", "destination": f"site{destination}", "activity": "default", "kind": "output",
        })  # fmt: skip
    requests = [
        {"id": number + 1, "owner": f"user{number % USERS}", "key": f"k{number}", "workflow": f"w{number // QUEUES}",
         "digest": "a" * 64, "files": FILES, "created_at": now}
        for number in range(-(-wanted // FILES))
    ]  # fmt: skip
    _insert(engine, stageout_queues, queues)
    for start in range(0, len(requests), AT_ONCE):
        _insert(engine, stageout_requests, requests[start : start + AT_ONCE])
    for start in range(0, wanted, AT_ONCE):
        rows = []
        for number in range(start, min(wanted, start + AT_ONCE)):
            state = "needs-credential" if number < 20 else chance.choice(STATES)
            at = now - timedelta(days=1) * (wanted - number) / wanted
            rows.append(_row(number, state, at))
        _insert(engine, stageout_transfers, rows)


def _row(number: int, state: str, at: datetime) -> dict[str, Any]:
    name = f"/store/user/data/file_{number}.root"
    return {
        "id": number + 1, "request": number // FILES + 1, "queue": number // FILES % QUEUES + 1,
        "place": f"{number:064x}", "source_name": name, "destination_name": name, "state": state, "reason": "bench",
        "retries": 0, "failure": FAILURES.get(state), "due_at": at, "created_at": at, "moved_at": at,
    }  # fmt: skip


def _insert(engine: Engine, table: Any, rows: list[dict[str, Any]]) -> None:
    writing(engine, lambda connection: connection.execute(insert(table), rows))
