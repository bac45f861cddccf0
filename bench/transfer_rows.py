"""Rows of stage-out in bulk: users, links, requests, and transfers of which most are complete."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Engine, String, case, cast, func, insert, literal, select, text

from include.ledger.engine import writing
from include.stageout.files import digest_of
from include.stageout.tables import (
    stageout_analytics,
    stageout_queues,
    stageout_requests,
    stageout_times,
    stageout_transfers,
)

USERS, SITES, QUEUES = 200, 60, 5000
FILES = 100
"""Of a request."""
DAYS, WORKFLOWS, LINKS, BUCKETS = 30, 3, 5, 8
"""Days of the sums of ended transfers, workflows and links of a user and day, and different times of a link."""
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


def fill_sums(engine: Engine, wanted: int) -> int:
    """The sums of so many transfers that ended in the last 30 days, each user with a few workflows and links a day.

    Returns the number of rows.
    """
    chance = random.Random(2)
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    per_sum = -(-wanted // (DAYS * USERS * WORKFLOWS * LINKS))
    written = 0
    for number in range(DAYS):
        day, sums, times = midnight - DAY * number, [], []
        for user in range(USERS):
            for link in range(LINKS):
                source, destination = chance.sample(range(SITES), 2)
                common = {
                    "day": day, "owner": f"user{user}", "source": f"site{source}",
                    "destination": f"site{destination}",
                }  # fmt: skip
                for workflow in range(WORKFLOWS):
                    row = {
                        **common, "workflow": f"w{number}-{workflow}", "bytes": per_sum << 30, "retries": 1,
                        **dict.fromkeys(("waited_s", "copied_s", "verified_s", "ended_s"), 100.0 * per_sum),
                    }  # fmt: skip
                    for state, failure, files in (("cleaned", None, per_sum), ("failed", "quota", 1)):
                        digest = digest_of(str(day), str(user), str(link), str(workflow), state)
                        sums.append({**row, "digest": digest, "state": state, "failure": failure, "files": files})
                files = per_sum * WORKFLOWS // BUCKETS
                for bucket in range(20, 20 + BUCKETS):
                    digest = digest_of(str(day), str(user), str(link), str(bucket))
                    times.append({**common, "digest": digest, "bucket": bucket, "files": files})
        _insert(engine, stageout_analytics, sums)
        _insert(engine, stageout_times, times)
        written += len(sums) + len(times)
    return written


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
