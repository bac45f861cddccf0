"""The table of moves: what a retry, a cleared run and a process that outlived its try may and may not do."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from include.nightlies.rules.publication import ENDED, MOVES, AllowedTry, MoveVerdict, Phase, State, decide


def verdict(current, to, phase, try_number, recorded=1, last=None):
    return decide(current, to, phase=phase, try_number=try_number, recorded_try=recorded, last_phase=last).verdict


@pytest.mark.parametrize("current", sorted(ENDED, key=lambda state: state.value))
def test_nothing_that_ended_moves_again_in_the_same_try(current):
    for to in State:
        for phase in Phase:
            assert verdict(current, to, phase, 1, recorded=1) is not MoveVerdict.MOVE


@given(st.sampled_from(State), st.sampled_from(State), st.sampled_from(Phase), st.integers(1, 9), st.integers(1, 9))
def test_a_replaced_try_moves_nothing(current, to, phase, late, more):
    assert verdict(current, to, phase, late, recorded=late + more) is MoveVerdict.STALE


@given(st.sampled_from(State), st.sampled_from(State), st.sampled_from(Phase), st.integers(1, 9), st.integers(0, 9))
def test_every_decision_follows_the_table_and_says_why(current, to, phase, try_number, recorded):
    decision = decide(current, to, phase=phase, try_number=try_number, recorded_try=recorded, last_phase=phase)
    assert decision.reason
    if decision.verdict is MoveVerdict.MOVE:
        who = MOVES[current, to][phase]
        assert who is AllowedTry.ANY or try_number > recorded


def test_only_a_new_plan_moves_what_is_published_and_a_move_whose_answer_was_lost_is_repeated():
    for to in State:
        for phase in Phase:
            expected = to is State.PLANNED and phase is Phase.PLAN
            assert (verdict(State.PUBLISHED, to, phase, 2, last=Phase.PUBLISH) is MoveVerdict.MOVE) == expected
    assert verdict(State.PUBLISHED, State.PUBLISHED, Phase.PUBLISH, 1, last=Phase.PUBLISH) is MoveVerdict.REPEAT
    way = [State.PLANNED, State.PREPARING, State.PREPARED, State.PUBLISHING, State.PUBLISHED]
    phases = [Phase.PREPARE, Phase.PREPARE, Phase.PUBLISH, Phase.PUBLISH]
    for (current, to), phase in zip(pairwise(way), phases, strict=True):
        assert verdict(current, to, phase, 1, recorded=0) is MoveVerdict.MOVE


def test_every_state_can_be_reached_and_each_that_ends_can_be_planned_anew():
    assert {to for _, to in MOVES} == set(State)
    assert all(Phase.PLAN in MOVES[state, State.PLANNED] for state in ENDED)
    assert all(Phase.PLAN not in phases or to in {State.PLANNED, *ENDED} for (_, to), phases in MOVES.items())
