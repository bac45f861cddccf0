"""The buttons of *Transfers* and *Transfer*: what each does by the REST API of stage-out, with the user's own login.

The API compares owners: what a user may not change is left as it is. Users who may only look have no buttons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from include.pages.registry import PREFIX, STAGEOUT_API
from include.stageout.states import TRANSFER_MOVES, StageoutComponent, TransferState
from include.stageout.status import MAX_PAGE

API = STAGEOUT_API.removeprefix(f"{PREFIX}/")
"""Relative to a page, below any base path of Airflow."""
CHOOSING = ("user", "workflow", "job", "source", "destination", "site", "name", "failure", "state")
"""Parameters of a list that choose transfers; the API's have the same names."""


@dataclass(frozen=True, slots=True)
class TransferChange:
    """A button. `states`: those that it changes; `effect`: what it does, shown before the second press."""

    verb: str
    label: str
    effect: str
    states: tuple[TransferState, ...]

    @property
    def url(self) -> str:
        """What is called."""
        return f"{API}/transfers/{self.verb}"

    def listed(self, given: Mapping[str, str]) -> str | None:
        """The call that lists what of a list of the page it changes; None: its states have nothing of that."""
        asked = [state for state in given.get("state", "").split(",") if state]
        states = [state.value for state in self.states if not asked or state.value in asked]
        query = [(name, given[name]) for name in CHOOSING if name in given and name != "state"]
        query += [*(("state", state) for state in states), ("archived", "false"), ("limit", str(MAX_PAGE))]
        return f"{API}/transfers?{urlencode(query)}" if states else None


def _before(*after: TransferState) -> tuple[TransferState, ...]:
    """The states from which a person makes a transfer one of these."""
    made = {move[0] for move, rule in TRANSFER_MOVES.items()
            if move[1] in after and rule.component is StageoutComponent.PERSON}  # fmt: skip
    return tuple(state for state in TransferState if state in made)


CHANGES = (
    TransferChange(
        "kill", "Kill", "What FTS has is killed when FTS confirms it; what is copied already goes on.",
        _before(TransferState.KILLED, TransferState.KILLING),
    ),
    TransferChange(
        "resubmit", "Resubmit", "Failed and killed transfers are tried again, with all their retries.",
        _before(TransferState.NEW),
    ),
)  # fmt: skip


def changes_of_list(given: Mapping[str, str]) -> list[tuple[TransferChange, str]]:
    """The buttons of a list, each with its call; none of a list that nothing was chosen for."""
    if not any(name in given for name in CHOOSING):
        return []
    return [(change, url) for change in CHANGES if (url := change.listed(given)) is not None]
