"""Destructive acts in the ledger, and restores of it: who did what, when and why.

Rows of acts are added, and never changed. A restore has since when the ledger may lack what was recorded, and whether a
person has accepted what that means.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import Enum

from sqlalchemy import Boolean, Column, Connection, Index, Table, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from include.ledger.engine import Bind, reading, writing
from include.ledger.errors import LedgerError
from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, long_text, metadata

KEPT, CLEANING_KEPT, MOST = timedelta(days=730), timedelta(days=30), 500_000
"""Time that an act is kept, and that of cleanings; the number of acts of a kind: its oldest go with its next one."""
SHOWN, LONGEST = 5, 4000
"""Names in the text of an act, and its characters."""

acts = Table(
    "acts",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("at", UtcTime, nullable=False),
    Column("kind", exact(32), nullable=False),
    Column("what", long_text(), nullable=False),
    # a user of Airflow, `user@machine` of a command, or the task of a run that nobody started
    Column("who", exact(512), nullable=False),
    Column("why", long_text(), nullable=False),
    # `<dag id>/<run id>`; None: a command, or a call of the API
    Column("run", exact(512)),
    Column("dry_run", Boolean, nullable=False),
    Index(None, "at"),
    Index(None, "kind", "at"),
    Index(None, "who", "at"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)

log = logging.getLogger(__name__)


class ActKind(Enum):
    """Kinds of acts that remove something, stop something, or change what others rely on."""

    UNDO = "undo"
    REDO = "redo"
    ROLLBACK = "rollback"
    RETENTION = "retention"
    REMOVAL = "removal"
    COLLECTION = "collection"
    TAGS = "tags removed"
    LEASE = "lease ended"
    KILL = "transfers killed"
    RESUBMISSION = "transfers resubmitted"
    RETRACTION = "files retracted"
    JOB_DEAD = "job declared dead"
    CLEANING = "sources cleaned"
    CENSUS = "unknown files deleted"
    UNFINISHED = "unfinished writes removed"
    WHITELIST = "whitelist signed"
    KEYS = "keys imported"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class Act:
    """A destructive act.

    Attributes:
        at: When it ended.
        kind: Its kind.
        what: Its object, for people; `named` makes a short text of many names.
        who: The person, or the task of a run that no person started.
        why: The reason that was given, or the rule.
        run: The run of a DAG, as `<dag id>/<run id>`; None: none.
        dry_run: Whether nothing was changed.
    """

    at: datetime
    kind: ActKind
    what: str
    who: str
    why: str
    run: str | None = None
    dry_run: bool = False


def named(names: Iterable[str]) -> str:
    """Return the first of many names, and how many there are more."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


def note_act(bind: Bind, act: Act) -> None:
    """Record an act in the log of the process and in the ledger; the oldest of its kind go. Raises nothing.

    The act is done, whatever becomes of this: what the ledger does not take is in the log alone.
    """
    log.info(
        "audit: %s%s: %s; by %s; because: %s", "dry run, " if act.dry_run else "", act.kind.value, act.what, act.who,
        act.why,
    )  # fmt: skip
    row = asdict(act) | {
        "kind": act.kind.value, "what": act.what[:LONGEST], "why": act.why[:LONGEST], "who": act.who[:512],
        "run": act.run and act.run[:512],
    }  # fmt: skip

    def work(connection: Connection) -> None:
        connection.execute(insert(acts).values(row))
        # by kind: passes that clean by the minute leave the acts of people alone
        alike, newest = acts.c.kind == act.kind.value, acts.c.at.desc()
        oldest = act.at - (CLEANING_KEPT if act.kind is ActKind.CLEANING else KEPT)
        last = connection.scalar(select(acts.c.at).where(alike).order_by(newest).offset(MOST - 1).limit(1))
        connection.execute(delete(acts).where(alike, acts.c.at < max(oldest, last or oldest)))

    try:
        writing(bind, work)
    except (LedgerError, SQLAlchemyError, ValueError) as error:
        log.warning("the audit has this act in the log alone: %s", error)


# its name is from when the census alone read it: releases that still run beside this one ask for it by that name
ledger_restores = Table(
    "stageout_restores",
    metadata,
    # the ledger was restored from a backup of the time `since`: what came until `noted_at` may be missing
    Column("since", UtcTime, primary_key=True),
    Column("noted_at", UtcTime, nullable=False),
    Column("noted_by", exact(128), nullable=False),
    # None: restored by other means, and noted by a person
    Column("backup", exact(128)),
    # None: no garbage is collected
    Column("accepted_at", UtcTime),
    Column("accepted_by", exact(128)),
    **TABLE_OPTIONS,
)


@dataclass(frozen=True, slots=True)
class LedgerRestore:
    """A restore of the ledger.

    Attributes:
        since: What was recorded after it may be missing.
        noted_at: Time of the restore; what was recorded after it is there.
        noted_by: Person who restored it.
        backup: Name of the backup; None: restored by other means.
        accepted_at: When a person accepted the report; None: not yet.
        accepted_by: That person.
    """

    since: datetime
    noted_at: datetime
    noted_by: str
    backup: str | None = None
    accepted_at: datetime | None = None
    accepted_by: str | None = None


def record_restore(bind: Bind, restore: LedgerRestore) -> None:
    """Record a restore. Again with the same `since`, it changes nothing."""

    def work(connection: Connection) -> None:
        columns = ledger_restores.c
        if connection.scalar(select(columns.since).where(columns.since == restore.since)) is None:
            values = {name: getattr(restore, name) for name in columns.keys()}  # noqa: SIM118 - no mapping
            connection.execute(insert(ledger_restores).values(values))

    writing(bind, work)


def restores_of(bind: Bind, *, pending: bool = False) -> Sequence[LedgerRestore]:
    """Return the restores of the ledger, the oldest first; `pending`: only those that no person has accepted."""
    query = select(ledger_restores).order_by(ledger_restores.c.since)
    if pending:
        query = query.where(ledger_restores.c.accepted_at.is_(None))
    with reading(bind) as connection:
        return [LedgerRestore(**row) for row in connection.execute(query).mappings()]


def accept_restores(bind: Bind, *, by: str, now: datetime) -> int:
    """Record that a person has accepted what all restores mean. Returns how many were pending."""
    columns = ledger_restores.c

    def work(connection: Connection) -> int:
        pending = update(ledger_restores).where(columns.accepted_at.is_(None))
        return connection.execute(pending.values(accepted_at=now, accepted_by=by)).rowcount

    return writing(bind, work)
