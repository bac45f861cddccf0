"""What became of the files of a workflow: states, reasons and times, and whether each is where it has to be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.stageout.states import TransferState
from include.stageout.status import TransferStatus
from lab.stageout.files import LabFile, LabPlaces

_COMPLETE = frozenset({TransferState.CLEANED, TransferState.KEPT})


@dataclass(frozen=True, slots=True)
class StageoutAccount:
    """The files of a workflow as they ended.

    Attributes:
        workflow: Its name.
        files: How many there are.
        bytes: Of those that were copied.
        states: Files by state.
        failures: Failed files by class, each with the reason of one of them.
        links: Files by link and state.
        copied_s: Seconds from the request to the end of the copy: median, and 95 % of the files.
        ended_s: The same to the last state.
        problems: Files that do not match their state.
        wall_s: Seconds from the request until all had ended.
    """

    workflow: str
    files: int
    bytes: int
    states: Mapping[str, int]
    failures: Mapping[str, tuple[int, str]]
    links: Mapping[tuple[str, str], int]
    copied_s: tuple[float, float]
    ended_s: tuple[float, float]
    problems: tuple[str, ...]
    wall_s: float

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        document: dict[str, Any] = {
            "workflow": self.workflow,
            "files": self.files,
            "bytes": self.bytes,
            "states": dict(self.states),
            "failures": [
                {"class": kind, "reason": reason, "files": count} for kind, (count, reason) in self.failures.items()
            ],
            "links": [{"link": link, "state": state, "files": count} for (link, state), count in self.links.items()],
            "copied_s": self.copied_s,
            "ended_s": self.ended_s,
            "problems": self.problems,
            "wall_s": round(self.wall_s, 1),
        }
        path.write_text(json.dumps(document, indent=1) + "\n")


def account_of(
    workflow: str, planned: Sequence[LabFile], found: Sequence[TransferStatus], places: LabPlaces, *, wall_s: float
) -> StageoutAccount:
    """Compare what was planned with the ledger and with the sites."""
    by_name = {(one.destination, one.destination_name): one for one in found}
    problems = [
        f"{file.file.destination}:{file.file.destination_name}: {problem}"
        for file in planned
        for problem in _problems(file, by_name.get((file.file.destination, file.file.destination_name)), places)
    ]
    complete = [one for one in found if one.state in _COMPLETE]
    failed = [one for one in found if one.state is TransferState.FAILED]
    reasons = {one.failure or "": one.reason for one in failed}
    copied = [(one.copied_at - one.created_at).total_seconds() for one in found if one.copied_at is not None]
    ended = [(one.moved_at - one.created_at).total_seconds() for one in found]
    return StageoutAccount(
        workflow,
        len(found),
        sum(one.size or 0 for one in complete),
        Counter(one.state.value for one in found),
        {kind: (count, reasons[kind]) for kind, count in Counter(one.failure or "" for one in failed).most_common()},
        dict(sorted(Counter((f"{one.source} to {one.destination}", one.state.value) for one in found).items())),
        (percentile(copied, 50), percentile(copied, 95)),
        (percentile(ended, 50), percentile(ended, 95)),
        tuple(problems),
        wall_s,
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of all do not exceed; 0 of none."""
    ordered = sorted(values)
    return round(ordered[max(0, -(-len(ordered) * percent // 100) - 1)], 1) if ordered else 0.0


def _problems(file: LabFile, found: TransferStatus | None, places: LabPlaces) -> list[str]:
    if found is None:
        return ["the ledger does not have it"]
    source = places.read(file.file.source, file.file.source_name)
    copy = places.read(file.file.destination, file.file.destination_name)
    if file.fault is not None:
        expected = found.state is TransferState.FAILED and found.failure == file.fault.value.value
        return ([] if expected else [f"it is {found.state.value} ({found.reason}), not {file.fault.value.value}"]) + (
            ["its destination was replaced"] if copy not in (None, b"of another") else []
        )
    wrong = [] if found.state in _COMPLETE else [f"it is {found.state.value} ({found.reason})"]
    wrong += [] if copy == file.content else ["its destination is missing or differs"]
    wrong += ["its source is still there"] if found.state is TransferState.CLEANED and source is not None else []
    return wrong
