"""The rules of retention: what each keeps, what protects a build, and that nothing makes them remove more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from include.nightlies.removal.held import HeldByTag
from include.nightlies.removal.retention import RetentionPlan
from include.nightlies.rules.build import BuildKey, build_of_tag, folder_of_builds
from include.nightlies.rules.passes import began_by_itself
from include.nightlies.rules.retention_rules import HeldBuild, RetentionDecision, decide, reached
from include.settings.retention import Retention, WeekdayRule
from tests.fakes.plainsite import slot

TODAY = date(2026, 11, 23)  # a Monday
NOW = datetime(2026, 11, 23, 6, tzinfo=UTC)


def build(days: int, **changes: object) -> HeldBuild:
    """A build of so many days ago, published in its night."""
    day = TODAY - timedelta(days=days)
    at = datetime.combine(day, datetime.min.time(), UTC)
    found = HeldBuild(f"/n/b{days}", BuildKey(day, f"b{days}"), f"hash-{days}", at, 10, 1000)
    return replace(found, **changes)  # type: ignore[arg-type]


def judged(builds: Iterable[HeldBuild], rules: Retention, now: datetime = NOW) -> tuple[RetentionDecision, ...]:
    return decide(list(builds), rules, now=now, today=now.date())


def gone(builds: Iterable[HeldBuild], rules: Retention, now: datetime = NOW) -> set[str]:
    return {one.build.key.build_id for one in judged(builds, rules, now) if one.remove}


def rules(**changes: object) -> Retention:
    return Retention.model_validate({"keep_last": 1, "minimum": 1, **changes})


MONTH = [build(days) for days in range(30)]


@pytest.mark.parametrize(
    ("wanted", "stay"),
    [
        ({"keep_last": 3}, [0, 1, 2]),
        ({"keep_last": 0, "keep_days": 2}, [0, 1, 2]),
        ({"keep_last": 0, "keep_days": 0}, [0]),
        ({"keep_last": 0, "keep_days": 0, "minimum": 4}, [0, 1, 2, 3]),
        ({"keep_weekdays": WeekdayRule(days=("Sun",), weeks=2)}, [0, 1, 8]),
        ({"keep_weekdays": WeekdayRule(days=("Mon", "Fri"), weeks=2)}, [0, 3, 7, 10, 14]),
        ({"keep_last": 2, "keep_days": 4, "minimum": 3}, [0, 1, 2, 3, 4]),
    ],
)
def test_a_build_stays_if_one_rule_keeps_it(wanted: dict[str, object], stay: list[int]) -> None:
    assert gone(MONTH, rules(**wanted)) == {f"b{days}" for days in range(30) if days not in stay}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"links": ("/n/latest",)}, "link /n/latest leads to it"),
        ({"links": ("/n/a", "/n/b")}, "link /n/a (and 1 more) leads to it"),
        ({"tags": ("main-b9",)}, "named by tag main-b9"),
        ({"rebuilt_at": NOW - timedelta(days=6, hours=23)}, "published by a backfill or by hand at 2026-11-16 07:00"),
        ({"protected": "was changed since the plan was made"}, "was changed since the plan was made"),
    ],
)
def test_what_is_needed_stays_with_its_reason(changes: dict[str, object], says: str) -> None:
    (decision,) = [one for one in judged([build(0), build(9, **changes)], rules()) if one.build.key.build_id == "b9"]
    assert (decision.remove, decision.reason.startswith(says)) == (False, True), decision.reason


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"rebuilt_at": NOW - timedelta(days=7)}, {}),
        ({"rebuilt_at": NOW - timedelta(days=2)}, {"rebuild_days": 2}),
        ({"tags": ("main-b9",)}, {"keep_tagged": False}),
        ({"refers_to": ("/n/b0",)}, {}),
    ],
)
def test_what_no_reason_keeps_goes(changes: dict[str, object], wanted: dict[str, object]) -> None:
    assert gone([build(0), build(9, **changes)], rules(**wanted)) == {"b9"}


def test_builds_of_a_future_date_take_no_place_of_another_and_stay() -> None:
    future = [build(-days) for days in range(1, 4)]
    assert gone([*future, *MONTH], rules(keep_last=3)) == {f"b{days}" for days in range(3, 30)}
    assert gone([*future, *MONTH], rules(keep_last=0, minimum=4, keep_days=1)) == {f"b{days}" for days in range(4, 30)}
    reasons = {decision.reason for decision in judged([*future, *MONTH], rules(keep_last=3))[:3]}
    assert reasons == {f"of a future date, {(NOW + timedelta(days=days)).date()}" for days in range(1, 4)}


def test_a_removal_says_what_would_have_kept_it() -> None:
    wanted = rules(keep_last=2, keep_days=5, keep_weekdays=WeekdayRule(days=("Sun",), weeks=3))
    last = judged(MONTH, wanted)[-1]
    assert last.reason == "29 days old; kept are the newest 2, 5 days, Sun for 3 weeks"


def test_what_a_kept_build_refers_to_stays_through_any_number_of_builds_and_goes_with_it() -> None:
    chain = [build(0), build(8, refers_to=("/n/b9",)), build(9, refers_to=("/n/b10",)), build(10)]
    assert gone(chain, rules()) == {"b8", "b9", "b10"}
    kept = judged([replace(one, tags=("t",)) if one.key.build_id == "b8" else one for one in chain], rules())
    assert [one.reason for one in kept[2:]] == ["links in /n/b8 lead to it", "links in /n/b9 lead to it"]
    circle = [build(0), build(8, refers_to=("/n/b9", "/n/b8")), build(9, refers_to=("/n/b8",))]
    assert gone(circle, rules()) == {"b8", "b9"}
    assert gone([circle[0], circle[1], replace(circle[2], links=("/l",))], rules()) == set()


@pytest.mark.parametrize("changes", [{"empty": True}, {"dated": False}])
def test_a_build_that_is_empty_or_of_no_known_date_takes_no_place_of_the_newest(changes: dict[str, object]) -> None:
    builds = [build(0), build(1, **changes), build(2), build(3)]
    assert gone(builds, rules(keep_last=2)) == {"b3"}
    weekly = rules(keep_weekdays=WeekdayRule(days=("Sun",), weeks=1))
    assert gone([build(0), build(2), build(3, dated=False)], weekly) == {"b2"}, "it may be of any weekday"


def test_numbers_in_ids_order_builds_of_one_date() -> None:
    same = [replace(build(5), directory=f"/n/{name}", key=BuildKey(TODAY, name)) for name in ("b9", "b10", "b2")]
    assert [one.build.key.build_id for one in judged(same, rules())] == ["b10", "b9", "b2"]
    assert gone(same, rules()) == {"b9", "b2"}


def test_an_idle_month_removes_nothing_below_the_minimum() -> None:
    later = NOW + timedelta(days=400)
    left = [one for one in judged(MONTH, rules(keep_last=0, keep_days=14, minimum=5), later) if not one.remove]
    assert len(left) == 5


# -- what holds for any builds and rules

days = st.integers(0, 60)
directories = st.sampled_from([f"/n/b{number}" for number in range(8)])
some_rules = st.builds(
    Retention,
    keep_last=st.integers(1, 6),
    keep_days=st.none() | days,
    keep_weekdays=st.none() | st.builds(
        WeekdayRule, days=st.lists(st.sampled_from(["Mon", "Sun"]), min_size=1).map(tuple), weeks=st.integers(1, 8)
    ),
    minimum=st.integers(1, 6),
    rebuild_days=st.integers(0, 10),
)  # fmt: skip


@st.composite
def some_builds(draw: st.DrawFn) -> list[HeldBuild]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        day = TODAY - timedelta(days=draw(days))
        rebuilt = draw(st.none() | st.integers(0, 12))
        found.append(
            HeldBuild(
                f"/n/b{number}", BuildKey(day, f"b{number}"), "hash", NOW, 1, 1,
                empty=draw(st.booleans()), dated=draw(st.booleans()),
                links=draw(st.sampled_from([(), (), ("/l",)])), tags=draw(st.sampled_from([(), (), ("t",)])),
                refers_to=tuple(draw(st.lists(directories, max_size=2))),
                rebuilt_at=None if rebuilt is None else NOW - timedelta(days=rebuilt),
            )
        )  # fmt: skip
    return found


@given(some_builds(), some_rules)
def test_never_fewer_than_the_minimum_stay_and_nothing_that_is_needed_goes(
    builds: list[HeldBuild], wanted: Retention
) -> None:
    decisions = judged(builds, wanted)
    assert [one.build for one in decisions] == sorted(builds, key=lambda one: one.key, reverse=True)
    stay = [one.build for one in decisions if not one.remove]
    counted = sum(one.counts(NOW.date()) for one in builds)
    assert sum(one.counts(NOW.date()) for one in stay) >= min(wanted.minimum, counted)
    needed = {one.directory for one in builds if one.links or one.tags}
    needed |= {directory for one in stay for directory in one.refers_to}
    assert not needed & {one.build.directory for one in decisions if one.remove}
    assert all(one.reason for one in decisions)


@given(some_builds(), some_rules, st.integers(0, 20), st.data())
def test_nothing_that_speaks_for_a_build_lets_another_one_go(
    builds: list[HeldBuild], wanted: Retention, later: int, data: st.DataObject
) -> None:
    before = gone(builds, wanted)
    changed = list(builds)
    if changed:
        place = data.draw(st.integers(0, len(changed) - 1))
        one = changed[place]
        younger = replace(one.key, date=one.key.date + timedelta(days=data.draw(st.integers(0, 5))))
        more = [
            {"links": ("/more",)}, {"tags": ("more",)}, {"protected": "why"}, {"rebuilt_at": NOW},
            {"refers_to": (*one.refers_to, "/n/b0")}, {"dated": False, "key": younger},
        ]  # fmt: skip
        changed[place] = replace(one, **data.draw(st.sampled_from(more)))  # type: ignore[arg-type]
    assert gone(changed, wanted) <= before
    more_rules = wanted.model_copy(update={"keep_last": wanted.keep_last + 1, "minimum": wanted.minimum + 1})
    assert gone(builds, more_rules) <= before
    assert before <= gone(builds, wanted, NOW + timedelta(days=later))


# -- names and links


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/l/direct", {"/n/b1"}),
        ("/l/inside", {"/n/b1"}),
        ("/l/by", {"/n/b1"}),
        ("/l/through", {"/n/b2"}),
        ("/l/above", set()),
        ("/l/beside", set()),
        ("/l/circle", set()),
        ("/l/onward", {"/n/b1", "/n/b2"}),
    ],
)
def test_a_link_reaches_builds_by_other_links_too(path: str, found: set[str]) -> None:
    links = {
        "/l/direct": "/n/b1", "/l/inside": "/n/b1/A/x86", "/l/by": "/l/direct/A", "/nights": "/n",
        "/l/through": "/nights/b2/A", "/l/above": "/n", "/l/beside": "/n/b11", "/l/circle": "/l/circle/x",
        "/l/onward": "/n/b1/to", "/n/b1/to": "/n/b2",
    }  # fmt: skip
    assert reached(path, links, {"/n/b1", "/n/b2"}) == found


@pytest.mark.parametrize(
    ("run", "by_itself"),
    [
        ("nightly_install_main/scheduled__2026-11-03T00:30:00+00:00", True),
        ("nightly_install_main/night__2026-11-03__0030__pass2", True),
        ("nightly_install_main/night__2026-11-03__first", True),
        ("nightly_install_main/asset_triggered__2026-11-03T00:30:00+00:00", True),
        ("nightly_install_main/night__2026-11-03__manual__2026-11-04T08:00:00+00:00__pass2", False),
        ("nightly_install/manual__2026-11-04T08:00:00+00:00", False),
        ("nightly_install_main/backfill__2026-11-03T00:30:00+00:00", False),
        ("by hand/2026-11-04T08:00:00+00:00", False),
        ("", False),
    ],
)
def test_a_run_of_a_person_is_told_from_one_that_began_by_itself(run: str, by_itself: bool) -> None:
    assert began_by_itself(run) is by_itself


def test_the_template_says_which_build_a_tag_is_for_and_which_folder_stays() -> None:
    assert build_of_tag(slot(tag="{slot}-{build_id}"), "main-b9") == {"build_id": "b9"}
    assert build_of_tag(slot(tag="{slot}-{build_id}"), "other-b9") is None
    assert build_of_tag(slot(), "main-b9") is None
    assert folder_of_builds(slot()) == "/nightlies/main"
    dated = slot(destination="/n/{date}/{slot}/{build_id}/{project}/{platform}")
    assert folder_of_builds(dated) == "/n"


def test_a_plan_survives_the_way_to_another_task() -> None:
    full = build(3, links=("/l",), tags=("t",), refers_to=("/n/b0",), rebuilt_at=NOW, dated=False, protected="why")
    decided: Sequence[RetentionDecision] = judged([build(0), full, build(9)], rules())
    tag = HeldByTag("t", 4, ("/n/b3",), ("/n/b3", "/n/b7"), ("/n/b7",), True, "is old")
    plan = RetentionPlan(
        repository="r.example.org", revision=7, notes=("note",), slot="main", made_at=NOW, decisions=tuple(decided),
        tags=(tag,),
    )  # fmt: skip
    assert RetentionPlan.from_json(plan.to_json()) == plan
    assert (plan.to_json()["remove"], plan.bytes) == (1, 1000)
