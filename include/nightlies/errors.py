"""Errors of a night, its index, its dates and its records.

NightlyError
├── BadIndex              a build's index as a whole cannot be used
├── BadIndexKey           the key that indices are checked with cannot be used
├── BuildDateUnknown      it is not known which date's build is meant
├── BuildMissing          there is no build for that slot and date (yet: may be tried again)
├── BuildMoved            a build id turned up again under another date
├── BuildOvertaken        another run recorded a build meanwhile (may be tried again)
├── BuildUnknown          the ledger has no such build of the slot
├── BaseUnusable          a partial build names a build that nothing can be taken from
├── BuildIncomplete       a build lacks something that is required, so that no link may lead to it
├── UndoRefused           a build cannot be undone as asked
├── NotApproved           the repository asks for approval, and this was not approved
├── QuestionSettled       a question that was answered, or replaced by a newer one, meanwhile
├── UnknownChoice         a project or platform was asked for that the build does not have
├── DependencyCycle       projects of a build depend on each other in a circle
└── RecordError
    ├── PublicationUnknown  the ledger has no such publication
    ├── IllegalMove         a publication cannot go from its state to that one
    └── StaleAttempt        the move comes from a try that a later one has replaced
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from enum import Enum

from include.errors import ErrorRow, NightshiftError


def listed(lines: Sequence[str], shown: int = 20, hint: str = "") -> str:
    """Return a line of a message for each, as many as are shown, and how many more there are."""
    more = f"\n… and {len(lines) - shown} more{hint}" if len(lines) > shown else ""
    return "".join(f"\n- {line}" for line in lines[:shown]) + more


class NightlyError(NightshiftError):
    """Base of everything in this file; each message names the thing and has a hint."""

    code = "night-error"


PREVIEW_OUTDATED = ErrorRow(NightlyError, "rollback-preview-outdated")
"""The repository, or what is gone back to, is another one than the preview showed."""
ROLLBACK_REFUSED = ErrorRow(NightlyError, "rollback-refused")
"""A rollback that was not asked for as one can be made, or whose content is not whole."""
COLLECTION_RUN_REFUSED = ErrorRow(NightlyError, "collection-run-refused")
"""A run that is to collect garbage and was not asked for as one can be."""
PLAN_REFUSED = ErrorRow(NightlyError, "plan-refused")
"""An artifact of a build that cannot be planned; the others are."""
APPROVAL_REQUIRED = ErrorRow(NightlyError, "approval-required", "use the DAG `publication`, which asks for it")
"""A change by a task that cannot ask for the approval that the repository wants."""
BUILD_DATE_REFUSED = ErrorRow(NightlyError, "build-date-refused")
"""A build date that the run may not have."""


INDEX_NOT_WRITTEN = ErrorRow(NightlyError, "index-not-written")
"""A folder of archives that no index can be written of, or none that nights would take."""


class BadIndex(NightlyError):
    """`file` is the index's key or URL; `artifact` its position and name where one is concerned."""

    code = "index-invalid"

    def __init__(self, file: str, what: str, cure: str) -> None:
        self.file = file
        self.what = what
        super().__init__(f"index {file}: {what}. {cure}")


class BadIndexKey(NightlyError):
    code = "index-key-unusable"

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        super().__init__(
            f"the key {path} that indices are checked with {what}. "
            "Put the builder's public key there, in PEM: openssl pkey -in builder.key -pubout."
        )


class BuildDateUnknown(NightlyError):
    code = "build-date-unknown"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Give the build date as parameter (YYYY-MM-DD), or trigger with a partition key or a logical date."
        )


class BuildMissing(NightlyError):
    code = "build-missing"
    retryable = True

    def __init__(self, slot: str, wanted: date | str, where: str) -> None:
        self.slot = slot
        self.wanted = wanted
        super().__init__(
            f"slot {slot} has no build for {wanted}: nothing at {where}. "
            "Check the date and the slot's `index` and `date_offset`, or wait until the build system has written it."
        )


class BuildMoved(NightlyError):
    code = "build-date-changed"

    def __init__(self, slot: str, build_id: str, recorded: date, given: date) -> None:
        self.slot = slot
        self.build_id = build_id
        self.recorded = recorded
        self.given = given
        super().__init__(
            f"build {build_id} of slot {slot} is recorded for {recorded} and now claims {given}. "
            "Give every build a unique id; correct the index."
        )


