"""Errors that end a step of a night, besides the errors of the subjects that it calls.

StepError
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

from collections.abc import Mapping, Sequence
from datetime import datetime

from include.errors import ErrorRow, is_retryable
from include.nightlies.errors import NightlyError, listed

SHOWN = 20
"""Lines of a message; the ledger has them all."""
DEPENDENCY_WAIT_S = 6 * 3600.0
"""Time that an artifact waits for one that it depends on: as long as preparing one may take."""


class StepError(NightlyError):
    """Base of everything in this file."""

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
