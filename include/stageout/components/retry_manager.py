"""The retry manager: a waiting transfer becomes new when its time has come; resubmit, kill, and stray files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, or_, select

from include.errors import NightshiftError
from include.fts.client import FtsClient
from include.fts.errors import FtsError
from include.ledger.acts import Act, ActKind, LedgerRestore, named, note_act, record_restore, restores_of
from include.ledger.engine import Bind, reading, writing
from include.settings.sites import RemoteSite
from include.stageout.attempts.queues import server_of
from include.stageout.blocks import close_workflow, note_killed
from include.stageout.claims import claim_transfers, look_again
from include.stageout.errors import RESTORE_REFUSED
from include.stageout.files import digest_of
from include.stageout.findings import CensusFinding, FindingKind, FindingOutcome, is_in_folder_of, is_same_file
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.opening import Stageout
from include.stageout.places.facts import ListedFile, SitePlace
from include.stageout.requests import AT_ONCE, Transfer, pieces, update_rows
from include.stageout.states import StageoutComponent, TransferJobState, TransferState
from include.stageout.tables import (
    stageout_archive,
    stageout_jobs,
    stageout_queues,
    stageout_requests,
    stageout_transfers,
)

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
        """Tell whether the lost part of the ledger may have known the file."""
        return any(since < file[2] <= until for since, until in self.lost)


def stray_files(
    stageout: Stageout, *, now: datetime, deletes: bool, files: int, deletions: int
) -> Iterator[CensusFinding]:
    """Old files that no transfer names, in the folders of all users who have sent files from a site.

    `stageout`: ledger, settings and sites. `now`: when the census began. `deletes`: whether they are deleted at sites
    with `clean_unknown`. `files`: how many files of a folder are listed, at most. `deletions`: how many are deleted, at
    most.
    """
    since = _ledger_since(stageout)
    lost = [(restore.since, restore.noted_at) for restore in restores_of(stageout.ledger)]
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


def note_restore(bind: Bind, backup: str, *, by: str, now: datetime, margin: timedelta) -> datetime:
    """Record that the ledger was restored from a backup. Again with the same time, it changes nothing.

    `backup`: the time of the backup, as 2026-11-23T12:00:00Z: what was requested later is lost. `by`: who restored it.
    `now`: when; until then requests may be lost. `margin`: how long before its request a file may have been written.
    Returns the time since which unknown files are never deleted, UTC. Raises StageoutError:
    RESTORE_REFUSED for what is no time with a zone, and for a time in the future.
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

    record_restore(bind, LedgerRestore(since - margin, now, by))
    return since - margin


def _ledger_since(stageout: Stageout) -> datetime | None:
    """When the first request of all came; None for an empty ledger."""
    # requests are forgotten sooner than files are old: the archive knows how long the ledger has been in use
    tables = (stageout_requests, stageout_archive)
    with reading(stageout.ledger) as connection:
        first = [connection.scalar(select(table.c.created_at).order_by(table.c.id).limit(1)) for table in tables]
    return min((at for at in first if at is not None), default=None)


SHORTEST_LOOK, LONGEST_LOOK = timedelta(minutes=1), timedelta(minutes=15)
"""Between two looks for a user's credential; the wait grows with the time that it is missing."""
_T, _J = TransferState, TransferJobState


@dataclass(frozen=True, slots=True)
class RetryReport:
    """The work of one batch of the retry manager.

    `rows`: transfers that it took; 0: nothing is due. `retried`: those that are new now. `without_credential`: users
    whose credential is still missing, each with the reason.
    """

    rows: int
    retried: int
    without_credential: Mapping[str, str]


