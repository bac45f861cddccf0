"""Publication as the rules see it: the table of moves, its key, its row, and what a place holds now. Pure.

A publication is planned, prepared (which may be tried several times) and published (likewise); where a repository asks
for it, it is approved in between. Every move names the phase and the try that makes it: a process that outlived its own
try must not undo what the later try has reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.paths import MOST_LINKS, link_target
from include.cvmfs.revision.revision import Revision
from include.json_values import JsonValue


class State(Enum):
    """The state of a publication."""

    PLANNED = "planned"
    PREPARING = "preparing"
    PREPARED = "prepared"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    SKIPPED = "skipped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Tell whether nothing more happens by itself."""
        return self in ENDED

    @property
    def good(self) -> bool:
        """Tell whether the artifact is in the repository."""
        return self in {State.PUBLISHED, State.UNCHANGED}


class Skip(Enum):
    """Reason why a publication was skipped."""

    DRY_RUN = "dry_run"
    BLOCKED = "blocked"
    """A dependency failed or was skipped."""
    UNDONE = "undone"
    SUPERSEDED = "superseded"
    """Its build lists it with another sum now."""
    REJECTED = "rejected"
    """People answered no, or not in time."""


ENDED = frozenset({State.PUBLISHED, State.UNCHANGED, State.SKIPPED, State.FAILED})


class Phase(Enum):
    """Step of a night that makes a move; each counts its tries on its own."""

    PLAN = "plan"
    PREPARE = "prepare"
    APPROVE = "approve"
    """People are asked; its tries are the times that they were."""
    PUBLISH = "publish"


class AllowedTry(Enum):
    """Try that may make a move: any that is not replaced, or only a later one than the phase's last."""

    ANY = "any"
    LATER = "later"


_S, _P = State, Phase
_ANY, _LATER = AllowedTry.ANY, AllowedTry.LATER

