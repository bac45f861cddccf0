"""What a suite compares, what it asks of it, and what it found; values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from include.settings.quality import Suite

Cell = str | int | float | None
Row = Mapping[str, Cell]


class Expect(Enum):
    """What a rule asks of a column in every row. A row without the value, or without the other one, is passed over."""

    BETWEEN = "between"
    AT_LEAST = "at least"
    EQUAL = "equal"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class QualityRule:
    """One expectation. `reason`: what is said of a row that breaks it, with the row's cells as `{column}`.

    `least`, `most`: for `BETWEEN`; `other`: the second column of `AT_LEAST` and `EQUAL`.
    """

    expect: Expect
    column: str
    reason: str
    other: str | None = None
    least: float | None = None
    most: float | None = None


def columns_of(rules: Sequence[QualityRule]) -> tuple[str, ...]:
    """The columns that rules need, after `name`."""
    named = [name for rule in rules for name in (rule.column, rule.other) if name is not None]
    return tuple(dict.fromkeys(["name", *named]))


@dataclass(frozen=True, slots=True)
class SuiteInput:
    """A table and the rules for it; `name` is a column of every row. `notes`: what could not be compared, and why.

    Only the columns that rules name, and `name`, leave this process's own code: others may hold text from archives.
    """

    suite: Suite
    rows: tuple[Row, ...]
    rules: tuple[QualityRule, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What a suite found: a reason for each row that breaks a rule, in the order of the rules."""

    suite: Suite
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    rows: int
    rules: int

    @property
    def reason(self) -> str:
        """The first fault; else what could not be compared; else what was."""
        texts = [*self.faults, *self.notes, f"{self.rules} rules hold in {self.rows} rows"]
        return texts[0]
