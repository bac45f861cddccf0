"""The life of a publication, as a table of moves; pure.

A publication is planned, prepared (which may be tried several times) and published (likewise); where a repository asks
for it, it is approved in between. Every move names the phase and the try that makes it: a process that outlived its own
try must not undo what the later try has reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
