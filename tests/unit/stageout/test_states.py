"""The tables of moves: every pair of states, and what follows from the tables."""

from __future__ import annotations

import itertools
import re

import pytest

from include.stageout.errors import MOVE_REFUSED
from include.stageout.states import (
    JOB_ENDED,
    JOB_MOVES,
    TRANSFER_ENDED,
    TRANSFER_MOVES,
    StageoutComponent,
    TransferJobState,
    TransferState,
    require_job_move,
    require_transfer_move,
)
from tests.fakes.airflowhome import ROOT
from tests.fakes.refused import refused

T, J, C = TransferState, TransferJobState, StageoutComponent
TRANSFERS = """
new: claimed killed killing copied
claimed: new submitted retry-wait needs-credential failed killing
submitted: active copied retry-wait needs-credential failed killing
active: submitted copied retry-wait needs-credential failed killing
copied: done retry-wait failed
done: registered cleaning failed
registered: cleaning retracted
cleaning: cleaned kept
cleaned: retracted
kept: retracted
retry-wait: new killed killing copied
needs-credential: new killed killing
failed: new
killing: killed copied
killed: new
retracted:
"""
JOBS = """
submitting: submitted refused dead
submitted: active finished finished-dirty failed canceled lost dead
active: submitted finished finished-dirty failed canceled lost dead
finished:
finished-dirty:
failed:
canceled:
refused:
lost:
dead:
"""


def pairs(table, kind):
    lines = [line.partition(":") for line in table.split("\n") if line]
    assert {kind(name) for name, *_ in lines} == set(kind)
    return {(kind(name), kind(to)) for name, _, following in lines for to in following.split()}


@pytest.mark.parametrize(
    ("kind", "table", "moves", "require"),
    [(T, TRANSFERS, TRANSFER_MOVES, require_transfer_move), (J, JOBS, JOB_MOVES, require_job_move)],
    ids=["transfers", "jobs"],
)
def test_the_moves_of_the_table_are_made_each_by_one_component_and_no_others(kind, table, moves, require):
    assert moves.keys() == pairs(table, kind)
    for current, to, component in itertools.product(kind, kind, C):
        if (current, to) in moves and moves[current, to].component is component:
            require(current, to, component)
        else:
            with refused(MOVE_REFUSED):
                require(current, to, component)


def reachable(moves, start):
    found, new = {start}, {start}
    while new:
        new = {to for current, to in moves if current in new} - found
        found |= new
    return found


def test_every_state_can_be_reached_and_left_until_it_ends():
    assert reachable(TRANSFER_MOVES, T.NEW) == set(T)
    assert reachable(JOB_MOVES, J.SUBMITTING) == set(J)
    assert all(reachable(TRANSFER_MOVES, state) & TRANSFER_ENDED for state in T)
    assert {state for state in J if not any(current is state for current, _ in JOB_MOVES)} == JOB_ENDED
    left = {to: rule.component for (current, to), rule in TRANSFER_MOVES.items() if current in TRANSFER_ENDED}
    assert left == {T.NEW: C.PERSON, T.RETRACTED: C.PERSON}, "what has ended is changed by a person alone"


def test_no_source_is_removed_before_it_is_verified_and_registered():
    """Without the moves into `done`, nothing is cleaned; with registration, none without `registered` either."""
    unverified = {pair: rule for pair, rule in TRANSFER_MOVES.items() if pair[1] is not T.DONE}
    assert T.CLEANING not in reachable(unverified, T.NEW)
    with_registration = {pair for pair, rule in TRANSFER_MOVES.items() if rule.registration is not False}
    unregistered = {pair for pair in with_registration if pair[1] is not T.REGISTERED}
    assert T.CLEANING in reachable(with_registration, T.NEW)
    assert T.CLEANING not in reachable(unregistered, T.NEW)


def test_one_component_waits_for_each_state():
    """So that claims of two components never look for the same rows: people and kills apart."""
    for state in T:
        waiting = {rule.component for (current, _), rule in TRANSFER_MOVES.items() if current is state} - {C.PERSON}
        assert len(waiting) <= 1, state


def test_the_documentation_has_every_state_and_where_it_leads():
    text = (ROOT / "docs/stage-out.md").read_text(encoding="utf-8")
    table = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    rows = [
        ({*re.findall("`([^`]+)`", cells[1])}, {*re.findall("`([^`]+)`", cells[4])})
        for cells in table
        if len(cells) == 7
    ]
    values = {state.value for state in T}
    documented = {(state, to) for states, leads in rows for state in states for to in leads & values}
    assert documented == {(current.value, to.value) for current, to in TRANSFER_MOVES}
    assert {state for states, _ in rows for state in states} == values
