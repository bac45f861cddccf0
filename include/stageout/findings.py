"""Findings of a census, and the rules for sources that may be removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache

from sqlalchemy import Connection, delete, insert, select

from include.ledger.engine import Bind, reading, writing
from include.settings.sites import RemoteSite
from include.settings.stageout import StageoutSettings
from include.settings.text_types import is_below
from include.stageout.errors import StageoutError
from include.stageout.files import SiteOperation, site_urls
from include.stageout.places.verify import verified_on_proof
from include.stageout.requests import Transfer, document_of, from_rows, pieces
from include.stageout.retry import MAX_REASON_CHARACTERS
from include.stageout.states import TransferJobState, TransferState
from include.stageout.tables import stageout_findings

FIRST_WAIT, LONGEST_WAIT = timedelta(minutes=5), timedelta(hours=12)
GIVEN_UP = timedelta(days=3)
"""A source that could not be removed for so long is kept."""
_State = TransferState
DONE_WITH_SOURCE = frozenset({_State.REGISTERED, _State.CLEANING, _State.CLEANED, _State.KEPT, _State.RETRACTED})
"""States of a transfer that will not be copied again: another one in any other state needs the same source."""


def kept_because(settings: StageoutSettings, sites: Mapping[str, RemoteSite], file: Transfer) -> str | None:
    """Return why the source of a verified copy is never removed; None: it may be."""
    if file.kept_by is not None:
        return f"{file.kept_by} asked to keep it"
    if file.fts is not None:
        return "a task of a DAG asked for the copy: its source stays"
    site, destination = sites.get(file.source), sites.get(file.destination)
    if site is None or destination is None:
        return f"site {file.source if site is None else file.destination} is not in the configuration"
    if not site.clean or site.temporary is None:
        return f"site {site.name} is not cleaned"
    if not verified_on_proof(destination):
        return f"only the size was compared at {destination.name}, which does not have `clean_on_size`"
    if not is_below(file.source_name, site.temporary):
        return f"it is outside of the temporary area {site.temporary} of {site.name}"
    if not is_in_folder_of(settings, site.temporary, file.owner, file.source_name):
        return f"it is outside of the folder of {file.owner} in the temporary area of {site.name}"
    # two sites may be names of one storage, where the removal would remove the copy
    if _have_same_url((site, file.source_name), (destination, file.destination_name)):
        return "source and destination have the same URL"
    return None


def is_in_folder_of(settings: StageoutSettings, area: str, owner: str, name: str) -> bool:
    """Tell whether a logical name is in a user's folder below a temporary area."""
    folder = settings.temporary_of(owner, area)
    # a name with a slash would be a folder of another user
    return "/" not in settings.user_of(owner) and is_below(name, folder) and name != folder


def is_same_file(sites: Mapping[str, RemoteSite], name: str, site: str, other: str) -> bool:
    """Tell whether a name may be one file at two sites: they are names of one storage, or one is not known any more."""
    if site == other or site not in sites or other not in sites:
        return True
    return _have_same_url((sites[site], name), (sites[other], name))


