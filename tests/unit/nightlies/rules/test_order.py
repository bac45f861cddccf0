"""Selection, order and batches of a build's artifacts; where they go."""

from __future__ import annotations

import configparser
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.nightlies.errors import DependencyCycle, NightlyError, UnknownChoice
from include.nightlies.rules.destinations import build_directory, check_name, destination, overlapping
from include.nightlies.rules.index import Artifact
from include.nightlies.rules.order import ALONE, AT_LEAST, SHARE, TASKS_S, dealt, in_order, select, work_s
from include.nightlies.steps.plan import MAX_MAPPED
from include.settings.model import Slot
from tests.fakes.refused import refused


def artifact(project, *dependencies, platform="opt", priority=0):
    return Artifact(project, platform, "u", 1, "0" * 64, dependencies, priority)


def slot(template="/nightlies/{slot}/{build_id}/{project}/{platform}"):
    return Slot(name="main", repository="r", store="s", destination=template)


def test_dependencies_come_first_then_priority_then_name():
    given_ = [
        artifact("c", "a"),
        artifact("b"),
        artifact("z", priority=9),
        artifact("a"),
        artifact("d", "c", priority=5),
    ]
    assert [one.project for one in in_order(given_)] == ["z", "a", "b", "c", "d"]


def test_a_dependency_binds_on_its_platform_only_and_an_absent_one_not_at_all():
    given_ = [artifact("a", "b", "nowhere", platform="opt", priority=1), artifact("b", platform="dbg")]
    assert [one.project for one in in_order(given_)] == ["a", "b"]


def test_a_circle_is_named():
    with pytest.raises(DependencyCycle) as caught:
        in_order([artifact("a", "b"), artifact("b", "c"), artifact("c", "b"), artifact("d")])
    assert caught.value.cycle == ("b (opt)", "c (opt)", "b (opt)")


def test_a_project_that_depends_on_itself_is_a_circle():
    with refused(DependencyCycle, cycle=("a (opt)", "a (opt)")):
        in_order([artifact("a", "a")])


@given(st.permutations(range(8)), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12))
def test_any_order_of_the_index_gives_the_same_night(shuffled, edges):
    needs = {n: {str(min(e)) for e in edges if max(e) == n and min(e) != n} for n in range(8)}
    made = [artifact(str(n), *sorted(needs[n]), priority=n % 3) for n in shuffled]
    ordered = in_order(made)
    seen = set()
    for one in ordered:
        assert set(one.dependencies) <= seen
        seen.add(one.project)
    assert ordered == in_order(sorted(made, key=lambda one: one.project))


def test_a_choice_takes_what_it_names_and_refuses_what_nobody_knows():
    made = [artifact("a"), artifact("b"), artifact("a", platform="dbg")]
    assert select(made) == tuple(made)
    assert select(made, projects=["a"], platforms=["dbg"]) == (made[2],)
    assert select(made, projects=["late"], known_projects=["late"]) == ()
    with refused(UnknownChoice, kind="platform", names=("opd",)):
        select(made, platforms=["opd"])


def test_a_destination_follows_the_slots_template():
    assert destination(slot(), "b42", "Gaudi", "x86_64-opt") == "/nightlies/main/b42/Gaudi/x86_64-opt"
    by_date = slot("/n/{date}/{platform}/{project}")
    assert destination(by_date, "b", "p", "x", build_date=date(2026, 11, 21)) == "/n/2026-11-21/x/p"
    with refused(NightlyError):
        destination(by_date, "b", "p", "x")


def test_the_directory_of_a_build_is_what_its_artifacts_share():
    assert build_directory(slot(), "b42") == "/nightlies/main/b42"
    assert build_directory(slot("/{project}/{build_id}/{platform}"), "b42") == "/"
    assert build_directory(slot("/n/{build_id}-{platform}/{project}"), "b42") == "/n"


@pytest.mark.parametrize("bad", ["..", ".", "", "a/b", "-x", "a b", "ü", "x" * 129, "a\n", "{slot}"])
def test_no_name_leaves_its_place(bad):
    for arguments in ((bad, "p", "x"), ("b", bad, "x"), ("b", "p", bad)):
        with pytest.raises(NightlyError):
            destination(slot(), *arguments)
    with refused(NightlyError):
        check_name("project", bad)


def test_destinations_inside_one_another_are_found():
    found = overlapping(["/a/b", "/a/b/c", "/a/b-c", "/a/bc", "/d", "/a/b/c/d", "/d"])
    assert set(found) == {("/a/b", "/a/b/c"), ("/a/b", "/a/b/c/d"), ("/a/b/c", "/a/b/c/d"), ("/d", "/d")}


MAPPED = MAX_MAPPED
AIRFLOW_CFG = Path(__file__).parents[4] / "airflow.cfg"


def test_a_usual_night_has_a_batch_for_each_artifact() -> None:
    sizes = [10_000_000] * ALONE
    assert dealt(range(ALONE), sizes, MAPPED) == tuple((number,) for number in range(ALONE))


def test_fifteen_hundred_small_artifacts_make_few_batches() -> None:
    batches = dealt(range(1500), [1000] * 1500, MAPPED)
    assert len(batches) == AT_LEAST
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


def test_no_night_has_more_batches_than_airflow_maps_over() -> None:
    airflow = configparser.ConfigParser(interpolation=None)
    airflow.read(AIRFLOW_CFG)
    sizes = [200_000_000] * 5000
    assert len(dealt(sizes, sizes, MAPPED)) <= airflow.getint("core", "max_map_length")


def test_starting_tasks_costs_a_small_share_of_a_long_night() -> None:
    sizes = [200_000_000] * 500
    batches = dealt(sizes, sizes, MAPPED)
    assert len(batches) * TASKS_S <= SHARE * sum(map(work_s, sizes)) + TASKS_S


def test_a_large_artifact_is_not_put_together_with_many_small_ones() -> None:
    sizes = [1000] * 50 + [50_000_000_000] + [1000] * 50
    batches = dealt(range(101), sizes, MAPPED)
    (with_large,) = [batch for batch in batches if 50 in batch]
    assert with_large[-1] == 50


@given(st.lists(st.one_of(st.none(), st.integers(0, 1 << 40)), max_size=400), st.integers(1, 200))
def test_every_item_is_in_one_batch_in_order_and_no_batch_is_empty(sizes: list[int | None], limit: int) -> None:
    batches = dealt(range(len(sizes)), sizes, limit)
    assert [one for batch in batches for one in batch] == list(range(len(sizes)))
    assert all(batches)
    assert len(batches) <= limit


def test_a_limit_below_one_is_refused() -> None:
    with refused(ValueError):
        dealt([1], [1], 0)
