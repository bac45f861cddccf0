"""Daily sums of transfers that have ended: files, bytes, retries and times by user, workflow, link, state and failure.

A transfer is counted when it is archived, in the same transaction, so it is counted once. Its day is that of its end,
in UTC. The sums are kept when requests and jobs are deleted.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, and_, or_, select
from sqlalchemy.dialects import mysql, sqlite

from include.ledger.engine import Bind, reading
from include.stageout.files import digest_of
from include.stageout.requests import AT_ONCE, pieces
from include.stageout.states import TransferState
from include.stageout.tables import stageout_analytics

_FORMULA = ("=", "+", "-", "@", "\t")
"""What a spreadsheet takes for a formula at the beginning of a cell."""
T = TypeVar("T", bound="SumKey | TransferSums")


@dataclass(frozen=True, slots=True)
class SumKey:
    """The columns that the transfers of a sum share."""

    day: datetime
    owner: str
    workflow: str
    source: str
    destination: str
    state: str
    failure: str | None

    @property
    def digest(self) -> str:
        """The digest that represents the sum in the ledger's index."""
        rest = (self.owner, self.workflow, self.source, self.destination, self.state, self.failure or "")
        return digest_of(self.day.date().isoformat(), *rest)


@dataclass(frozen=True, slots=True)
class TransferSums:
    """The sums of some transfers.

    Attributes:
        files: How many.
        bytes: Their sizes, as far as they are known.
        retries: Attempts after the first ones.
        waited_s: Seconds from the request until FTS had the file, of those that it had.
        copied_s: Until FTS had copied it, of those that were copied.
        verified_s: Until its destination was verified, of those that were.
        ended_s: Until the end.
    """

    files: int = 0
    bytes: int = 0
    retries: int = 0
    waited_s: float = 0.0
    copied_s: float = 0.0
    verified_s: float = 0.0
    ended_s: float = 0.0

    def __add__(self, other: TransferSums) -> TransferSums:
        return TransferSums(*(left + right for left, right in zip(astuple(self), astuple(other), strict=True)))

    @property
    def bytes_per_s(self) -> float | None:
        """The mean rate of a file from its submission to its copy; None: unknown."""
        seconds = self.copied_s - self.waited_s
        return self.bytes / seconds if seconds > 0 else None


def sums_of(
    transfer: Mapping[str, Any], submitted_at: datetime | None, verified_at: datetime | None
) -> tuple[SumKey, TransferSums]:
    """Return what a transfer that has ended adds to which sum; pure.

    `transfer`: a row of the archive. `submitted_at`: when FTS had it first; None: never. `verified_at`: when its
    destination was verified; None: it was not.
    """
    created_at, ended_at = transfer["created_at"], transfer["moved_at"]
    day = ended_at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    # the class of a failure stays when a retry has worked: of those the retries are summed
    complete = transfer["state"] in {TransferState.CLEANED.value, TransferState.KEPT.value}
    key = SumKey(
        day, transfer["owner"], transfer["workflow"], transfer["source"], transfer["destination"], transfer["state"],
        None if complete else transfer["failure"],
    )  # fmt: skip
    times = (submitted_at, transfer["copied_at"], verified_at, ended_at)
    # clocks differ: FTS's end of a copy may be before the request
    seconds = [max(0.0, (time - created_at).total_seconds()) if time is not None else 0.0 for time in times]
    return key, TransferSums(1, transfer["size"] or 0, transfer["retries"], *seconds)


def add_sums(connection: Connection, added: Iterable[tuple[SumKey, TransferSums]]) -> None:
    """Add to the sums of the ledger, in the caller's transaction."""
    together: defaultdict[SumKey, TransferSums] = defaultdict(TransferSums)
    for key, sums in added:
        together[key] += sums
    # in one order: two processes that add to the same sums wait for each other, and do not deadlock
    rows = [
        {"digest": key.digest, **_fields(key), **_fields(sums)}
        for key, sums in sorted(together.items(), key=lambda item: item[0].digest)
    ]
    names = [field.name for field in fields(TransferSums)]
    for piece in pieces(rows):
        if connection.dialect.name == "sqlite":
            new = sqlite.insert(stageout_analytics).values(piece)
            sums_sqlite = {name: stageout_analytics.c[name] + new.excluded[name] for name in names}
            connection.execute(new.on_conflict_do_update(index_elements=["digest"], set_=sums_sqlite))
        else:
            other = mysql.insert(stageout_analytics).values(piece)
            sums_mysql = {name: stageout_analytics.c[name] + other.inserted[name] for name in names}
            connection.execute(other.on_duplicate_key_update(sums_mysql))


def read_sums(
    bind: Bind, *, since: datetime, until: datetime, owner: str | None = None
) -> Iterator[tuple[SumKey, TransferSums]]:
    """The sums of the days from `since` to before `until`, by day; they are read in pieces, as they are taken."""
    columns = stageout_analytics.c
    query = select(stageout_analytics).where(columns.day >= since, columns.day < until)
    query = query.where(columns.owner == owner) if owner is not None else query
    query = query.order_by(columns.day, columns.id).limit(AT_ONCE)
    last: Row[Any] | None = None
    while True:
        following = query
        if last is not None:
            following = query.where(or_(columns.day > last.day, and_(columns.day == last.day, columns.id > last.id)))
        with reading(bind) as connection:
            rows = connection.execute(following).all()
        yield from ((_values(SumKey, row), _values(TransferSums, row)) for row in rows)
        if len(rows) < AT_ONCE:
            return
        last = rows[-1]


def export_csv(bind: Bind, *, since: datetime, until: datetime, owner: str | None = None) -> Iterator[str]:
    """The lines of a CSV file of `read_sums`, with a head; each line has its end."""
    names = [field.name for kind in (SumKey, TransferSums) for field in fields(kind)]
    yield _line([*names, "bytes_per_s"])
    for key, sums in read_sums(bind, since=since, until=until, owner=owner):
        rate = sums.bytes_per_s
        texts = [_cell(text) for text in astuple(key)[1:]]
        figures = [f"{figure:.3f}" if isinstance(figure, float) else str(figure) for figure in astuple(sums)]
        yield _line([key.day.date().isoformat(), *texts, *figures, "" if rate is None else f"{rate:.0f}"])


def _cell(text: str | None) -> str:
    # users choose names: a quote keeps a spreadsheet from running one
    return f"'{text}" if text and text.startswith(_FORMULA) else text or ""


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _values(kind: type[T], row: Row[Any]) -> T:
    return kind(**{field.name: getattr(row, field.name) for field in fields(kind)})


def _fields(values: SumKey | TransferSums) -> dict[str, Any]:
    return {field.name: getattr(values, field.name) for field in fields(values)}