def retry_waiting(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> RetryReport:
    """Make new what has waited for long enough, and what waited for a credential that is there again; one batch.

    `limit`: transfers of each kind that are taken at most.
    """
    ledger, worker = stageout.ledger, stageout.worker
    waited = claim_transfers(ledger, _T.RETRY_WAIT, worker, limit=limit, now=now())
    moves = [TransferMove(row.id, _T.RETRY_WAIT, _T.NEW, f"retry {row.retries}") for row in waited.rows]
    moved = move_transfers(ledger, moves, StageoutComponent.RETRY, now=now(), claim=waited.claim)
    without = claim_transfers(ledger, _T.NEEDS_CREDENTIAL, worker, limit=limit, now=now())
    usable, faults = _credentials(stageout, without.rows, now())
    moves = [TransferMove(row.id, _T.NEEDS_CREDENTIAL, _T.NEW, "the credential can be used") for row in usable]
    moved |= move_transfers(ledger, moves, StageoutComponent.RETRY, now=now(), claim=without.claim)
    ready, at = {row.id for row in usable}, now()
    missing = {row.id: (at - row.moved_at) / 4 for row in without.rows if row.id not in ready}
    waits = {number: min(max(wait, SHORTEST_LOOK), LONGEST_LOOK) for number, wait in missing.items()}
    # whole minutes: few different waits are few statements
    rounded = {number: timedelta(minutes=round(wait / SHORTEST_LOOK)) for number, wait in waits.items()}
    look_again(ledger, stageout_transfers, rounded, without.claim, now=at)
    return RetryReport(len(waited.rows) + len(without.rows), len(moved), faults)


def _credentials(stageout: Stageout, rows: Sequence[Transfer], now: datetime) -> tuple[list[Transfer], dict[str, str]]:
    """The rows whose credential can be used, and why those of users cannot."""
    waiting: defaultdict[tuple[str, str | None, str, str], list[Transfer]] = defaultdict(list)
    for row in rows:
        waiting[row.owner, row.fts, row.source, row.destination].append(row)
    usable: list[Transfer] = []
    faults: dict[str, str] = {}
    clients: dict[FtsClient, FtsError | None] = {}
    for (owner, server, *link), theirs in waiting.items():
        try:
            client = stageout.fts(server or server_of((link[0], link[1]), stageout.settings.fts), owner, *link)
        except FtsError as error:
            faults[owner] = str(error)
            continue
        if client not in clients:
            clients[client] = _fault(client, now)
        fault = clients[client]
        if fault is None:
            usable += theirs
        else:
            faults[owner] = str(fault)
    return usable, faults


def _fault(client: FtsClient, now: datetime) -> FtsError | None:
    """Return why the server cannot act for the client's identity; None: it can."""
    try:
        client.renew_credential(now=now)
    except FtsError as error:
        return error
    return None


# -- what people do


@dataclass(frozen=True, slots=True)
class KilledTransfers:
    """Transfers that are killed, and those that are killed as soon as FTS confirms it, by id."""

    killed: frozenset[int]
    killing: frozenset[int]


def resubmit(
    bind: Bind,
    *,
    by: str,
    now: datetime,
    ids: Collection[int] | None = None,
    owner: str | None = None,
    workflow: str | None = None,
) -> frozenset[int]:
    """Make failed and killed transfers new again, with all their retries; what has another state is left.

    `ids`: only these; None: all that fit the rest. `workflow`: only those of this workflow, of `owner`. Returns the ids
    of the transfers that are new now.
    """
    to = {_T.FAILED: _T.NEW, _T.KILLED: _T.NEW}
    done = _moved(bind, to, f"resubmitted by {by}", now, (ids, owner, workflow))[_T.NEW]
    _note_act(bind, Act(now, ActKind.RESUBMISSION, "", by, ""), done, (owner, workflow))
    return done


def kill(
    bind: Bind,
    *,
    by: str,
    now: datetime,
    ids: Collection[int] | None = None,
    owner: str | None = None,
    workflow: str | None = None,
) -> KilledTransfers:
    """Kill transfers. What FTS has is killed when nothing of it can write any more; what is copied already goes on.

    The arguments are those of `resubmit`.
    """
    to = {
        _T.NEW: _T.KILLED,
        _T.RETRY_WAIT: _T.KILLED,
        _T.NEEDS_CREDENTIAL: _T.KILLED,
        _T.CLAIMED: _T.KILLING,
        _T.SUBMITTED: _T.KILLING,
        _T.ACTIVE: _T.KILLING,
    }
    moved = _moved(bind, to, f"killed by {by}", now, (ids, owner, workflow))
    _note_act(bind, Act(now, ActKind.KILL, "", by, ""), moved[_T.KILLED] | moved[_T.KILLING], (owner, workflow))
    return KilledTransfers(moved[_T.KILLED], moved[_T.KILLING])


def kill_workflow(bind: Bind, owner: str, workflow: str, *, by: str, now: datetime) -> KilledTransfers:
    """Close a workflow, and kill its transfers as `kill` does. Raises as `close_workflow`."""
    # closed first: no file is added behind the kill
    close_workflow(bind, owner, workflow, now=now)
    note_killed(bind, owner, workflow, now=now)
    return kill(bind, by=by, now=now, owner=owner, workflow=workflow)


def _note_act(bind: Bind, act: Act, ids: Collection[int], of: tuple[str | None, str | None]) -> None:
    """Record an act on transfers, of one owner and workflow if they were named; nothing if no transfer moved."""
    if ids:
        owner, workflow = of
        whose = " ".join(filter(None, (owner and f"of {owner}", workflow and f"of workflow {workflow}")))
        what = f"{len(ids)} transfers {whose}".strip() + f": {named(map(str, sorted(ids)))}"
        note_act(bind, replace(act, what=what, why="by request of a person"))


def keep(
    bind: Bind, *, by: str, ids: Collection[int] | None = None, owner: str | None = None, workflow: str | None = None
) -> frozenset[int]:
    """Keep the sources of transfers, also of those that are resubmitted later, and for all transfers of a source.

    The arguments are those of `resubmit`. Returns the ids of the transfers whose sources stay; those of others are
    removed already, or may be at this moment.
    """
    columns, queues, kept = stageout_transfers.c, stageout_queues.c, frozenset[int]()
    states = columns.state.in_([state.value for state in KEEPABLE])
    # a cleaner that has claimed a row has looked already
    free = or_(columns.state != _T.CLEANING.value, columns.claim.is_(None))
    sources = select(columns.id, columns.source_name, queues.source).join(stageout_queues, columns.queue == queues.id)
    for piece in _chosen(bind, KEEPABLE, (ids, owner, workflow)):

        def work(connection: Connection, numbers: Sequence[int] = [row.id for row in piece]) -> frozenset[int]:
            update_rows(connection, stageout_transfers, numbers, {"kept_by": by}, states, free)
            done = sources.where(columns.id.in_(numbers), columns.kept_by.is_not(None))
            stays = {row.id: (row.source_name, row.source) for row in connection.execute(done)}
            # other transfers of the same sources: this row may be archived before they end
            pairs = set(stays.values())
            others = sources.where(columns.source_name.in_({name for name, _ in pairs}))
            rows = connection.execute(others.where(columns.kept_by.is_(None)))
            shared = [row.id for row in rows if (row.source_name, row.source) in pairs]
            update_rows(connection, stageout_transfers, shared, {"kept_by": by}, states, free)
            return frozenset(stays)

        kept |= writing(bind, work)
    return kept


KEEPABLE = tuple(state for state in TransferState if state not in (_T.CLEANED, _T.KEPT, _T.RETRACTED))
"""States in which the source of a transfer is not removed yet."""
_Choice = tuple[Collection[int] | None, str | None, str | None]


def _moved(
    bind: Bind, to: Mapping[TransferState, TransferState], reason: str, now: datetime, choice: _Choice
) -> defaultdict[TransferState, frozenset[int]]:
    """Make the moves, 500 in a transaction; the ids that moved, by their state after it."""
    moved: defaultdict[TransferState, frozenset[int]] = defaultdict(frozenset)
    for piece in _chosen(bind, list(to), choice):

        def work(connection: Connection, piece: Sequence[Row[Any]] = piece) -> dict[TransferState, frozenset[int]]:
            moves = [TransferMove(row.id, _T(row.state), _target(row, to, now), reason) for row in piece]
            done = move_transfers(connection, moves, StageoutComponent.PERSON, now=now)
            _wake(connection, [row.job for row in piece if row.job is not None and row.id in done], now)
            return {
                state: frozenset(move.id for move in moves if move.to is state and move.id in done)
                for state in {move.to for move in moves}
            }

        for state, numbers in writing(bind, work).items():
            moved[state] |= numbers
    return moved


def _target(row: Row[Any], to: Mapping[TransferState, TransferState], now: datetime) -> TransferState:
    """Return where a transfer goes; it is not killed yet while a copy of an earlier attempt may still write."""
    target = to[_T(row.state)]
    writes = row.may_write_until is not None and row.may_write_until > now
    return _T.KILLING if target is _T.KILLED and writes else target


def _chosen(bind: Bind, states: Sequence[TransferState], choice: _Choice) -> Iterator[Sequence[Row[Any]]]:
    """The transfers in these states, in pieces."""
    ids, owner, workflow = choice
    if ids is None and owner is None:
        raise ValueError("neither ids nor an owner: that would be every transfer")
    columns = stageout_transfers.c
    query = select(columns.id, columns.state, columns.job, columns.may_write_until).where(
        columns.state.in_([state.value for state in states])
    )
    if owner is not None:
        query = query.join(stageout_requests, columns.request == stageout_requests.c.id)
        query = query.where(stageout_requests.c.owner == owner)
        if workflow is not None:
            query = query.where(stageout_requests.c.workflow == workflow)
    if ids is not None:
        for piece in pieces(sorted(set(ids))):
            with reading(bind) as connection:
                yield tuple(connection.execute(query.where(columns.id.in_(piece))))
        return
    last = 0
    while True:
        with reading(bind) as connection:
            rows: Sequence[Row[Any]] = tuple(
                connection.execute(query.where(columns.id > last).order_by(columns.id).limit(AT_ONCE))
            )
        if not rows:
            return
        last = rows[-1].id
        yield rows


def _wake(connection: Connection, jobs: Sequence[int], now: datetime) -> None:
    """Let the monitor see to jobs now, if it has not claimed them."""
    columns = stageout_jobs.c
    free = (columns.state.in_([_J.SUBMITTED.value, _J.ACTIVE.value]), columns.claim.is_(None), columns.due_at > now)
    update_rows(connection, stageout_jobs, jobs, {"due_at": now}, *free)
