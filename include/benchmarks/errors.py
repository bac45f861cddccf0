"""What can be wrong with a storage benchmark: its target, its plan, its runner, or what the runner reports.

BenchmarkError
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from include.errors import ErrorRow, NightshiftError


class BenchmarkError(NightshiftError):
    """`subject` names the target, preset, step, runner or campaign that it is about."""

    code = "benchmark-error"

    def __init__(self, subject: str, what: str) -> None:
        self.subject = subject
        super().__init__(f"{subject}: {what}." + (f" Hint: {self.hint}." if self.hint else ""))


@contextmanager
def readable(row: ErrorRow[..., BenchmarkError], subject: str, document: str) -> Iterator[None]:
    """Raise the row's error about the subject where the document is not as expected."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise row(subject, f"{document} cannot be read ({type(error).__name__})") from None


TARGET_REFUSED = ErrorRow(
    BenchmarkError,
    "benchmark-target-refused",
    "mark the target in `benchmarks:` of the configuration if a benchmark may do this to it",
)
"""The target is not marked for what the run would do."""
TARGET_UNUSABLE = ErrorRow(
    BenchmarkError, "benchmark-target-unusable", "check that it is mounted, writable and not full, then run it again"
)
"""The target does not exist, vanished, cannot be written to, or is not of a kind that may be measured."""
AREA_FOREIGN = ErrorRow(
    BenchmarkError, "benchmark-area-foreign", "check what is there; a run changes only what it has created itself"
)
"""What a run would write to or remove was not created by it."""
PRESET_UNKNOWN = ErrorRow(
    BenchmarkError, "benchmark-preset-unknown", "`nightshift storage-benchmark presets` lists them"
)
"""No preset has the name."""
PLAN_REFUSED = ErrorRow(
    BenchmarkError, "benchmark-plan-refused", "change what is asked for, or the target's limits and marks"
)
"""What is asked for is not possible on the target, or over its limits."""
TARGET_BUSY = ErrorRow(BenchmarkError, "benchmark-target-busy", "wait until that campaign ends", retryable=True)
"""Another campaign measures the target."""
LIMIT_REACHED = ErrorRow(BenchmarkError, "benchmark-limit-reached", "free space on the target, or raise its limits")
"""The target became fuller than it may, while a campaign ran."""
CAMPAIGN_ABORTED = ErrorRow(
    BenchmarkError, "benchmark-aborted", "let the cluster recover; lower the scale, or choose an hour with less load"
)
"""The cluster or its production suffered while a step ran; the step was ended and has no result."""
OUTAGE_FAILED = ErrorRow(
    BenchmarkError,
    "benchmark-outage-failed",
    "look at `ceph osd tree`; the timer on the server starts its OSDs and unsets their noout",
)
"""OSDs could not be stopped for a campaign, or not be started again."""
CAMPAIGN_UNKNOWN = ErrorRow(
    BenchmarkError, "benchmark-campaign-unknown", "`nightshift storage-benchmark list` lists them"
)
"""There is no campaign of this id, or its folder is damaged."""
CAMPAIGN_CLOSED = ErrorRow(BenchmarkError, "benchmark-campaign-closed", "start another campaign")
"""The data of the campaign were removed: it cannot go on."""
BASELINE_REFUSED = ErrorRow(BenchmarkError, "benchmark-baseline-refused", "accept a campaign that has all its parts")
"""The campaign cannot be what others are compared with."""
CAMPAIGN_FAILED = ErrorRow(
    BenchmarkError,
    "benchmark-campaign-failed",
    "read its report; if the target is meant to be as it is now, accept the campaign as the baseline",
)
"""The target regressed, misses a requirement, or parts of the campaign are missing."""
FIGURES_UNCHECKED = ErrorRow(
    BenchmarkError,
    "benchmark-figures-unchecked",
    "rely on neither of them; read the campaign's report and its Data Docs, and report the two as a bug",
)
"""The suite of Great Expectations and the verdict disagree."""
HOST_UNREACHABLE = ErrorRow(
    BenchmarkError, "benchmark-host-unreachable", "start sshd there or correct the login, then run it again"
)
"""A host did not do what was asked of it over SSH."""
VIEW_INCOMPLETE = ErrorRow(
    BenchmarkError,
    "benchmark-view-incomplete",
    "the user of the target's `servers:` needs the rights that docs/storage-benchmarks.md lists",
)
"""A server or its cluster did not say how it is; no step fails by that."""
RUNNER_MISSING = ErrorRow(BenchmarkError, "benchmark-runner-missing")
"""The program that makes the load is not installed; the message names the package."""
RUNNER_FAILED = ErrorRow(
    BenchmarkError, "benchmark-runner-failed", "the campaign's folder has its command line and output"
)
"""The program failed or took too long."""
RESULT_UNREADABLE = ErrorRow(
    BenchmarkError, "benchmark-result-unreadable", "no figure is taken from it; run the step again"
)
"""The output of the program is not what it should be."""
ROUND_TRIP_REFUSED = ErrorRow(
    BenchmarkError, "benchmark-round-trip-refused", "run the step again while less else uses the machine and the link"
)
"""The round trip before a step is another than the step is about: it would measure something else."""
