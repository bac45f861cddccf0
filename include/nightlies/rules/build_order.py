"""Which of two builds of a slot is the later one: by build date, then by build id. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import total_ordering

_DIGITS = frozenset("0123456789")
_PARTS = re.compile(r"[0-9]+|[^0-9]+")


@total_ordering
@dataclass(frozen=True, slots=True)
class BuildKey:
    """Orders builds; numbers within an id count as numbers, so that b9 is before b10."""

    date: date
    build_id: str

    def __lt__(self, other: BuildKey) -> bool:
        return self._sorted() < other._sorted()

    def __str__(self) -> str:
        return f"build {self.build_id} of {self.date}"

    def _sorted(self) -> tuple[object, ...]:
        parts = _PARTS.findall(self.build_id)
        # the id itself comes last: b1 and b01 are two builds
        return (
            self.date,
            tuple((0, int(part), "") if part[0] in _DIGITS else (1, 0, part) for part in parts),
            self.build_id,
        )
