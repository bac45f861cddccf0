"""Files in temporary areas that no transfer names: the census names them, and deletes them where the site allows it.

A file is deleted only if all of this holds: it is in the folder of a user in the site's temporary area, older than
`unknown_days` and younger than the ledger, and no transfer, live or archived, has its name in a state but cleaned. What
was written between a backup of the ledger and its restore is never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice

from sqlalchemy import Connection, insert, select

from include.errors import NightshiftError
from include.ledger.engine import Bind, reading, writing
from include.settings.transfers.sites import RemoteSite
from include.stageout.components.tools import Stageout
from include.stageout.errors import RESTORE_REFUSED
from include.stageout.files import digest_of
from include.stageout.places.facts import ListedFile, SitePlace
from include.stageout.requests import AT_ONCE
from include.stageout.states import TransferState
from include.stageout.tables import (
    stageout_archive,
    stageout_queues,
    stageout_requests,
    stageout_restores,
    stageout_transfers,
)
from include.stageout.upkeep.cleaning import is_in_folder_of, is_same_file
from include.stageout.upkeep.findings import CensusFinding, FindingKind, FindingOutcome

_OUTCOME = FindingOutcome


@dataclass(frozen=True, slots=True)
class _Folder:
    """The folder of a user in the temporary area of a site, and since when the ledger knows its files."""

    site: RemoteSite
    owner: str
    area: str
    place: SitePlace
    since: datetime
    lost: Sequence[tuple[datetime, datetime]]
    """From when to when the ledger may lack requests, since it was restored from a backup."""

    def is_lost(self, file: ListedFile) -> bool:
        """Whether the lost part of the ledger may have known the file."""
        return any(since < file[2] <= until for since, until in self.lost)


def stray_files(
    stageout: Stageout, *, now: datetime, deletes: bool, files: int, deletions: int
) -> Iterator[CensusFinding]:
    """Old files that no transfer names, in the folders of all users who have sent files from a site.

    Args:
        stageout: Ledger, settings and sites.
        now: When the census began.
        deletes: Whether they are deleted at sites with `clean_unknown`.
        files: How many files of a folder are listed, at most.
        deletions: How many are deleted, at most.
    """
    since, lost = _ledger_since(stageout), restores(stageout.ledger)
    if since is None:
        return
    old, left = now - timedelta(days=stageout.settings.unknown_days), deletions
    for site in stageout.sites.values():
        if site.temporary is None:
            continue
        for owner in _owners(stageout, site.name):
            try:
                folder = _Folder(site, owner, site.temporary, stageout.place(site.name, owner), since, lost)
                listed = folder.place.listed(stageout.settings.temporary_of(owner, site.temporary))
                aged = (file for file in islice(listed, files) if file[2] < old)
                while batch := list(islice(aged, AT_ONCE)):
                    found = _judged(stageout, folder, batch, most=left if deletes else 0)
                    left -= sum(finding.outcome is _OUTCOME.DELETED for finding in found)
                    yield from found
            except NightshiftError as error:
                reason = f"the temporary files of {owner}: {error}"
                yield CensusFinding(FindingKind.SITE_UNASKED, reason, site=site.name)


def _judged(stageout: Stageout, folder: _Folder, batch: Sequence[ListedFile], *, most: int) -> list[CensusFinding]:
    """The files of a batch that are unknown, at most `most` of them deleted."""
    known = _known(stageout, folder, [name for name, _, _ in batch])
    unknown = [file for file in batch if file[0] not in known]
    deletable = [file[0] for file in unknown if _is_deletable(stageout, folder, file)]
    gone = folder.place.remove(deletable[:most]) if most else {}
    found = []
    for name, size, modified in unknown:
        outcome, reason = _OUTCOME.REPORTED, f"no transfer names it; it is from {modified:%Y-%m-%d %H:%M} UTC"
        if name in gone:
            failure = gone[name]
            outcome = _OUTCOME.DELETED if failure is None else _OUTCOME.REPORTED
            reason += "" if failure is None else f", and could not be deleted: {failure.text}"
        elif name in deletable:
            outcome = _OUTCOME.DELETABLE
        elif folder.site.clean_unknown and folder.is_lost((name, size, modified)):
            reason += ": a request that the ledger lost before it was restored from a backup may have named it"
        elif folder.site.clean_unknown:
            reason += ", before the ledger began, or outside of its user's folder"
        found.append(CensusFinding(FindingKind.UNKNOWN_FILE, reason, outcome, folder.site.name, name=name, bytes=size))
    return found


def _is_deletable(stageout: Stageout, folder: _Folder, file: ListedFile) -> bool:
    name, _, modified = file
    # a ledger that is new, or that was lost, does not know what older files are for
    young = modified > folder.since and not folder.is_lost(file)
    return folder.site.clean_unknown and young and is_in_folder_of(stageout.settings, folder.area, folder.owner, name)


def _known(stageout: Stageout, folder: _Folder, names: Sequence[str]) -> set[str]:
    """Names that a transfer has as its source or destination at this site, unless its source was removed."""
    transfers, archive, queues = stageout_transfers.c, stageout_archive.c, stageout_queues.c
    site, cleaned = folder.site.name, TransferState.CLEANED.value
    sources = (
        select(transfers.source_name, queues.source)
        .join(stageout_queues, transfers.queue == queues.id)
        .where(transfers.source_name.in_(names), transfers.state != cleaned),
        select(archive.source_name, archive.source).where(archive.source_name.in_(names), archive.state != cleaned),
    )
    copies = (
        select(transfers.destination_name).where(transfers.place.in_([digest_of(site, name) for name in names])),
        # by the owner, which has an index: the copies of others are not in this user's folder
        select(archive.destination_name).where(
            archive.owner == folder.owner, archive.destination == site, archive.destination_name.in_(names)
        ),
    )
    with reading(stageout.ledger) as connection:
        rows = [row for query in sources for row in connection.execute(query)]
        known = {name for query in copies for name in connection.scalars(query)}
    return known | {row.source_name for row in rows if is_same_file(stageout.sites, row.source_name, row.source, site)}


def _owners(stageout: Stageout, site: str) -> list[str]:
    query = select(stageout_queues.c.owner).where(stageout_queues.c.source == site).distinct()
    with reading(stageout.ledger) as connection:
        return sorted(connection.scalars(query))


def note_restore(bind: Bind, backup: str, *, by: str, now: datetime) -> datetime:
    """Record that the ledger was restored from a backup. Again with the same time, it changes nothing.

    Args:
        bind: The ledger, or the caller's transaction.
        backup: The time of the backup, as 2026-11-23T12:00:00Z: what was requested later is lost.
        by: Who restored it.
        now: When; until then requests may be lost.

    Returns:
        The time of the backup, UTC.

    Raises:
        StageoutError: RESTORE_REFUSED for what is no time with a zone, and for a time in the future.
    """
    try:
        given = datetime.fromisoformat(backup)
    except ValueError:
        raise RESTORE_REFUSED(repr(backup[:64]), "it is not a time") from None
    if given.tzinfo is None:
        raise RESTORE_REFUSED(backup, "the time has no zone")
    since = given.astimezone(UTC)
    if since > now:
        raise RESTORE_REFUSED(backup, "the backup cannot be of a time in the future")

    def work(connection: Connection) -> None:
        known = connection.scalar(select(stageout_restores.c.since).where(stageout_restores.c.since == since))
        if known is None:
            connection.execute(insert(stageout_restores).values(since=since, noted_at=now, noted_by=by))

    writing(bind, work)
    return since


def restores(bind: Bind) -> Sequence[tuple[datetime, datetime]]:
    """The restores of the ledger: the time of each backup, and when its restore was recorded."""
    columns = stageout_restores.c
    with reading(bind) as connection:
        rows = connection.execute(select(columns.since, columns.noted_at).order_by(columns.since))
        return [(row.since, row.noted_at) for row in rows]


def _ledger_since(stageout: Stageout) -> datetime | None:
    """When the first request of all came; None for an empty ledger."""
    # requests are forgotten sooner than files are old: the archive knows how long the ledger has been in use
    tables = (stageout_requests, stageout_archive)
    with reading(stageout.ledger) as connection:
        first = [connection.scalar(select(table.c.created_at).order_by(table.c.id).limit(1)) for table in tables]
    return min((at for at in first if at is not None), default=None)
