"""Daily sums of transfers that have ended: files, bytes, retries and times by user, workflow, link, state and failure.

A transfer is counted when it is archived, in the same transaction, so it is counted once. Its day is that of its end,
in UTC. The sums are kept when requests and jobs are deleted.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Table, and_, func, or_, select
from sqlalchemy.dialects import mysql, sqlite

from include.ledger.engine import Bind, reading
from include.stageout.files import digest_of
from include.stageout.requests import AT_ONCE, pieces
from include.stageout.states import TransferState
from include.stageout.tables import stageout_analytics, stageout_times

_FORMULA = ("=", "+", "-", "@", "\t")
"""What a spreadsheet takes for a formula at the beginning of a cell."""
COMPLETE = frozenset({TransferState.CLEANED.value, TransferState.KEPT.value})
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
        return TransferSums(*(left + right for left, right in zip(_figures(self), _figures(other), strict=True)))

    @property
    def bytes_per_s(self) -> float | None:
        """The mean rate of a file from its submission to its copy; None: unknown."""
        seconds = self.copied_s - self.waited_s
        return self.bytes / seconds if seconds > 0 else None


# as `astuple`, which copies each figure and takes ten times as long
_figures = attrgetter(*(field.name for field in fields(TransferSums)))


def _day_of(transfer: Mapping[str, Any]) -> datetime:
    day: datetime = transfer["moved_at"].astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day


def sums_of(
    transfer: Mapping[str, Any], submitted_at: datetime | None, verified_at: datetime | None
) -> tuple[SumKey, TransferSums]:
    """Return what a transfer that has ended adds to which sum; pure.

    `transfer`: a row of the archive. `submitted_at`: when FTS had it first; None: never. `verified_at`: when its
    destination was verified; None: it was not.
    """
    created_at, ended_at = transfer["created_at"], transfer["moved_at"]
    # the class of a failure stays when a retry has worked: of those the retries are summed
    complete = transfer["state"] in COMPLETE
    key = SumKey(
        _day_of(transfer), transfer["owner"], transfer["workflow"], transfer["source"], transfer["destination"],
        transfer["state"], None if complete else transfer["failure"],
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
    rows = [{"digest": key.digest, **_fields(key), **_fields(sums)} for key, sums in together.items()]
    _add(connection, stageout_analytics, rows, [field.name for field in fields(TransferSums)])


def _add(connection: Connection, table: Table, rows: list[dict[str, Any]], names: Sequence[str]) -> None:
    """Insert rows by their digests, and add to the figures `names` of those that exist."""
    # in one order: two processes that add to the same sums wait for each other, and do not deadlock
    for piece in pieces(sorted(rows, key=lambda row: str(row["digest"]))):
        if connection.dialect.name == "sqlite":
            new = sqlite.insert(table).values(piece)
            sums_sqlite = {name: table.c[name] + new.excluded[name] for name in names}
            connection.execute(new.on_conflict_do_update(index_elements=["digest"], set_=sums_sqlite))
        else:
            other = mysql.insert(table).values(piece)
            sums_mysql = {name: table.c[name] + other.inserted[name] for name in names}
            connection.execute(other.on_duplicate_key_update(sums_mysql))


@dataclass(frozen=True, slots=True)
class TimeKey:
    """The complete transfers of a day, user and link whose way from request to registration took about as long."""

    day: datetime
    owner: str
    source: str
    destination: str
    bucket: int

    @property
    def digest(self) -> str:
        """The digest that represents the row in the ledger's index."""
        rest = (self.owner, self.source, self.destination, str(self.bucket))
        return digest_of(self.day.date().isoformat(), *rest)


STEPS = 4
"""Buckets of times between a number of seconds and its double."""


def bucket_of(seconds: float) -> int:
    """The bucket of a time; what is below a second is in the first one."""
    return int(STEPS * math.log2(max(1.0, seconds)))


def percentile_s(counts: Mapping[int, int], share: float) -> float | None:
    """The time in seconds within which a share of the files came, right within a tenth; None: there are none.

    `counts`: files by bucket. `share`: from 0 to 1.
    """
    left = share * sum(counts.values())
    for bucket, files in sorted(counts.items()):
        left -= files
        if left <= 0:
            return float(2 ** ((bucket + 0.5) / STEPS))
    return None


def time_of(transfer: Mapping[str, Any], registered_at: datetime | None) -> TimeKey | None:
    """Return how a complete transfer counts by its time; None: it is not complete.

    `transfer`: a row of the archive. `registered_at`: when it was registered or, without a data set, verified.
    """
    if registered_at is None or transfer["state"] not in COMPLETE:
        return None
    seconds = (registered_at - transfer["created_at"]).total_seconds()
    return TimeKey(
        _day_of(transfer), transfer["owner"], transfer["source"], transfer["destination"], bucket_of(seconds)
    )


def add_times(connection: Connection, times: Iterable[TimeKey]) -> None:
    """Count transfers by their times in the ledger, in the caller's transaction."""
    rows = [{"digest": key.digest, **_fields(key), "files": files} for key, files in Counter(times).items()]
    _add(connection, stageout_times, rows, ["files"])


@dataclass(frozen=True, slots=True)
class SumFilter:
    """A choice of sums: days from `since` to before `until`; `site`: source or destination."""

    since: datetime
    until: datetime
    owner: str | None = None
    site: str | None = None

    def of(self, table: Table) -> list[ColumnElement[bool]]:
        """Return what holds for the rows of a table of sums."""
        columns = table.c
        where = [columns.day >= self.since, columns.day < self.until]
        where += [columns.owner == self.owner] if self.owner is not None else []
        where += [or_(columns.source == self.site, columns.destination == self.site)] if self.site is not None else []
        return where


def group_sums(bind: Bind, by: Sequence[str], chosen: SumFilter) -> dict[tuple[Any, ...], TransferSums]:
    """The sums of the wanted days by some of the columns of `SumKey`."""
    columns = stageout_analytics.c
    keys = [columns[name] for name in by]
    figures = [func.sum(columns[field.name]).label(field.name) for field in fields(TransferSums)]
    query = select(*keys, *figures).where(*chosen.of(stageout_analytics)).group_by(*keys).order_by(*keys)
    with reading(bind) as connection:
        rows = connection.execute(query).all()
    # MariaDB sums whole numbers to decimals
    numbers: dict[str, Any] = {
        field.name: float if field.name.endswith("_s") else int for field in fields(TransferSums)
    }
    return {
        tuple(row[: len(by)]): TransferSums(**{name: number(getattr(row, name)) for name, number in numbers.items()})
        for row in rows
    }


def group_times(bind: Bind, by: Sequence[str], chosen: SumFilter) -> dict[tuple[Any, ...], dict[int, int]]:
    """The complete files of the wanted days by some of the columns of `TimeKey`, and by bucket."""
    columns = stageout_times.c
    keys = [columns[name] for name in by]
    query = select(*keys, columns.bucket, func.sum(columns.files).label("files")).where(*chosen.of(stageout_times))
    groups: defaultdict[tuple[Any, ...], dict[int, int]] = defaultdict(dict)
    with reading(bind) as connection:
        for *key, bucket, files in connection.execute(query.group_by(*keys, columns.bucket)):
            groups[tuple(key)][bucket] = int(files)
    return dict(groups)


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


def _fields(values: SumKey | TransferSums | TimeKey) -> dict[str, Any]:
    return {field.name: getattr(values, field.name) for field in fields(values)}
