"""Selection, order and batches of a build's artifacts; where they go."""

from __future__ import annotations

import configparser
from datetime import date

import pytest
from hypothesis import given, strategies as st

from include.nightlies.errors import DependencyCycle, NightlyError, UnknownChoice
from include.nightlies.rules.build import build_directory, check_name, destination, overlapping
from include.nightlies.rules.index import Artifact
from include.nightlies.rules.selection import ALONE, PER_CORE, SHARE, TASKS_S, dealt, in_order, select, work_s
from include.nightlies.steps.plan import MAX_MAPPED
from include.settings.model import Slot
from tests.fakes.airflowhome import ROOT
from tests.fakes.refused import refused


def artifact(project, *dependencies, platform="opt", priority=0):
    return Artifact(project, platform, "u", 1, "0" * 64, dependencies, priority)


def slot(template="/nightlies/{slot}/{build_id}/{project}/{platform}"):
    return Slot(name="main", repository="r", store="s", destination=template)


def test_dependencies_come_first_then_priority_then_name():
    listed = [
        artifact("c", "a"),
        artifact("b"),
        artifact("z", priority=9),
        artifact("a"),
        artifact("d", "c", priority=5),
    ]
    assert [one.project for one in in_order(listed)] == ["z", "a", "b", "c", "d"]
    other_platform = [artifact("a", "b", "nowhere", priority=1), artifact("b", platform="dbg")]
    assert [one.project for one in in_order(other_platform)] == ["a", "b"], "it binds nothing, nor does an absent one"


def test_a_circle_is_named():
    with refused(DependencyCycle, cycle=("b (opt)", "c (opt)", "b (opt)")):
        in_order([artifact("a", "b"), artifact("b", "c"), artifact("c", "b"), artifact("d")])
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


@pytest.mark.parametrize("cores", [1, 2, 4, 6, 64])
def test_a_few_artifacts_are_a_batch_each_and_many_small_ones_make_few_batches(cores: int) -> None:
    assert dealt(range(ALONE), [10_000_000] * ALONE, MAX_MAPPED, cores) == tuple((one,) for one in range(ALONE))
    least = min(ALONE, PER_CORE * cores)
    for count in (ALONE + 1, 48, 1500):
        batches = dealt(range(count), [1000] * count, MAX_MAPPED, cores)
        # 1,500 artifacts of any size are work for six batches
        assert len(batches) == max(least, 6 if count == 1500 else 0)
        assert max(map(len, batches)) <= count // len(batches) + 2
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


def test_a_large_artifact_is_not_put_together_with_many_small_ones() -> None:
    batches = dealt(range(101), [1000] * 50 + [5 * 10**10] + [1000] * 50, 9, 4)
    assert next(batch for batch in batches if 50 in batch)[-1] == 50
    with refused(ValueError):
        dealt([1], [1], 0, 4)


def test_a_long_night_has_no_more_batches_than_airflow_maps_over_and_starts_them_in_a_small_share_of_it() -> None:
    airflow = configparser.ConfigParser(interpolation=None)
    airflow.read(ROOT / "airflow.cfg")
    for count in (500, 5000):
        sizes = [200_000_000] * count
        batches = len(dealt(sizes, sizes, MAX_MAPPED, cores=64))
        assert batches <= airflow.getint("core", "max_map_length")
        assert batches * TASKS_S <= SHARE * sum(map(work_s, sizes)) + TASKS_S


@given(st.lists(st.one_of(st.none(), st.integers(0, 1 << 40)), max_size=400), st.integers(1, 200), st.integers(1, 64))
def test_every_item_is_in_one_batch_in_order_and_no_batch_is_empty(
    sizes: list[int | None], limit: int, cores: int
) -> None:
    batches = dealt(range(len(sizes)), sizes, limit, cores)
    assert [one for batch in batches for one in batch] == list(range(len(sizes)))
    assert all(batches)
    assert len(batches) <= limit
