"""Finished rows from before, made by the server itself; and the plans of the claims over them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, event, text

from bench.stageouting.load import utc
from include.ledger.engine import reading
from include.stageout.claims import StageoutWorker, claim_jobs, claim_transfers, release_dead, waiting_queues
from include.stageout.states import TransferJobState, TransferState

AT_ONCE = 250_000
TELL_EVERY = 20 * AT_ONCE
PER_JOB = 100
OWNERS, SITES = 200, 60
_REQUESTS = """
INSERT INTO stageout_requests (owner, `key`, workflow, digest, files, created_at)
SELECT CONCAT('user', LPAD(seq % {owners}, 3, '0')), CONCAT('past-', seq), 'past', SHA2(seq, 256), {at_once}, :past
FROM seq_1_to_{requests}
"""
_QUEUES = """
INSERT INTO stageout_queues (digest, owner, source, destination, activity, kind)
SELECT SHA2(CONCAT('past-', seq), 256), CONCAT('user', LPAD(seq % {owners}, 3, '0')),
       CONCAT('site', LPAD(seq % {sites}, 2, '0')), CONCAT('site', LPAD((seq + 1 + seq % 7) % {sites}, 2, '0')),
       'past', 'output'
FROM seq_1_to_{queues}
"""
_JOBS = """
INSERT INTO stageout_jobs (sid, fts_id, server, queue, files, state, reason, due_at, created_at, moved_at)
SELECT MD5(seq), INSERT(INSERT(INSERT(INSERT(MD5(CONCAT('j', seq)), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'), 24, 0, '-'),
       'fts_default', 1 + seq % {queues}, {per_job}, 'finished', 'FTS finished it', :past, :past, :past
FROM seq_{first}_to_{last}
"""
_TRANSFERS = """
INSERT INTO stageout_transfers (request, queue, place, source_name, destination_name, size, checksum, dataset, state,
                                reason, retries, copied_at, job, due_at, created_at, moved_at)
SELECT 1 + seq % {requests}, 1 + seq % {queues}, SHA2(CONCAT('past-', seq), 256),
       CONCAT('/store/temp/user/user', LPAD(seq % {owners}, 3, '0'), '/past/', seq, '.root'),
       CONCAT('/store/user/user', LPAD(seq % {owners}, 3, '0'), '/past/', seq, '.root'),
       1000000 + seq, CONCAT('adler32:', LPAD(HEX(seq), 8, '0')), '/past/bench/USER', 'cleaned',
       'the source is removed', 0, :past, 1 + FLOOR(seq / {per_job}), :past + INTERVAL (seq % 3600) SECOND, :past, :past
FROM seq_{first}_to_{last}
"""


def fill(ledger: Engine, rows: int) -> None:
    """So many cleaned transfers that are not archived yet, with their jobs; the server gets statistics of them."""
    past = utc() - timedelta(hours=2)
    requests, queues = max(1, rows // AT_ONCE), OWNERS * 10
    same = {"requests": requests, "queues": queues, "owners": OWNERS, "sites": SITES, "at_once": AT_ONCE,
            "per_job": PER_JOB}  # fmt: skip

    def run(statement: str, **numbers: int) -> None:
        with ledger.begin() as connection:
            connection.execute(text(statement.format(**same, **numbers)), {"past": past.replace(tzinfo=None)})

    run(_REQUESTS)
    run(_QUEUES)
    run(_JOBS, first=1, last=rows // PER_JOB + 1)
    for first in range(1, rows + 1, AT_ONCE):
        last = min(rows, first + AT_ONCE - 1)
        run(_TRANSFERS, first=first, last=last)
        if last % TELL_EVERY == 0:
            print(f"{last:,} of {rows:,} finished rows made", flush=True)
    with ledger.begin() as connection:
        for table in ("stageout_transfers", "stageout_jobs", "stageout_queues"):
            connection.execute(text(f"ANALYZE TABLE {table}")).all()


def plan_faults(ledger: Engine) -> list[str]:
    """Statements of claims that sort, or that read a whole table."""
    now, worker = utc(), StageoutWorker("plans")
    claims: list[Callable[[], object]] = [
        lambda: waiting_queues(ledger, now=now, limit=5),
        lambda: release_dead(ledger, limit=5, now=now - timedelta(days=1)),
        *(
            lambda state=state: claim_transfers(ledger, state, worker, limit=5, now=now - timedelta(days=1))
            for state in TransferState
        ),
        *(
            lambda state=state: claim_jobs(ledger, state, worker, limit=5, now=now - timedelta(days=1))
            for state in (TransferJobState.SUBMITTED, TransferJobState.ACTIVE, TransferJobState.SUBMITTING)
        ),
    ]
    statements: dict[str, Any] = {}

    def note(_connection: object, _cursor: object, statement: str, parameters: object, *_: Any) -> None:
        if re.match("SELECT|UPDATE", statement) and "stageout_" in statement:
            statements[statement] = parameters

    event.listen(ledger, "before_cursor_execute", note)
    for claim in claims:
        claim()
    event.remove(ledger, "before_cursor_execute", note)
    faults = []
    for statement, parameters in statements.items():
        with reading(ledger) as connection:
            steps = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings().all()
        whole = [step for step in steps if step["type"] == "ALL" and str(step["table"]).startswith("stageout_")]
        if whole or any("filesort" in (step["Extra"] or "") for step in steps):
            faults.append(f"{statement}: {[dict(step) for step in steps]}")
    return faults