def removal_wait(tried_for: timedelta) -> timedelta | None:
    """After how long a failed removal is tried again, by how long it has been tried; None: it is given up."""
    if tried_for >= GIVEN_UP:
        return None
    # as long again as it took so far: the waits double, and no row has to count; in steps, so that rows are alike
    return min(max(FIRST_WAIT, tried_for // FIRST_WAIT * FIRST_WAIT), LONGEST_WAIT)


def _have_same_url(file: tuple[RemoteSite, str], other: tuple[RemoteSite, str]) -> bool:
    """Tell whether two names, each at its site, have a URL in common."""
    here, there = (tuple(rule.url for rule in site.rules) for site, _ in (file, other))
    return _may_meet(here, there) and bool(_urls(*file) & _urls(*other))


@lru_cache(4096)
def _may_meet(here: tuple[str, ...], there: tuple[str, ...]) -> bool:
    """Tell whether URLs with these beginnings may be the same: two sites are compared once, and not for each file."""
    return any(url.startswith(other) or other.startswith(url) for url in here for other in there)


def _urls(site: RemoteSite, name: str) -> set[str]:
    """All URLs of a name at a site."""
    found: set[str] = set()
    for operation in SiteOperation:
        with suppress(StageoutError):  # the site has no rule for it
            found |= set(site_urls(site, operation, name).values())
    return found


class FindingKind(Enum):
    """The kind of a fault."""

    OLD_STATE = "old-state"
    """A transfer or an FTS job is in its state for longer than it should be."""
    HELD = "held"
    """A transfer waits for the end of a ban, or for a right."""
    CLAIM_OVER = "claim-over"
    """A claim ended long ago: its process died, and no other one has taken the row since."""
    JOB_OVER = "job-over"
    """A transfer waits for an FTS job that has ended in the ledger."""
    JOB_UNKNOWN = "job-unknown"
    """FTS and its archive do not know a job that runs in the ledger."""
    JOB_ENDED = "job-ended"
    """FTS has ended a job that runs in the ledger."""
    JOB_RUNS = "job-runs"
    """FTS runs a job that has ended in the ledger: it may still write."""
    SERVER_UNASKED = "server-unasked"
    COPY_MISSING = "copy-missing"
    """A copy that was verified does not exist any more, and its transfer is not complete yet."""
    COPY_DIFFERS = "copy-differs"
    UNKNOWN_FILE = "unknown-file"
    """An old file in a temporary area that no transfer names."""
    SITE_UNASKED = "site-unasked"


class FindingOutcome(Enum):
    """The reaction of the census."""

    REPORTED = "reported"
    REPAIRED = "repaired"
    """The row is due again at once."""
    DELETABLE = "deletable"
    """It would have been deleted, if that had been asked for."""
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class CensusFinding:
    """A fault, with the reason for people.

    `site`: where it is. `transfer`, `job`: the rows that it is about. `name`: the logical name of a file. `bytes`: its
    size.
    """

    kind: FindingKind
    reason: str
    outcome: FindingOutcome = FindingOutcome.REPORTED
    site: str | None = None
    transfer: int | None = None
    job: int | None = None
    name: str | None = None
    bytes: int | None = None


def record_findings(bind: Bind, findings: Sequence[CensusFinding], *, now: datetime) -> None:
    """Put the findings of a census in the place of those of the one before, in one transaction."""

    rows = [
        {**document_of(finding), "reason": finding.reason[:MAX_REASON_CHARACTERS], "found_at": now}
        for finding in findings
    ]

    def work(connection: Connection) -> None:
        connection.execute(delete(stageout_findings))
        for piece in pieces(rows):
            connection.execute(insert(stageout_findings), piece)

    writing(bind, work)


def last_findings(bind: Bind) -> tuple[CensusFinding, ...]:
    """Return what the last census found."""
    with reading(bind) as connection:
        return from_rows(CensusFinding, connection.execute(select(stageout_findings).order_by(stageout_findings.c.id)))


_T, _J = TransferState, TransferJobState


def longest_in_state(settings: StageoutSettings) -> Mapping[TransferState | TransferJobState, timedelta]:
    """For how long a row should be in a state at most. States without one last until a person does something."""
    hour, day = timedelta(hours=1), timedelta(days=1)
    copying = settings.queue_time + day
    return {
        # held back by the limits of its link
        _T.NEW: 2 * day,
        _T.CLAIMED: hour,
        _T.SUBMITTED: copying,
        _T.ACTIVE: day,
        _T.COPIED: 6 * hour,
        _T.DONE: timedelta(minutes=settings.block_minutes) + 6 * hour,
        _T.REGISTERED: 6 * hour,
        # removals are tried for three days
        _T.CLEANING: 4 * day,
        # the longest wait is six hours
        _T.RETRY_WAIT: 12 * hour,
        _T.NEEDS_CREDENTIAL: 3 * day,
        _T.KILLING: 6 * hour,
        _J.SUBMITTING: hour,
        _J.SUBMITTED: copying,
        _J.ACTIVE: copying,
    }
