"""Who asks: users see and change what is their own, operators everything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageoutUser:
    """A user of Airflow by name. `operator`: one that may edit pools (docs/decisions/0031)."""

    name: str
    operator: bool = False

    def may_see(self, owner: str) -> bool:
        """Whether what belongs to a user of that name is shown."""
        return self.operator or owner == self.name
