"""Files in temporary areas that no transfer names: the census names them, and deletes them where the site allows it.

A file is deleted only if all of this holds: it is in the folder of a user in the site's temporary area, older than
`unknown_days` and younger than the ledger, and no transfer, live or archived, has its name in a state but cleaned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import select

from include.errors import NightshiftError
from include.ledger.engine import reading
from include.settings.transfers.sites import RemoteSite
from include.stageout.components.tools import Stageout
from include.stageout.files import digest_of
from include.stageout.places.facts import ListedFile, SitePlace
from include.stageout.requests import AT_ONCE
from include.stageout.states import TransferState
from include.stageout.tables import stageout_archive, stageout_queues, stageout_requests, stageout_transfers
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
    since = _ledger_since(stageout)
    if since is None:
        return
    old, left = now - timedelta(days=stageout.settings.unknown_days), deletions
    for site in stageout.sites.values():
        if site.temporary is None:
            continue
        for owner in _owners(stageout, site.name):
            try:
                folder = _Folder(site, owner, site.temporary, stageout.place(site.name, owner), since)
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
        elif folder.site.clean_unknown:
            reason += ", before the ledger began, or outside of its user's folder"
        found.append(CensusFinding(FindingKind.UNKNOWN_FILE, reason, outcome, folder.site.name, name=name, bytes=size))
    return found


def _is_deletable(stageout: Stageout, folder: _Folder, file: ListedFile) -> bool:
    name, _, modified = file
    # a ledger that is new, or that was lost, does not know what older files are for
    young = modified > folder.since
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


def _ledger_since(stageout: Stageout) -> datetime | None:
    """When the first request of all came; None for an empty ledger."""
    # requests are forgotten sooner than files are old: the archive knows how long the ledger has been in use
    tables = (stageout_requests, stageout_archive)
    with reading(stageout.ledger) as connection:
        first = [connection.scalar(select(table.c.created_at).order_by(table.c.id).limit(1)) for table in tables]
    return min((at for at in first if at is not None), default=None)
