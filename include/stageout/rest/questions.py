"""Answers of the paths that change nothing: lists, one transfer, sums, workflows. Each is seen by its owner only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from itertools import islice
from typing import Annotated

from fastapi import Query
from sqlalchemy import Engine

from include.errors import ErrorRow
from include.settings.sites import RemoteSite
from include.stageout import status
from include.stageout.archive import MoveRecord, history
from include.stageout.errors import StageoutError
from include.stageout.requests import document_of
from include.stageout.rest.remembered import RememberedCounts
from include.stageout.states import TransferState

EDITED_DAG = "stage_out_submit"
"""The DAG whose editors may change transfers."""


@dataclass(frozen=True, slots=True)
class StageoutUser:
    """A user of Airflow by name.

    `name`: the user's name in Airflow. `operator`: whether the user may edit pools (docs/decisions/0031). `editor`:
    whether the user may edit the DAG EDITED_DAG.
    """

    name: str
    operator: bool = False
    editor: bool = False

    @property
    def may_change(self) -> bool:
        """Tell if the user may change anything: others only look."""
        return self.operator or self.editor

    def may_see(self, owner: str) -> bool:
        """Tell whether what belongs to a user of that name is shown."""
        return self.operator or owner == self.name


BODY_TOO_LARGE = ErrorRow(StageoutError, "stageout-body-too-large", "send the files in several requests")
"""The body has more bytes than the limit; the rest of it is not read."""
BODY_INVALID = ErrorRow(
    StageoutError, "stageout-body-invalid", "send a JSON document of the form that `openapi.json` has"
)
"""The body is not JSON, is nested too deep, or has other fields than the form."""
QUERY_INVALID = ErrorRow(StageoutError, "stageout-query-invalid", "`openapi.json` has the parameters of each path")
"""A parameter of the URL has a value that it cannot have."""
TOO_MANY_CALLS = ErrorRow(
    StageoutError, "stageout-too-many-calls", "wait a second, and ask for many files in one call", retryable=True
)
"""The user's calls came faster than the limit."""
UNKNOWN = ErrorRow(StageoutError, "stageout-unknown", "users find only what is their own")
"""There is no such transfer or workflow, or it belongs to another user."""
OPERATORS_ONLY = ErrorRow(
    StageoutError, "stageout-operators-only", "leave the user out, or have an operator do it: one that may edit pools"
)
"""A user asked for transfers of another user."""
VIEWERS_LOOK = ErrorRow(
    StageoutError,
    "stageout-viewers-look",
    f"ask an administrator of Airflow for the role User, or for a role with *can edit* on the DAG `{EDITED_DAG}`",
)
"""A user who may only look asked for a change."""

_Text = Annotated[str | None, Query(max_length=1024)]


class SummaryKey(Enum):
    """What transfers are counted by, besides their states."""

    STATE = "state"
    USER = "user"
    SOURCE = "source"
    DESTINATION = "destination"
    LINK = "link"


_KEYS: Mapping[SummaryKey, Callable[[status.TransferCount], str]] = {
    SummaryKey.STATE: lambda _: "",
    SummaryKey.USER: lambda count: count.owner,
    SummaryKey.SOURCE: lambda count: count.source,
    SummaryKey.DESTINATION: lambda count: count.destination,
    SummaryKey.LINK: lambda count: f"{count.source} {count.destination}",
}


@dataclass(frozen=True, slots=True)
class TransferHistory:
    """A transfer, its copy, and its moves with their reasons, the oldest first."""

    transfer: status.TransferStatus
    copy: status.FileCopy
    moves: tuple[MoveRecord, ...]


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """So many files. `name`: of the user, site or link (`source destination`)."""

    name: str
    state: TransferState
    files: int


@dataclass(frozen=True, slots=True)
class TransferSummary:
    """Counts of transfers that are not archived; they are up to `counted_at`."""

    counted_at: datetime
    rows: tuple[SummaryRow, ...]


@dataclass(frozen=True, slots=True)
class WorkflowSummary:
    """A workflow, and its files by state, archived or not."""

    workflow: status.WorkflowStatus
    states: dict[str, int]


