"""A runner as campaigns see it. A new one is a class and a row in `choose.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from include.benchmarks.measure.loads import LoadAccess, LoadStep
from include.benchmarks.measure.results import RunnerResult
from include.benchmarks.measure.targets import RunArea

AreaT = TypeVar("AreaT", bound=RunArea)
GRACE_S = 120
"""How much longer than its step a runner may take: for opening files, and for flushing what was written."""


@dataclass(frozen=True, slots=True)
class RunnerAbilities:
    """What a runner can do; a plan is refused that asks for more."""

    accesses: frozenset[LoadAccess]
    limits_rates: bool
    takes_ramp: bool
    ends_together: bool = True
    """Several loads of a step: the figures are of the time in which all of them ran."""


class Runner(ABC, Generic[AreaT]):
    """Makes the load of a step and reports what it measured."""

    abilities: RunnerAbilities

    @abstractmethod
    def run(self, step: LoadStep, area: AreaT, scratch: Path) -> RunnerResult:
        """Run a step to its end.

        Args:
            step: What to do; its loads are within the runner's abilities.
            area: Where the data of the run are.
            scratch: An empty folder on this machine for files of the runner; it stays with the campaign.

        Raises:
            BenchmarkError: RUNNER_MISSING, RUNNER_FAILED or RESULT_UNREADABLE.
        """


def longest_s(step: LoadStep) -> float:
    """After so many seconds a step has failed."""
    return step.ramp_s + step.seconds + GRACE_S
