"""The verdict of a night: the one answer of the page, the list of nights, the summary and its mail. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from include.nightlies.records.quality import QualityRecord

SHOWN = 20
"""Artifacts that a reason names; the summary has them all."""


class NightState(Enum):
    """State of a night. Only `WHOLE` is good."""

    WHOLE = "whole"
    OPEN = "open"
    INCOMPLETE = "incomplete"
    BLOCKED = "blocked by quality"
    NO_BUILD = "no build"

    @property
    def kind(self) -> str:
        """Style of the state on the pages."""
        return {NightState.WHOLE: "good", NightState.OPEN: "wait"}.get(self, "bad")


@dataclass(frozen=True, slots=True)
class NightVerdict:
    """State of a night and the reason for it."""

    state: NightState
    reason: str

    @property
    def good(self) -> bool:
        """Whether all that is required is there, and nothing keeps it back."""
        return self.state is NightState.WHOLE


def verdict_of(
    *, builds: Sequence[str], complete: bool, lacking: Sequence[str], open_ones: int, blocked: Sequence[QualityRecord]
) -> NightVerdict:
    """Judge a night.

    Args:
        builds: Ids of the builds that runs have taken, the newest first.
        complete: Whether the index of the newest one is complete.
        lacking: Names of the artifacts that are required and not there.
        open_ones: How many of them no run has ended.
        blocked: Suites of the quality gate that keep a build of the night back.
    """
    names = ", ".join(lacking[:SHOWN])
    more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
    missing = f"{len(lacking)} required and missing: {names}{more}." if lacking else ""
    if blocked:
        gate = " ".join(f"The quality gate keeps build {record.build_id} back: {record}." for record in blocked)
        # of an index that is blocked, nothing is taken: all that is missing has this reason
        return NightVerdict(NightState.BLOCKED, f"{gate} {missing}".strip() if builds else gate)
    if not builds:
        return NightVerdict(NightState.NO_BUILD, "No build of this date is known to the ledger.")
    if lacking:
        return NightVerdict(NightState.OPEN if open_ones else NightState.INCOMPLETE, missing)
    if not complete:
        return NightVerdict(NightState.OPEN, f"The index of build {builds[0]} is not complete.")
    return NightVerdict(NightState.WHOLE, "All that is required is there.")
