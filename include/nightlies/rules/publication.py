"""Publication as the rules see it: its key, its row, the figures of a move, and the current content of a place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.paths import MOST_LINKS, link_target
from include.cvmfs.revision.revision import Revision
from include.json_values import JsonValue
from include.nightlies.rules.states import Phase, Skip, State


@dataclass(frozen=True, slots=True)
class CurrentTree:
    """The tree at a destination. `path`: where it really is, another one if a link leads there."""

    path: str
    reference: NestedRef

    @property
    def hash(self) -> str:
        return str(self.reference.hash)


def standing(tree: Revision, destination: str) -> CurrentTree | None:
    """The tree at a destination, links followed; None if there is none."""
    path = destination
    for _ in range(MOST_LINKS):
        reference = tree.nested_at(path)
        if reference is not None:
            return CurrentTree(path, reference)
        entry = tree.lookup(path)
        if entry is None or not entry.is_symlink:
            return None
        path = link_target(path, entry.symlink)
    return None


@dataclass(frozen=True, slots=True)
class PublicationKey:
    """Names one publication: a run publishes each destination of a repository once.

    `run_id` must be unique among all DAGs that share the ledger, as `<dag id>/<run id>`.
    """

    repository: str
    destination: str
    run_id: str

    def __str__(self) -> str:
        return f"{self.repository}{self.destination} of run {self.run_id}"


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait of a prepared publication, as the reason in the ledger has it. `what`: who holds it up, and what with."""

    since: datetime
    what: str

    def __str__(self) -> str:
        return f"{_WAITS}{self.since.astimezone(UTC):{_MOMENT}} UTC: {self.what}"

    @classmethod
    def of_reason(cls, reason: str) -> Wait | None:
        """Return the wait that a reason is about, or None."""
        moment, separator, what = reason.removeprefix(_WAITS).partition(" UTC: ")
        if not reason.startswith(_WAITS) or not separator:
            return None
        with suppress(ValueError):
            return cls(datetime.strptime(moment, _MOMENT).replace(tzinfo=UTC), what)
        return None

    def ended(self, now: datetime) -> str:
        """Say how long it took and what it was for."""
        return f"waited {max(0.0, (now - self.since).total_seconds()):.0f} s: {self.what}"


_WAITS, _MOMENT = "waits since ", "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a move; None leaves what is recorded, `seconds` by phase are added to it."""

    artifact_sha256: str | None = None
    changeset: str | None = None
    revision_before: int | None = None
    revision_after: int | None = None
    root_hash: str | None = None
    nested_hash: str | None = None
    files: int | None = None
    bytes: int | None = None
    objects_new: int | None = None
    objects_reused: int | None = None
    bytes_uploaded: int | None = None
    lease_held_s: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """Record of a planned publication. `artifact`: its row in the ledger; `sha256`: the sum that was announced."""

    artifact: int | None = None
    sha256: str | None = None
    reason: str = "planned"


@dataclass(frozen=True, slots=True)
class Move:
    """Move of a publication to the state `to`, and why.

    `error`: what ended it; `skip`: why it is skipped; `blocked_by`: the artifact that keeps it out.
    """

    to: State
    phase: Phase
    reason: str
    figures: Figures | None = None
    error: Exception | None = None
    skip: Skip | None = None
    blocked_by: str | None = None

    @classmethod
    def failed(cls, phase: Phase, error: Exception, figures: Figures | None = None) -> Move:
        """To `failed`, with the error's message as the reason."""
        return cls(State.FAILED, phase, str(error), figures, error)


@dataclass(frozen=True, slots=True)
class Publication(JsonValue):
    """Row of the ledger: the state of a destination in a run.

    `code`: of the error that ended it. `blocked_by`: the artifact
    that it depends on and that was not published. `holder`: the try that moved it last, as leases name it.
    """

    id: int
    run_id: str
    repository: str
    destination: str
    artifact: int | None
    artifact_sha256: str | None
    changeset: str | None
    state: State
    reason: str
    phase: Phase
    try_number: int
    plan_try: int
    prepare_try: int
    publish_try: int
    revision_before: int | None
    revision_after: int | None
    root_hash: str | None
    nested_hash: str | None
    files: int | None
    bytes: int | None
    objects_new: int | None
    objects_reused: int | None
    bytes_uploaded: int | None
    seconds: Mapping[str, float]
    lease_held_s: float | None
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    verified_at: datetime | None
    slot: str | None = None
    build_id: str | None = None
    project: str | None = None
    platform: str | None = None
    approve_try: int = 0
    code: str | None = None
    skip_reason: Skip | None = None
    blocked_by: str | None = None
    holder: str | None = None

    @property
    def key(self) -> PublicationKey:
        return PublicationKey(self.repository, self.destination, self.run_id)
