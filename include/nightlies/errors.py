"""Errors of a night: of its index, dates and records, and those that end a step.

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
├── RecordError
│   ├── PublicationUnknown  the ledger has no such publication
│   ├── IllegalMove         a publication cannot go from its state to that one
│   └── StaleAttempt        the move comes from a try that a later one has replaced
└── StepError             ends a step
    ├── ArtifactMissing       an artifact that its store does not have (yet: may be tried again)
    ├── ArtifactSize          the file has another size than the index lists
    ├── ArtifactDirectory     a directory where a file of known size or sum was announced
    ├── SourceNotAllowed      a source that lies in no store from which it may be read
    ├── DependencyFailed      what an artifact depends on failed so far; its retry may mend both
    ├── DependencyPending     what an artifact depends on is not published yet: waited for, like a busy path
    ├── FailedBefore          an earlier step of the run gave the artifact up
    ├── PreparedTooLongAgo    what was prepared may expire before an answer comes
    ├── BatchFailed           several artifacts of one batch failed; retryable if one of them is
    ├── ReserveFailed         destinations that cannot be reserved; the others were
    ├── NotWell               something is wrong with a repository, or is going to be
    ├── NotVerified           what was published does not read back through the public URL
    ├── QualityBlocked        what a suite of the quality gate found keeps the build back
    └── GateClosed            something that the run had to publish is missing, with its reason
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import Enum

from include.errors import ErrorRow, NightshiftError, is_retryable


def listed(lines: Sequence[str], shown: int = 20, hint: str = "") -> str:
    """Return a line of a message for each, as many as are shown, and how many more there are."""
    more = f"\n… and {len(lines) - shown} more{hint}" if len(lines) > shown else ""
    return "".join(f"\n- {line}" for line in lines[:shown]) + more


class NightlyError(NightshiftError):
    """Base of all; each message names the thing and has a hint."""

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


SHOWN = 20
"""Lines of a message; the ledger has them all."""
DEPENDENCY_WAIT_S = 6 * 3600.0
"""Time that an artifact waits for one that it depends on: as long as preparing one may take."""


class StepError(NightlyError):
    """Base of what ends a step."""

    code = "step-error"


class ArtifactMissing(StepError):
    code = "artifact-missing"
    retryable = True

    def __init__(self, artifact: str, where: str, *, listed: bool = True) -> None:
        self.artifact = artifact
        cure = "take it out of the build's index" if listed else "correct the source"
        super().__init__(f"artifact {artifact}: there is no {where}. Upload it again, or {cure}.")


class ArtifactSize(StepError):
    code = "artifact-size-mismatch"

    def __init__(self, artifact: str, where: str, found: int, expected: int) -> None:
        self.artifact = artifact
        super().__init__(
            f"artifact {artifact}: {where} has {found} bytes, in the index {expected}; truncated or replaced. "
            "Upload it again, or correct the index."
        )


class ArtifactDirectory(StepError):
    code = "artifact-is-directory"

    def __init__(self, artifact: str, where: str) -> None:
        self.artifact = artifact
        super().__init__(
            f"artifact {artifact}: {where} is a directory; a file was announced, with its size or sum. "
            "Put the archive there, or publish the directory by hand without a sum."
        )


class SourceNotAllowed(StepError):
    """`allowed` are URLs of stores; `only` names the one store from which the source may be read."""

    code = "source-not-allowed"

    def __init__(self, source: str, allowed: Sequence[str], only: str | None = None) -> None:
        self.source = source
        if only is not None:
            super().__init__(
                f"source {source} lies outside store {only} ({', '.join(allowed)}). "
                "Put the file there: a slot's artifacts are read from the store of its index."
            )
            return
        super().__init__(
            f"source {source} lies in no store of the configuration; it has: {', '.join(allowed) or 'none'}. "
            "Put the file there, or add its store (a folder of the worker as file:///folder) to `stores`."
        )


class FailedBefore(StepError):
    code = "failed-in-earlier-step"

    def __init__(self, artifact: str, reason: str) -> None:
        self.artifact = artifact
        super().__init__(f"artifact {artifact}: {reason} When that is cured, clear the run from its plan on.")


class PreparedTooLongAgo(StepError):
    code = "approval-too-late"

    def __init__(self, run: str, expires: datetime) -> None:
        super().__init__(
            f"run {run}: what it prepared was to be approved by {expires:%Y-%m-%d %H:%M} UTC, before it is too old "
            "to be published. Clear the run from its plan on: then it is prepared again, and approval is asked for."
        )


class DependencyFailed(StepError):
    code = "dependency-failed"
    retryable = True

    def __init__(self, artifact: str, reason: str) -> None:
        self.artifact = artifact
        super().__init__(f"artifact {artifact}: {reason}")


class DependencyPending(StepError):
    """Waited for like a busy path, for as long as preparing what it depends on may take."""

    code = "dependency-pending"
    retryable = True
    hint = "wait until it is published"
    listed = False
    time_remaining_s = DEPENDENCY_WAIT_S

    def __init__(self, artifact: str, reason: str, *, repository: str, path: str) -> None:
        self.artifact = artifact
        self.reason = reason
        self.repository = repository
        self.path = path
        super().__init__(f"artifact {artifact}: {reason}; {self.hint}")

    def why_given_up(self, waited_s: float) -> str:
        """Return what is recorded and shown once it was waited for in vain."""
        return f"{self}; waited for {waited_s:.0f} s. See why that is so, then clear the run from its plan on."


class BatchFailed(StepError):
    """`failures` maps an artifact's name to its error."""

    code = "batch-failed"

    def __init__(self, failures: Mapping[str, Exception]) -> None:
        self.failures = dict(failures)
        self.retryable = any(is_retryable(error, otherwise=True) for error in failures.values())
        lines = [f"{name}: {error}" for name, error in list(failures.items())[:SHOWN]]
        super().__init__(f"{len(failures)} artifacts failed:\n" + "\n".join(lines))


