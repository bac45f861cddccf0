"""Destructive acts in the ledger: who did what, when and why. Rows are added, and never changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import Enum

from sqlalchemy import Boolean, Column, Connection, Index, Table, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from include.ledger.engine import Bind, writing
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