# (from, to): {phase that may make the move: which try}
MOVES: dict[tuple[State, State], dict[Phase, AllowedTry]] = {
    (_S.PLANNED, _S.PREPARING): {_P.PREPARE: _ANY},
    (_S.PLANNED, _S.UNCHANGED): {_P.PLAN: _ANY, _P.PREPARE: _ANY},
    (_S.PLANNED, _S.SKIPPED): {_P.PLAN: _ANY, _P.PREPARE: _ANY, _P.PUBLISH: _ANY},
    (_S.PLANNED, _S.FAILED): {_P.PLAN: _ANY, _P.PREPARE: _ANY, _P.PUBLISH: _ANY},
    (_S.PLANNED, _S.PLANNED): {_P.PLAN: _LATER},
    (_S.PREPARING, _S.PREPARING): {_P.PREPARE: _LATER},
    (_S.PREPARING, _S.PREPARED): {_P.PREPARE: _ANY},
    (_S.PREPARING, _S.UNCHANGED): {_P.PREPARE: _ANY},
    (_S.PREPARING, _S.SKIPPED): {_P.PREPARE: _ANY},
    (_S.PREPARING, _S.FAILED): {_P.PREPARE: _ANY},
    (_S.PREPARING, _S.PLANNED): {_P.PLAN: _LATER},
    (_S.PREPARED, _S.PREPARING): {_P.PREPARE: _LATER},
    (_S.PREPARED, _S.PUBLISHING): {_P.PUBLISH: _ANY},
    (_S.PREPARED, _S.UNCHANGED): {_P.PREPARE: _ANY, _P.PUBLISH: _ANY},
    (_S.PREPARED, _S.SKIPPED): {_P.PREPARE: _ANY, _P.APPROVE: _ANY, _P.PUBLISH: _ANY},
    (_S.PREPARED, _S.FAILED): {_P.PREPARE: _ANY, _P.PUBLISH: _ANY},
    (_S.PREPARED, _S.PLANNED): {_P.PLAN: _LATER},
    (_S.PUBLISHING, _S.PUBLISHING): {_P.PUBLISH: _LATER},
    (_S.PUBLISHING, _S.PUBLISHED): {_P.PUBLISH: _ANY},
    (_S.PUBLISHING, _S.UNCHANGED): {_P.PUBLISH: _ANY},
    (_S.PUBLISHING, _S.SKIPPED): {_P.PUBLISH: _ANY},
    (_S.PUBLISHING, _S.FAILED): {_P.PUBLISH: _ANY},
    (_S.PUBLISHING, _S.PREPARING): {_P.PREPARE: _LATER},
    (_S.PUBLISHING, _S.PLANNED): {_P.PLAN: _LATER},
    # what has ended moves again only for a later try; what is published only when the whole is planned again
    (_S.FAILED, _S.PLANNED): {_P.PLAN: _LATER},
    (_S.FAILED, _S.PREPARING): {_P.PREPARE: _LATER},
    (_S.FAILED, _S.PREPARED): {_P.APPROVE: _LATER},
    (_S.FAILED, _S.PUBLISHING): {_P.PUBLISH: _LATER},
    (_S.FAILED, _S.UNCHANGED): {_P.PREPARE: _LATER, _P.PUBLISH: _LATER},
    (_S.FAILED, _S.SKIPPED): {_P.PREPARE: _LATER, _P.PUBLISH: _LATER},
    (_S.FAILED, _S.FAILED): {_P.PLAN: _LATER, _P.PREPARE: _LATER, _P.PUBLISH: _LATER},
    (_S.SKIPPED, _S.PLANNED): {_P.PLAN: _LATER},
    (_S.SKIPPED, _S.PREPARING): {_P.PREPARE: _LATER},
    (_S.SKIPPED, _S.PREPARED): {_P.APPROVE: _LATER},
    (_S.SKIPPED, _S.SKIPPED): {_P.PLAN: _LATER, _P.PREPARE: _LATER, _P.PUBLISH: _LATER},
    (_S.UNCHANGED, _S.PLANNED): {_P.PLAN: _LATER},
    (_S.UNCHANGED, _S.PREPARING): {_P.PREPARE: _LATER},
    (_S.UNCHANGED, _S.UNCHANGED): {_P.PLAN: _LATER, _P.PREPARE: _LATER, _P.PUBLISH: _LATER},
    (_S.PUBLISHED, _S.PLANNED): {_P.PLAN: _LATER},
}


class MoveVerdict(Enum):
    """Verdict on a move that is asked for."""

    MOVE = "move"
    REPEAT = "repeat"
    STALE = "stale"
    ILLEGAL = "illegal"


@dataclass(frozen=True, slots=True)
class MoveDecision:
    """A verdict with its reason."""

    verdict: MoveVerdict
    reason: str


def decide(
    current: State, to: State, *, phase: Phase, try_number: int, recorded_try: int, last_phase: Phase | None = None
) -> MoveDecision:
    """Tell whether try `try_number` of `phase` may move a publication from `current` to `to`.

    `recorded_try` is the last try of that phase that moved it (0: none yet), `last_phase` the phase that moved it last.
    The same move by the same try again is a REPEAT: its answer was lost, and nothing is to be done.
    """
    if try_number < recorded_try:
        return MoveDecision(MoveVerdict.STALE, f"try {recorded_try} of {phase.value} has replaced try {try_number}")
    if current is to and try_number == recorded_try and last_phase in (None, phase):
        return MoveDecision(MoveVerdict.REPEAT, f"try {try_number} of {phase.value} has already done this")
    who = MOVES.get((current, to), {}).get(phase)
    if who is None:
        return MoveDecision(MoveVerdict.ILLEGAL, f"{phase.value} makes no such move. {_cure(current)}")
    if who is AllowedTry.LATER and try_number == recorded_try:
        why = f"only a later try of {phase.value} than {recorded_try} may. {_cure(current)}"
        return MoveDecision(MoveVerdict.ILLEGAL, why)
    return MoveDecision(MoveVerdict.MOVE, f"try {try_number} of {phase.value}")


def _cure(current: State) -> str:
    if current is State.PUBLISHED:
        return "It is published; to publish again in this run, clear the run from its plan on."
    return "Clear the task, so that a new try begins."


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
