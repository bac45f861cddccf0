"""What the ledger records of garbage collections: what each deleted, what it left, and what it found lost."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, insert

from include.cvmfs.collect.report import CollectionReport
from include.ledger.engine import Bind, writing
from include.nightlies.records import damage
from include.nightlies.records.tables import collections


def note_collection(bind: Bind, report: CollectionReport, *, now: datetime) -> None:
    """Record a collection that ended, and list as damaged what it found lost. The same report again changes nothing.

    Args:
        bind: The ledger, or the caller's transaction.
        report: Of a collection, not of a dry run.
        now: When it ended, if the report has no time.
    """
    ended = report.ended or now
    row = {
        "repository": report.fqrn,
        "ended_at": ended,
        "number": report.number,
        "kept": report.objects_kept,
        "deleted": report.deleted,
        "bytes_deleted": report.bytes_deleted,
        "garbage": report.once + len(report.failed),
        "lost": len(report.lost),
        "seconds": sum(report.seconds.values()),
    }

    def work(connection: Connection) -> None:
        same = (collections.c.repository == report.fqrn, collections.c.ended_at == ended)
        connection.execute(delete(collections).where(*same))
        connection.execute(insert(collections).values(row))
        damage.note_lost(connection, report, now=now)

    writing(bind, work)
