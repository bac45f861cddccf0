"""The plan of the simulated week has in it what the week is to show, and the same seed gives the same one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.fakes.refused import refused
from tests.week.expected import expected
from tests.week.plan import NIGHTS, PAIRS, PLATFORMS, PROJECTS, SLOTS, SlotNight, week
from tests.week.trees import Tree


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_whole_week_has_everything_in_it(seed: int) -> None:
    plan = week(seed)
    nights = plan.nights[1:]
    assert (len(nights), len(SLOTS), len(PLATFORMS), len(PROJECTS)) == (7, 3, 2, 8)
    assert all(sum(one.base is not None for one in night.slots) == 1 for night in nights), "a partial stack a night"
    assert all(len(one.stages) > 1 for one in plan.slot_nights()), "something is late in each"
    assert sum(night.killed for night in nights) == sum(night.frozen for night in nights) == 1
    assert rebuilds(plan.slot_nights()) == 2
    fates = Counter(fate for one in expected(plan).outcomes.values() for fate in one.fates.values())
    assert (fates["failed"], fates["blocked"], fates["never arrived"]) == (1, len(PROJECTS) - 1, 3)


def rebuilds(nights: tuple[SlotNight, ...]) -> int:
    stages = [stage for one in nights for stage in (*one.stages, *(again.stage for again in one.again))]
    return len({listed.tree for stage in stages for listed in stage.listed if listed.tree.version > 1})


def test_a_shorter_week_is_killed_and_frozen_too_and_other_lengths_are_refused() -> None:
    for nights in range(1, NIGHTS + 1):
        plan = week(1, nights)
        assert len(plan.nights) == nights + 1
        assert sum(night.killed for night in plan.nights) == sum(night.frozen for night in plan.nights) == 1
        assert len(expected(plan).outcomes) == 1 + nights * len(SLOTS)
        assert plan == week(1, nights) != week(2, nights)
    for nights in (0, NIGHTS + 1):
        with refused(ValueError):
            week(1, nights)


def test_an_index_only_grows_and_what_others_stand_on_comes_first() -> None:
    for one in week(3).slot_nights():
        listed = [{item.tree.name for item in stage.listed} for stage in one.stages]
        assert all(before < after for before, after in pairwise(listed))
        assert {f"Gaudi/{platform}" for platform in PLATFORMS} <= listed[0]
        assert [stage.complete for stage in one.stages[:-1]] == [False] * (len(one.stages) - 1)


def test_partial_builds_stand_on_whole_ones_of_their_slot() -> None:
    plan = week(4)
    outcomes = expected(plan).outcomes
    for one in plan.slot_nights():
        if one.base is not None:
            below = outcomes[one.slot, one.base[1]]
            assert below.whole
            assert set(below.fates.values()) == {"published"}
            assert below.night.build_id == one.base[0]
            assert len(one.last.listed) < len(PAIRS)


def test_links_lead_to_the_newest_whole_build_and_pass_over_others() -> None:
    comes_to = expected(week(1, 3))
    assert not comes_to.outcomes["main", week(1, 3).nights[-1].day].whole
    assert comes_to.links["/nightlies/main/latest"] == "/nightlies/main/b100"
    assert "/nightlies/main/Wed" not in comes_to.links
    assert comes_to.links["/nightlies/dev/latest"] == "/nightlies/dev/b101"


def test_a_link_into_a_build_that_is_rebuilt_later_leads_to_the_new_tree() -> None:
    comes_to = expected(week(1, 2))
    linked = {path: where for path, where in comes_to.held.items() if isinstance(where, str)}
    assert linked
    assert all(path.startswith("/nightlies/dev/b100/") for path in linked)
    rebuilt = comes_to.held["/nightlies/dev/b99/Rec/x86_64-el9-dbg"]
    assert rebuilt == Tree("dev", "b99", "Rec", "x86_64-el9-dbg", 2)
    assert len(comes_to.ever["/nightlies/dev/b99/Rec/x86_64-el9-dbg"]) == 2
    path, where = next(iter(linked.items()))
    project, platform = path.split("/")[-2:]
    assert comes_to.paths()[path] == f"../../b99/{project}/{platform}"
    assert where == f"/nightlies/dev/b99/{project}/{platform}"