class TransferQuery:
    """The parameters of a list or a sum: which transfers. Without `user` an operator sees those of all users."""

    def __init__(
        self,
        user: _Text = None,
        workflow: _Text = None,
        job: Annotated[str | None, Query(max_length=1024, description="The job of the workflow")] = None,
        state: Annotated[list[TransferState] | None, Query(max_length=len(TransferState))] = None,
        site: Annotated[str | None, Query(max_length=1024, description="Source or destination")] = None,
        source: _Text = None,
        destination: _Text = None,
        name: Annotated[str | None, Query(max_length=1024, description="Logical name at either site")] = None,
        failure: Annotated[str | None, Query(max_length=64, description="Class of the last failure")] = None,
    ) -> None:
        self.wanted = status.TransferFilter(
            user, workflow, job, source, destination, site, name, failure, tuple(state or ())
        )

    def seen_by(self, user: StageoutUser) -> status.TransferFilter:
        """Return what of it the user may see.

        Raises StageoutError: OPERATORS_ONLY, and QUERY_INVALID where no index of the ledger leads to what is wanted.
        """
        wanted = self.wanted
        if wanted.workflow is None and (wanted.user_job or wanted.name):
            raise QUERY_INVALID("the query", "`job` and `name` need `workflow`")
        if wanted.workflow is None and wanted.failure and not wanted.states:
            raise QUERY_INVALID("the query", "`failure` needs `state` or `workflow`")
        return replace(wanted, owner=owner_of(user, wanted.owner))


def owner_of(user: StageoutUser, asked: str | None) -> str | None:
    """Return whose transfers a call is about: None is those of all users, for operators only.

    Raises StageoutError: OPERATORS_ONLY if a user asks for those of another.
    """
    if user.operator:
        return asked
    if asked not in (None, user.name):
        raise OPERATORS_ONLY(f"user {asked}", "its transfers are not shown to you")
    return user.name


def transfer(ledger: Engine, sites: Mapping[str, RemoteSite], user: StageoutUser, number: int) -> TransferHistory:
    """Return one transfer with its history. Raises StageoutError, UNKNOWN."""
    found = status.transfer_status(ledger, number)
    if found is None or not user.may_see(found.owner):
        raise UNKNOWN(f"transfer {number}", "you have none with this number")
    return TransferHistory(found, status.copy_of(sites, found), history(ledger, number))


def summary(
    ledger: Engine, remembered: RememberedCounts, wanted: status.TransferFilter, by: SummaryKey
) -> TransferSummary:
    """Counts, which are kept for some seconds: a count reads an entry of an index for each transfer."""
    name = _KEYS[by]
    at, counts = remembered(wanted, lambda: (datetime.now(UTC), status.count_transfers(ledger, wanted)))
    sums = status.sum_counts(counts, lambda count: (name(count), count.state))
    rows = (SummaryRow(name, state, files) for (name, state), files in sums.items())
    return TransferSummary(at, tuple(sorted(rows, key=lambda row: (row.name, row.state.value))))


def workflow(ledger: Engine, owner: str, name: str) -> WorkflowSummary:
    """A workflow of a user. Raises StageoutError, UNKNOWN."""
    found = status.workflow_status(ledger, owner, name)
    if found is None:
        raise UNKNOWN(f"workflow {name[:200]!r} of {owner}", "no such name")
    wanted = status.TransferFilter(owner=owner, workflow=name)
    counts = [*status.count_transfers(ledger, wanted), *status.count_archived(ledger, wanted)]
    return WorkflowSummary(found, status.sum_counts(counts, lambda count: count.state.value))


def period(since: date | None, until: date | None, *, now: datetime) -> tuple[datetime, datetime]:
    """The beginnings of two days in UTC; without `until` today is the last day.

    Raises StageoutError: QUERY_INVALID for a period that is longer than 366 days, or ends before it begins.
    """
    try:
        last = until or now.date() + timedelta(days=1)
        first = since or last - timedelta(days=30)
    except OverflowError:
        raise QUERY_INVALID("until", "there is no day so early") from None
    if not timedelta() <= last - first <= timedelta(days=366):
        raise QUERY_INVALID("since", "the period is not one of 0 to 366 days")
    return datetime.combine(first, time(), UTC), datetime.combine(last, time(), UTC)


class ListFormat(Enum):
    """The form of a list of copies: an array of JSON with all that is known, or one URL a line."""

    JSON = "json"
    URLS = "urls"


LIST_TYPES: Mapping[ListFormat, str] = {ListFormat.JSON: "application/json", ListFormat.URLS: "text/plain"}


def copy_lines(copies: Iterable[status.FileCopy], form: ListFormat) -> Iterator[str]:
    """Write copies as a list; as URLs those that are verified."""
    if form is ListFormat.URLS:
        yield from (f"{copy.url}\n" for copy in copies if copy.url is not None)
        return
    before = "[\n"
    for copy in copies:
        yield before + json.dumps(document_of(copy))
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def parts(lines: Iterator[str]) -> Iterator[str]:
    """Lines, many in a part: each part is sent by itself."""
    while part := "".join(islice(lines, 500)):
        yield part
