"""Approvals: what one binds, how long its answer is waited for, and what people are shown; pure.

The reasons: docs/decisions/0021-bind-approvals-by-digest.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from include.cvmfs.coordination.generation import CHANGESET_LIFE

MARGIN = timedelta(hours=1)
"""Remaining life of a changeset at least, when the last moment for an answer has passed: it is to be hung."""
SHORTEST = timedelta(minutes=1)
"""A time for an answer that is shorter than this counts as no time."""
SHOWN = 500
"""Destinations that a question lists; the task's log has all."""


class QuestionKind(Enum):
    """Subject of a question."""

    PUBLICATION = "publication"
    UNDO = "undo"
    ROLLBACK = "rollback"
    RETENTION = "retention"


class Answer(Enum):
    """State of a question. REPLACED: a newer question took its place before an answer."""

    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Bound:
    """Subject that an answer is for. `digest`: of what `destination` is to have; `figures`: what people read."""

    name: str
    destination: str
    digest: str
    figures: str = ""

    @property
    def line(self) -> str:
        """For the list of a question."""
        return "  ".join(part for part in (self.name, self.destination, self.figures, self.digest[:16]) if part)


@dataclass(frozen=True, slots=True)
class WantedApproval:
    """An approval that is to be asked for.

    `lines`: the text before the table of a publication's `bound`, or all that undoing or going back does.
    `minutes`: how long an answer is waited for; `expires`: the last moment at which one is of any use.
    """

    kind: QuestionKind
    repository: str
    subject: str
    lines: tuple[str, ...]
    bound: tuple[Bound, ...]
    minutes: int
    expires: datetime

    @property
    def digest(self) -> str:
        """SHA-256 of all that the answer binds."""
        return question_digest(self.bound)

    @property
    def body(self) -> str:
        """The whole of it, in Markdown. Names come from builders: in code spans they can mean nothing."""
        listed = self.lines[:SHOWN]
        rows = self.bound[:SHOWN] if self.kind is QuestionKind.PUBLICATION else ()
        more = len(self.lines) - len(listed) + (len(self.bound) - len(rows) if rows else 0)
        parts = ["\n".join(f"* {_code(line)}" for line in listed), _table(rows)]
        if more:
            parts.append(f"… and {more} more; the log of the task before has them")
        parts.append(
            f"Your answer applies to this list only (SHA-256 `{self.digest}`). Without an answer within "
            f"{self.minutes} minutes, and by {self.expires:%Y-%m-%d %H:%M} UTC at the latest, none of it is done."
        )
        return "\n\n".join(part for part in parts if part)


def tree_digest(fqrn: str, destination: str, *, source_sha256: str, root: str) -> str:
    """SHA-256 of what a destination is to have: the tree of this root catalog, made of this source."""
    return _digest("tree", fqrn, destination, source_sha256, root)


def link_digest(fqrn: str, destination: str, *, target: str, root: str) -> str:
    """SHA-256 of a link that is to be at a destination, and of the tree that it leads to."""
    return _digest("link", fqrn, destination, target, root)


def removal_digest(kind: QuestionKind, fqrn: str, name: str, lines: Iterable[Sequence[str]]) -> str:
    """SHA-256 of what undoing a build or retention does: each line has a path, its content, and what comes instead."""
    return _digest(kind.value, fqrn, name, *(json.dumps(list(line)) for line in sorted(map(tuple, lines))))


def rollback_digest(fqrn: str, before: str, after: str, tags: Iterable[str]) -> str:
    """SHA-256 of going back from one root to another, and of the tags that go with it."""
    return _digest("rollback", fqrn, before, after, *sorted(tags))


def question_digest(bound: Iterable[Bound]) -> str:
    """SHA-256 of all that an answer binds, in whatever order it was listed."""
    return _digest("question", *sorted(subject.digest for subject in bound))


def expiry(begun: datetime) -> datetime:
    """The last moment for an answer about changesets of which the first was begun then."""
    return begun + CHANGESET_LIFE - MARGIN


def deadline(now: datetime, minutes: int, expires: datetime) -> datetime:
    """When a question asked now stops waiting for an answer."""
    return min(now + timedelta(minutes=minutes), expires)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def _table(rows: Sequence[Bound]) -> str:
    if not rows:
        return ""
    lines = [f"| {' | '.join(map(_code, (row.name, row.destination, row.figures, row.digest[:16])))} |" for row in rows]
    return "\n".join(["| Artifact | Destination | Content | SHA-256 |", "|---|---|---|---|", *lines])


def _code(text: str) -> str:
    """A code span of a list or table. Backticks and bars are replaced: they would end the span or the cell."""
    shown = (
        re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", "?", text)
        .replace("`", "'")
        .replace("|", "\u00a6")
    )
    return f"`{shown}`" if shown.strip() else ""
