"""What became of the files of a run: measures from the ledger's own times, and where each file is in the end."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, func, select, text

from include.ledger.engine import reading
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.tables import (
    stageout_archive,
    stageout_blocks,
    stageout_catalogue,
    stageout_jobs,
    stageout_moves,
    stageout_queues,
    stageout_transfers,
)

STEP_S = 10.0
_T = TransferState
REGISTERED = {_T.REGISTERED.value, _T.CLEANING.value, _T.CLEANED.value, _T.KEPT.value}
ENDED = {state.value for state in TRANSFER_ENDED}
SETTLED = {_T.DONE.value, _T.FAILED.value, _T.KILLED.value}
_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Mark:
    """The last rows before a run, and how many files the ledger's catalogue had."""

    transfers: int = 0
    moves: int = 0
    blocks: int = 0
    jobs: int = 0
    catalogued: int = 0

    @classmethod
    def of(cls, ledger: Engine) -> Mark:
        with reading(ledger) as connection:
            tables = (stageout_transfers, stageout_moves, stageout_blocks, stageout_jobs)
            last = [connection.scalar(select(func.max(table.c.id))) or 0 for table in tables]
            last.append(connection.scalar(select(func.count()).select_from(stageout_catalogue)) or 0)
            return cls(*last)


@dataclass(frozen=True, slots=True)
class Measures:
    """Of one run. Times are seconds after its begin.

    Attributes:
        created, settled: When each file was requested, and verified or failed, in order.
        verified: When each was verified, in order.
        lags: From the end of a copy by FTS to its verification, in order.
        per_job: Files of each FTS job.
        per_block: Files of each closed block.
    """

    created: Sequence[float]
    settled: Sequence[float]
    verified: Sequence[float]
    lags: Sequence[float]
    per_job: Sequence[int]
    per_block: Sequence[int]

    @classmethod
    def of(cls, ledger: Engine, mark: Mark, began: datetime) -> Measures:
        transfers, moves = stageout_transfers.c, stageout_moves.c

        def since(moment: datetime) -> float:
            return (moment - began).total_seconds()

        with reading(ledger) as connection:
            created = [since(at) for at in _column(connection, transfers.created_at, transfers.id > mark.transfers)]
            copied = dict(
                connection.execute(
                    select(transfers.id, transfers.copied_at).where(
                        transfers.id > mark.transfers, transfers.copied_at.is_not(None)
                    )
                ).all()
            )  # type: ignore[arg-type]
            settled: dict[int, float] = {}
            verified: dict[int, float] = {}
            lags = []
            wanted = select(moves.transfer, moves.state, moves.moved_at).where(
                moves.id > mark.moves, moves.transfer.is_not(None), moves.state.in_(SETTLED)
            )
            for number, state, at in connection.execute(wanted):
                settled.setdefault(number, since(at))
                if state == _T.DONE.value:
                    verified.setdefault(number, since(at))
                    if number in copied:
                        lags.append((at - copied[number]).total_seconds())
            per_job = _column(connection, stageout_jobs.c.files, stageout_jobs.c.id > mark.jobs)
            blocks = stageout_blocks.c
            per_block = _column(connection, blocks.files, (blocks.id > mark.blocks) & (blocks.state != "open"))
        return cls(
            sorted(created), sorted(settled.values()), sorted(verified.values()), sorted(lags), per_job, per_block
        )

    def backlog(self, at: float) -> int:
        """Files that are neither verified nor failed at this time."""
        return bisect_right(self.created, at) - bisect_right(self.settled, at)

    def rate(self, begin: float, end: float) -> float:
        """Verified files a second between two times."""
        return (bisect_right(self.verified, end) - bisect_right(self.verified, begin)) / (end - begin)

    def slope(self, begin: float, end: float) -> float:
        """By how many files a second the backlog grows, by least squares."""
        times = [begin + STEP_S * step for step in range(int((end - begin) / STEP_S) + 1)]
        return slope([(at, float(self.backlog(at))) for at in times])

    def per_hour(self, until: float, step: float) -> list[tuple[float, float]]:
        """Verified files an hour, over the minutes of the run."""
        steps = [step * number for number in range(1, int(until / step) + 1)]
        return [(at / 60, 3600 * self.rate(at - step, at)) for at in steps]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line through points with the least squares."""
    if len(points) < 2:
        return 0.0
    middle = sum(x for x, _ in points) / len(points)
    height = sum(y for _, y in points) / len(points)
    return sum((x - middle) * (y - height) for x, y in points) / sum((x - middle) ** 2 for x, _ in points)


@dataclass(slots=True)
class FinalAccount:
    """Where each file of a run is.

    Attributes:
        states: How many there are in each state.
        failures: How many failed by each class.
        faults: What is wrong, in words.
    """

    states: Mapping[str, int]
    failures: Mapping[str, int]
    lost: int = 0
    doubled: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return self.states.get(_T.FAILED.value, 0)


def open_files(ledger: Engine, mark: Mark) -> Counter[str]:
    """Files of the run that have not ended, by state."""
    columns = stageout_transfers.c
    query = select(columns.state, func.count()).where(columns.id > mark.transfers, columns.state.not_in(ENDED))
    with reading(ledger) as connection:
        counted = connection.execute(query.group_by(columns.state)).all()
    return Counter(dict(counted))  # type: ignore[arg-type]


def final_account(
    ledger: Engine, mark: Mark, requested: int, there: Callable[[Sequence[str]], Mapping[str, Any]], *, in_ledger: bool
) -> FinalAccount:
    """Where every file is.

    Args:
        ledger: The ledger.
        mark: Where the run began.
        requested: How many files were requested.
        there: What the simulated storage has of URLs.
        in_ledger: The ledger is the catalogue in which files are registered.
    """
    rows = _rows(ledger, mark)
    account = FinalAccount(
        Counter(row.state for row in rows),
        Counter(row.failure or "none" for row in rows if row.state == _T.FAILED.value),
    )
    account.lost = requested - len(rows)
    for row in rows:
        if row.state not in REGISTERED and not (row.state == _T.FAILED.value and row.reason and row.failure):
            account.lost += 1
            account.faults.append(f"transfer {row.id} is {row.state}: {row.reason}")
    _check_destinations(account, [row for row in rows if row.state in REGISTERED], there)
    registered = sum(row.state in REGISTERED for row in rows)
    _check_doubles(account, ledger, mark, registered if in_ledger else 0)
    return account


def _check_destinations(
    account: FinalAccount, rows: Sequence[Any], there: Callable[[Sequence[str]], Mapping[str, Any]]
) -> None:
    for start in range(0, len(rows), _AT_ONCE):
        part = {
            f"mock://{row.destination}.example.org{row.destination_name}": row for row in rows[start : start + _AT_ONCE]
        }
        found = there(list(part))
        for url, row in part.items():
            facts = found.get(url)
            if facts is None or (facts.get("size"), facts.get("checksum")) != (row.size, row.checksum):
                account.lost += 1
                account.faults.append(f"transfer {row.id} is {row.state}, but {url} has {facts}")


def _check_doubles(account: FinalAccount, ledger: Engine, mark: Mark, registered: int) -> None:
    moves = stageout_moves.c
    with reading(ledger) as connection:
        twice = connection.execute(
            select(moves.transfer, func.count())
            .where(moves.id > mark.moves, moves.state == _T.REGISTERED.value)
            .group_by(moves.transfer)
            .having(func.count() > 1)
        ).all()
        catalogued = connection.scalar(select(func.count()).select_from(stageout_catalogue)) or 0
        names = stageout_catalogue.c.name
        unique = connection.scalar(select(func.count(names.distinct()))) or 0
    account.doubled = len(twice) + catalogued - unique
    account.faults += [f"transfer {number} was registered {times} times" for number, times in twice]
    if unique - mark.catalogued != registered:
        account.lost += max(0, registered - (unique - mark.catalogued))
        account.faults.append(f"{registered} files are registered, but the catalogue has {unique - mark.catalogued}")


def _rows(ledger: Engine, mark: Mark) -> list[Any]:
    columns, kept = stageout_transfers.c, stageout_archive.c
    names = ("id", "state", "reason", "failure", "destination_name", "size", "checksum")
    alive = (
        select(*(columns[name] for name in names), stageout_queues.c.destination)
        .join(stageout_queues, columns.queue == stageout_queues.c.id)
        .where(columns.id > mark.transfers)
    )
    archived = select(*(kept[name] for name in names), kept.destination).where(kept.id > mark.transfers)
    with reading(ledger) as connection:
        return [*connection.execute(alive), *connection.execute(archived)]


def ledger_mb(ledger: Engine) -> float:
    """What the tables of stage-out take, with their indices."""
    query = text(
        "SELECT SUM(data_length + index_length) FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_name LIKE 'stageout%'"
    )
    with reading(ledger) as connection:
        return float(connection.scalar(query) or 0) / 1e6


def percentile(values: Sequence[float], share: float) -> float:
    """Of values in order."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _column(connection: Any, column: Any, where: Any) -> list[Any]:
    return list(connection.scalars(select(column).where(where)))
