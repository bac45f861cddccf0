"""Links move forward only, and a build is whole or not by what its slot requires; all of it without a repository."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from include.cvmfs.format.paths import link_target
from include.nightlies.rules.build import (
    BuildKey,
    LinkState,
    Present,
    all_links_of,
    build_directory,
    build_of_directory,
    decide,
    links_of,
    relative,
)
from include.nightlies.rules.dependencies import is_required, never_listed, required_pairs
from tests.fakes.plainsite import slot

DAY = date(2026, 11, 23)  # a Monday


def key(build_id: str, day: date = DAY) -> BuildKey:
    return BuildKey(day, build_id)


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,6}", fullmatch=True)
KEYS = st.builds(BuildKey, date=st.dates(DAY, DAY + timedelta(days=3)), build_id=NAMES)


@given(KEYS, KEYS, KEYS)
def test_builds_are_ordered_by_date_and_numbers_in_ids_count_as_numbers(
    one: BuildKey, two: BuildKey, three: BuildKey
) -> None:
    ordered = [key("b9"), key("b10"), key("b10a"), key("c1"), key("a1", DAY + timedelta(days=1))]
    assert sorted(ordered, reverse=True) == ordered[::-1]
    assert (one < two) + (two < one) + (one == two) == 1
    assert not (one < two and two < three) or one < three
    assert (key("b1") < key("b01")) != (key("b01") < key("b1"))


@given(KEYS, st.lists(KEYS, max_size=8))
def test_whatever_builds_come_in_whatever_order_a_link_never_goes_back(first: BuildKey, more: list[BuildKey]) -> None:
    at = first
    for wanted in more:
        present = Present(there=True, target=f"/n/{at.date}/{at.build_id}", key=at)
        decision = decide("/n/latest", wanted, f"/n/{wanted.date}/{wanted.build_id}", present)
        assert decision.reason
        if decision.state is LinkState.MOVED:
            assert not wanted < at
            at = wanted
    assert at == max([first, *more])


@pytest.mark.parametrize(
    ("present", "state", "says"),
    [
        (Present(there=False), LinkState.MOVED, "new"),
        (Present(there=False, key=key("b3")), LinkState.STAYED, "when it was taken away"),
        (Present(there=False, key=key("b1")), LinkState.MOVED, "new"),
        (Present(there=True), LinkState.STAYED, "no symbolic link"),
        (Present(there=True, target="/elsewhere"), LinkState.STAYED, "no build in the ledger"),
        (Present(there=True, target="/n/b1", key=key("b1")), LinkState.MOVED, "from build b1 of 2026-11-23"),
        (Present(there=True, target="/n/b2", key=key("b2")), LinkState.UNCHANGED, "already"),
        (Present(there=True, target="/n/b3", key=key("b3")), LinkState.STAYED, "build b3 of 2026-11-23 already"),
    ],
)
def test_what_becomes_of_a_link_depends_on_what_it_leads_to_now(present: Present, state: LinkState, says: str) -> None:
    decision = decide("/n/latest", key("b2"), "/n/b2", present)
    assert (decision.state, says in decision.reason) == (state, True), decision


def test_a_slot_has_the_links_that_it_names_for_the_day_of_the_build() -> None:
    assert links_of(slot(), DAY) == ()
    both = slot(links={})
    assert links_of(both, DAY) == ("/nightlies/main/latest", "/nightlies/main/Mon")
    assert len(all_links_of(both)) == 8
    assert links_of(slot(links={"folder": "/l/{slot}", "latest": False}), DAY) == ("/l/main/Mon",)


@given(st.lists(NAMES, min_size=1, max_size=4), st.lists(NAMES, min_size=1, max_size=4))
def test_what_a_link_says_leads_to_its_target(above: list[str], target: list[str]) -> None:
    path, end = "/" + "/".join([*above, "latest"]), "/" + "/".join(target)
    assert link_target(path, relative(path, end)) == end
    assert link_target(path, "../" * 9 + "etc") == "/etc", "it ends at the root of the repository"
    assert link_target(path, "/abs") == "/abs"


@pytest.mark.parametrize(
    "template",
    [
        "/nightlies/{slot}/{build_id}/{project}/{platform}",
        "/x/{date}/{build_id}-{slot}/{platform}/{project}",
        "/x/{date}/{project}/{platform}",
        "/x.y/{build_id}/{build_id}/{project}/{platform}",
    ],
)
@given(build_id=NAMES)
def test_the_build_is_read_from_its_directory(template: str, build_id: str) -> None:
    one = slot(destination=template)
    said = build_of_directory(one, build_directory(one, build_id, build_date=DAY))
    assert said is not None
    assert said.get("build_id", build_id) == build_id
    assert said.get("date", "2026-11-23") == "2026-11-23"
    assert build_of_directory(one, "/nightlies/other/b1/more") is None
    assert build_of_directory(one, "/xzy/2026-11-23") is None


def test_what_is_required_is_what_is_listed_and_expected_but_for_what_is_optional() -> None:
    listed = [("A", "x"), ("B", "x"), ("A", "dbg")]
    assert required_pairs(slot(), listed) == (("A", "dbg"), ("A", "x"), ("B", "x"))
    assert required_pairs(slot(optional={"platforms": ["dbg"]}), listed) == (("A", "x"), ("B", "x"))
    assert required_pairs(slot(optional={"projects": ["B"]}), listed) == (("A", "dbg"), ("A", "x"))
    only = slot(required={"platforms": ["x"], "projects": ["A", "C"]})
    assert required_pairs(only, listed) == (("A", "x"), ("C", "x"))
    named = slot(projects=["A", "B"], platforms=["x", "dbg"], optional={"platforms": ["dbg"]})
    assert required_pairs(named, [("A", "x"), ("Z", "x")]) == (("A", "x"), ("B", "x"))
    assert not is_required(named, "Z", "x")


def test_of_what_is_named_alone_something_has_to_be_listed() -> None:
    listed = [("A", "x"), ("B", "dbg")]
    assert never_listed(slot(), listed) == ()
    assert never_listed(slot(required={"platforms": ["x", "arm"]}), listed) == ("platform arm",)
    assert never_listed(slot(platforms=["x", "dbg", "arm"], optional={"platforms": ["arm", "dbg"]}), listed) == ()
    assert never_listed(slot(projects=["A", "C"]), listed) == ("project C",)
    # with both the pairs say it
    assert never_listed(slot(projects=["A", "C"], platforms=["x", "arm"]), listed) == ()
    assert ("A", "arm") in required_pairs(slot(projects=["A", "C"], platforms=["x", "arm"]), listed)
    # what is listed and optional is no sign of what is required
    assert never_listed(slot(required={"platforms": ["x"]}, optional={"projects": ["A"]}), listed) == ("platform x",)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"required": {"platforms": ["x"]}, "optional": {"platforms": ["x"]}}, "required and optional: x"),
        ({"projects": ["A"], "optional": {"projects": ["B"]}}, "does not take: B"),
        ({"links": {"folder": "nightlies"}}, "does not begin with /"),
        ({"links": {"folder": "/n/{build_id}"}}, "unknown field"),
        ({"links": {"latest": False, "weekdays": False}}, "none is wanted"),
        ({"links": {}, "destination": "/n/{project}/{platform}/{build_id}"}, "no directory of their own"),
        ({"partial": "link", "destination": "/n/{project}/{platform}/{build_id}"}, "no directory of their own"),
        ({"tag": "nightly"}, "every build would have the same"),
        ({"tag": "{slot} {build_id}"}, "component"),
        ({"partial": "move"}, "copy"),
    ],
)
def test_the_message_says_why_settings_of_links_cannot_be_meant(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        slot(**changes)