class BuildOvertaken(NightlyError):
    code = "build-recorded-elsewhere"
    retryable = True

    def __init__(self, slot: str, build_id: str) -> None:
        super().__init__(
            f"build {build_id} of slot {slot} was recorded by another run since its index was read. Read it again."
        )


class BuildUnknown(NightlyError):
    code = "build-unknown"

    def __init__(self, slot: str, build_id: str) -> None:
        self.slot = slot
        self.build_id = build_id
        super().__init__(
            f"slot {slot} has no build {build_id} in the ledger. Check the build's id; "
            "what no night has installed is changed with `nightshift repo`."
        )


class BaseUnusable(NightlyError):
    """`missing` are lines that name what the base lacks, and why."""

    code = "base-build-unusable"

    def __init__(self, build: str, base: str, what: str, missing: Sequence[str] = ()) -> None:
        self.missing = tuple(missing)
        super().__init__(
            f"the partial build {build} takes what it does not list from {base}, which {what}. "
            f"Install that build first, or let the index name another `base`; nothing was changed."
            f"{listed(self.missing)}"
        )


class BuildIncomplete(NightlyError):
    """`missing` are lines that name what is missing, and why."""

    code = "build-incomplete"

    def __init__(self, build: str, missing: Sequence[str], shown: int = 5) -> None:
        self.missing = tuple(missing)
        more = f" (and {len(self.missing) - shown} more)" if len(self.missing) > shown else ""
        super().__init__(f"build {build} is not complete: {'; '.join(self.missing[:shown])}{more}")


class UndoRefused(NightlyError):
    """`reasons` are lines, each with its hint."""

    code = "undo-refused"

    def __init__(self, build: str, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"build {build} is not undone; nothing was changed:{listed(self.reasons)}")


class NotApproved(NightlyError):
    """`answer` is the last one about exactly this; None where there was no question."""

    code = "not-approved"

    def __init__(self, name: str, why: str, answer: Enum | None = None) -> None:
        self.name = name
        self.answer = answer
        super().__init__(
            f"{name}: it is not approved: {why}. Nothing of it was changed. Clear the task that asks (`ask`, "
            "`look` of undo_build, `preview` of rollback, `plan` of nightly_gc) and what follows it: the next question "
            "is about what there is now."
        )


class QuestionSettled(NightlyError):
    code = "question-answered"

    def __init__(self, number: int, answer: str) -> None:
        self.number = number
        super().__init__(f"no answer to question {number} counts any more: {answer}. Answer the run's newest question.")


class UnknownChoice(NightlyError):
    """`names` are not among the `known` ones; both are sorted."""

    code = "choice-unknown"

    def __init__(self, kind: str, names: Iterable[str], known: Iterable[str]) -> None:
        self.kind = kind
        self.names = tuple(sorted(names))
        self.known = tuple(sorted(known))
        listed = ", ".join(self.known) or "none"
        super().__init__(f"unknown {kind} {', '.join(self.names)}. Choose from: {listed}.")


class DependencyCycle(NightlyError):
    code = "dependency-cycle"

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        super().__init__(
            f"projects depend on each other in a circle: {' -> '.join(self.cycle)}. Remove one of these dependencies."
        )


class RecordError(NightlyError):
    """`publication` names repository, destination and run."""

    code = "publication-record"

    def __init__(self, publication: str, message: str) -> None:
        self.publication = publication
        super().__init__(f"publication {publication}: {message}")


class PublicationUnknown(RecordError):
    code = "publication-unknown"

    def __init__(self, publication: str) -> None:
        super().__init__(publication, "is not in the ledger. Plan it first; check run, repository and destination.")


class IllegalMove(RecordError):
    code = "illegal-move"

    def __init__(self, publication: str, current: str, to: str, why: str) -> None:
        self.current = current
        self.to = to
        super().__init__(publication, f"cannot go from {current} to {to}: {why}")


class StaleAttempt(RecordError):
    code = "stale-attempt"

    def __init__(self, publication: str, phase: str, try_number: int, recorded: int) -> None:
        self.try_number = try_number
        self.recorded = recorded
        super().__init__(
            publication,
            f"try {try_number} of {phase} has been replaced by try {recorded} and may record nothing more. "
            "End this process; the later try goes on.",
        )
