"""Callers and their rights: users see and change what is their own, operators everything, viewers change nothing."""

from __future__ import annotations

from dataclasses import dataclass

EDITED_DAG = "stage_out_submit"
"""The DAG whose editors may change transfers."""


@dataclass(frozen=True, slots=True)
class StageoutUser:
    """A user of Airflow by name.

    Attributes:
        name: The user's name in Airflow.
        operator: Whether the user may edit pools (docs/decisions/0031).
        editor: Whether the user may edit the DAG EDITED_DAG.
    """

    name: str
    operator: bool = False
    editor: bool = False

    @property
    def may_change(self) -> bool:
        """Tell if the user may change anything: others only look."""
        return self.operator or self.editor

    def may_see(self, owner: str) -> bool:
        """Whether what belongs to a user of that name is shown."""
        return self.operator or owner == self.name
