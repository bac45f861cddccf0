"""The audit: destructive acts, and what other tables of the ledger have of decisions of people, in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nlargest
from typing import Any, NamedTuple

from sqlalchemy import Column, RowMapping, Table, and_, or_, select

from include.aliencache.records import CacheRunKind, cache_runs
from include.ledger.acts import ActKind, acts, ledger_restores
from include.ledger.engine import Bind, reading
from include.nightlies.records.tables import quality, questions
from include.nightlies.rules.approval import Answer
from include.provenance.interventions import FREEZE, THAW, interventions

PAGE = 50
APPROVAL, WAIVER, RESTORE, TRIM = "approval", "quality accepted", "ledger restored", "cache trimmed"
KINDS = (*(kind.value for kind in ActKind), FREEZE, THAW, APPROVAL, WAIVER, RESTORE, TRIM)
"""All kinds, as people choose them."""


class AuditKey(NamedTuple):
    """Place of an entry in the order: its time, then the table and the row."""

    at: datetime
    table: int
    row: int

    @classmethod
    def parse(cls, text: str) -> AuditKey:
        """Read `format`. Raises ValueError."""
        at, table, row = text.split("~")
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None or not (table.isdigit() and row.isdigit() and len(table + row) <= 19):
            raise ValueError("no place in the audit")
        return cls(moment.astimezone(UTC), int(table), int(row))

    def format(self) -> str:
        """Return the key as text, for links."""
        return f"{self.at.astimezone(UTC).isoformat()}~{self.table}~{self.row}"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An act: see `Act`. `who`: "" where the run alone is recorded; `key`: its place in the order."""

    at: datetime
    kind: str
    what: str
    who: str
    why: str
    run: str | None
    dry_run: bool
    key: AuditKey

    def to_json(self) -> dict[str, Any]:
        """Return the entry for programs."""
        return {
            "at": self.at.isoformat(), "kind": self.kind, "what": self.what, "who": self.who, "why": self.why,
            "run": self.run, "dry_run": self.dry_run,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditChoice:
    """A choice of entries; None: any, but no cleanings of sources without a kind.

    `who`: a name, also without its machine; `since` and `until`: the period.
    """

    kind: str | None = None
    who: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """A table of acts. `who`: its column, None: none; `always`: which rows; `told`: what, why, run and dry run."""

    table: Table
    kinds: tuple[str, ...]
    kind: Column[str] | None
    at: Column[datetime]
    who: Column[str] | None
    told: Callable[[RowMapping], tuple[str, str, str | None, bool]]
    always: tuple[Any, ...] = ()


def _question(row: RowMapping) -> tuple[str, str, str | None, bool]:
    comment = f": {row['comment']}" if row["comment"] else ""
    return row["subject"], f"{row['answer']}{comment}", row["run_id"], False


def _restore(row: RowMapping) -> tuple[str, str, str | None, bool]:
    accepted = f"; accepted by {row['accepted_by']}" if row["accepted_by"] else "; not accepted yet"
    what = f"backup {row['backup']}" if row["backup"] else "by other means"
    return what, f"what was recorded since {row['since']:%Y-%m-%d %H:%M} UTC may be missing{accepted}", None, False


_SOURCES = (
    _Source(
        acts, tuple(kind.value for kind in ActKind), acts.c.kind, acts.c.at, acts.c.who,
        lambda row: (row["what"], row["why"], row["run"], row["dry_run"]),
    ),
    _Source(
        interventions, (FREEZE, THAW), interventions.c.kind, interventions.c.done_at, interventions.c.who,
        lambda row: (row["repository"], row["reason"], None, False),
    ),
    _Source(
        questions, (APPROVAL,), None, questions.c.answered_at, questions.c.answered_by, _question,
        (questions.c.answered_by.is_not(None), questions.c.answer.in_([Answer.APPROVED.value, Answer.REJECTED.value])),
    ),
    _Source(
        quality, (WAIVER,), None, quality.c.checked_at, None,
        lambda row: (f"{row['suite']} of {row['slot']} {row['build_id']}", row["accepted"], row["run_id"], False),
        (quality.c.accepted != "",),
    ),
    _Source(
        ledger_restores, (RESTORE,), None, ledger_restores.c.noted_at, ledger_restores.c.noted_by, _restore,
    ),
    _Source(
        cache_runs, (TRIM,), None, cache_runs.c.ended_at, None,
        lambda row: (row["cache"], "trim of the cache", None, row["dry_run"]),
        (cache_runs.c.kind == CacheRunKind.TRIM.value,),
    ),
)  # fmt: skip


def audit(bind: Bind, choice: AuditChoice, *, below: AuditKey | None = None, limit: int = PAGE) -> Sequence[AuditEntry]:
    """Return the entries of a choice, the newest first.

    Args:
        bind: The ledger.
        choice: Which.
        below: Only those after this one in the order; None: from the newest on.
        limit: How many at most.
    """
    entries: list[AuditEntry] = []
    with reading(bind) as connection:
        for number, source in enumerate(_SOURCES):
            where = _where(source, number, choice, below)
            if where is None:
                continue
            order = [source.at.desc(), *([source.table.c.id.desc()] if "id" in source.table.c else [])]
            rows = connection.execute(select(source.table).where(*where).order_by(*order).limit(limit)).mappings()
            entries += [_entry(source, number, row) for row in rows]
    return nlargest(limit, entries, key=lambda entry: entry.key)


def _where(source: _Source, number: int, choice: AuditChoice, below: AuditKey | None) -> list[Any] | None:
    """Return the conditions of a table's rows; None: it has none of this choice."""
    where = list(source.always)
    if choice.kind is not None:
        if choice.kind not in source.kinds:
            return None
        if source.kind is not None:
            where.append(source.kind == choice.kind)
    elif source.table is acts:  # each pass of the cleaner is there: they would fill the list
        where.append(acts.c.kind != ActKind.CLEANING.value)
    if choice.who is not None:
        if source.who is None:
            return None
        machine = source.who.startswith(f"{choice.who}@", autoescape=True)
        where.append(or_(source.who == choice.who, machine))
    if choice.since is not None:
        where.append(source.at >= choice.since)
    if choice.until is not None:
        where.append(source.at < choice.until)
    if below is not None:
        where.append(_below(source, number, below))
    return where


def _below(source: _Source, number: int, below: AuditKey) -> Any:
    """Rows of a table after a key: of an earlier time, or of the same in a table before it, or before it in its own."""
    if number > below.table:
        return source.at < below.at
    if number < below.table:
        return source.at <= below.at
    if "id" not in source.table.c:
        return source.at < below.at
    return or_(source.at < below.at, and_(source.at == below.at, source.table.c.id < below.row))


def _entry(source: _Source, number: int, row: RowMapping) -> AuditEntry:
    what, why, run, dry_run = source.told(row)
    at = row[source.at.name]
    kind = row[source.kind.name] if source.kind is not None else source.kinds[0]
    who = (row[source.who.name] if source.who is not None else None) or ""
    return AuditEntry(at, kind, what, who, why, run, dry_run, AuditKey(at, number, row.get("id", 0)))