class ReserveFailed(StepError):
    """`destinations` maps a destination to the reason why it could not be reserved."""

    code = "reserve-failed"

    def __init__(self, destinations: Mapping[str, str]) -> None:
        self.destinations = dict(destinations)
        lines = [reason for _, reason in list(self.destinations.items())[:SHOWN]]
        super().__init__(f"{len(destinations)} destinations cannot be reserved:\n" + "\n".join(lines))


class NotVerified(StepError):
    """`problems` are lines that name the destination."""

    code = "not-verified"
    retryable = True

    def __init__(self, run: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        shown = "\n".join(self.problems[:SHOWN])
        super().__init__(
            f"run {run}: {len(self.problems)} problems when reading back through the public URL. "
            f"Check the store and the caches in front of it:\n{shown}"
        )


class NotWell(StepError):
    """`problems` are lines, each with its hint where there is one; `count` where they are not all of them."""

    code = "repository-problems"

    def __init__(self, repository: str, problems: Sequence[str], count: int | None = None) -> None:
        self.repository = repository
        self.problems = tuple(problems)
        count = len(problems) if count is None else count
        shown = "\n".join(f"- {line}" for line in self.problems[:SHOWN])
        more = f"\n… and {count - SHOWN} more: nightshift repo check {repository}" if count > SHOWN else ""
        super().__init__(f"repository {repository}: {count} {'problem' if count == 1 else 'problems'}:\n{shown}{more}")


class GateClosed(StepError):
    """`missing` are lines that name what is missing, and why."""

    code = "artifacts-missing"

    def __init__(self, run: str, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        lines = listed(self.missing, SHOWN, "; see the ledger")
        super().__init__(f"run {run}: {len(self.missing)} missing:{lines}")


class QualityBlocked(StepError):
    """`faults` are lines that name the artifact, and what is wrong with it."""

    code = "quality-blocked"
    hint = (
        "Correct the build; or run the DAG of the slot again for the date with *Accept quality* and a reason; or set "
        "the suite to warn in `quality` of the slot"
    )

    def __init__(self, build: str, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        lines = listed(self.faults, SHOWN, "; see the Data Docs")
        super().__init__(f"build {build} is kept back by the quality gate:{lines}\n{self.hint}.")


SOURCE_AMBIGUOUS = ErrorRow(StepError, "source-ambiguous")
"""A source that several stores may hold: they have the same URL at different endpoints."""
QUALITY_UNCHECKED = ErrorRow(StepError, "quality-unchecked")
"""A suite could not be applied."""
