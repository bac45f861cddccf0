"""Bases of partial builds that are not what they should be: not whole, partial, undone, rebuilt, of another slot."""

from __future__ import annotations

import pytest

from include.nightlies.errors import BadIndex, BaseUnusable
from include.nightlies.records import builds
from include.nightlies.removal.undo import Replacement, Wish, undo
from include.nightlies.rules.links import LinkState
from include.nightlies.rules.states import State
from include.nightlies.steps.plan import plan_night
from tests.fakes.attempts import attempt
from tests.nights import FOLDER, Nights, base_of, build_of, night_of
from tests.site import FQRN

FULL = {"A": b"a" * 5000, "B": b"b" * 5000, "C": b"c" * 5000}


@pytest.fixture(params=["copy"])
def slots(nights: Nights, request: pytest.FixtureRequest) -> Nights:
    nights.with_slot("other").with_slot(partial=request.param, links={}, optional={"projects": ["Extra"]})
    nights.drop(2, FULL)
    nights.to_the_gate(night_of(2))
    return nights


def refused(nights: Nights, day: int, says: str) -> None:
    before = nights.revision
    with pytest.raises(BaseUnusable, match=says):
        plan_night(nights.site, attempt(), night_of(day))
    assert nights.revision == before
    assert builds.build(nights.site.ledger, "main", f"b202611{day:02}") is None


def read(nights: Nights, day: int) -> dict[str, bytes]:
    """What readers find of a build, links followed."""
    seen, found = nights.site.repository(FQRN), {}
    for project in ("A", "B", "C"):
        place = f"{FOLDER}/b202611{day:02}/{project}/x86_64"
        entry = seen.revision.lookup(place)
        if entry is not None and entry.is_symlink:
            place = f"{FOLDER}/{entry.symlink.removeprefix('../../')}"
        if entry is not None:
            found[project] = seen.revision.read(f"{place}/file")
    return found


def test_a_partial_base_that_has_not_taken_its_own_yet_is_named(slots: Nights) -> None:
    slots.drop(3, {"B": b"b3"}, **base_of(2))
    slots.publish_night(night_of(3, last=False))  # a pass of an open night: what it inherits comes with the last one
    slots.drop(4, {"C": b"c4"}, **base_of(3))
    refused(slots, 4, r"lacks 1 of its artifacts(.|\n)*A/x86_64: not taken from build b20261102 .* yet by b20261103")
    slots.to_the_gate(night_of(3, "night/last"))
    slots.to_the_gate(night_of(4))
    assert read(slots, 4) == {"A": FULL["A"], "B": b"b3", "C": b"c4"}


def test_what_the_base_itself_refused_is_missed_unless_it_is_optional_or_listed(slots: Nights) -> None:
    bad = build_of(3, {"A": b"a3", "B": b"b3", "C": b"c3", "Extra": b"x"})
    for name in ("C", "Extra"):
        bad.artifacts[f"{name}/x86_64"]["sha256"] = "nothing of the kind"
    slots.store_build(bad)
    slots.publish_night(night_of(3))
    slots.drop(4, {"B": b"b4"}, **base_of(3))
    refused(slots, 4, r"lacks 1 of its artifacts(.|\n)*C/x86_64: rejected: ")
    slots.drop(4, {"B": b"b4", "C": b"c4"}, **base_of(3))
    plan = plan_night(slots.site, attempt(), night_of(4))
    assert any("Extra/x86_64 is not taken from" in note for note in plan.notes)


@pytest.mark.parametrize("instead", list(Replacement))
def test_what_was_undone_of_the_base_is_named_with_who_did_it_and_why(slots: Nights, instead: Replacement) -> None:
    slots.drop(3, {"A": b"a3", "B": b"b3", "C": b"c3"})
    slots.to_the_gate(night_of(3))
    wish = Wish("main", "b20261103", "it crashes", projects=("A",), instead=instead)
    undo(slots.site, attempt("by hand/op", holder="op"), wish)
    slots.drop(4, {"B": b"b4"}, **base_of(3))
    refused(slots, 4, r"A/x86_64: undone at .* by by hand/op.*: it crashes")
    slots.drop(4, {"A": b"a4", "B": b"b4"}, **base_of(3))
    slots.to_the_gate(night_of(4))
    assert read(slots, 4) == {"A": b"a4", "B": b"b4", "C": b"c3"}


def test_a_base_of_another_slot_and_the_build_itself_are_none(slots: Nights) -> None:
    slots.store_build(build_of(3, {"A": b"a"}, slot="other"))
    slots.publish_night(night_of(3, "other/3", slot="other"))
    slots.drop(4, {"B": b"b4"}, **base_of(3))
    refused(slots, 4, "which the ledger does not have")
    slots.drop(4, {"B": b"b4"}, **base_of(4))
    with pytest.raises(BadIndex):
        plan_night(slots.site, attempt(), night_of(4))


def test_builds_that_name_each_other_end_and_take_what_there_is(slots: Nights) -> None:
    slots.drop(3, {"B": b"b3"}, **base_of(2))
    slots.to_the_gate(night_of(3))
    slots.drop(2, {"A": FULL["A"]}, **base_of(3))
    plan = plan_night(slots.site, attempt(), night_of(2, "night/circle"))
    assert plan.batches == ()
    assert {one.state for one in plan.settled} == {State.UNCHANGED}


@pytest.mark.parametrize("slots", ["copy", "link"], indirect=True)
def test_a_base_with_other_platforms_gives_all_of_them(slots: Nights) -> None:
    slots.drop(3, {"A": b"a", "A:arm": b"arm", "B": b"b"})
    slots.to_the_gate(night_of(3))
    slots.drop(4, {"A:riscv": b"new", "B": b"b4"}, **base_of(3))
    slots.to_the_gate(night_of(4))
    head = slots.head()
    assert {one.name for one in head.revision.listing(f"{FOLDER}/b20261104/A")} >= {"x86_64", "arm", "riscv"}
    assert slots.link_states(night_of(4)) == {LinkState.MOVED}
    slots.assert_whole()


@pytest.mark.parametrize("slots", ["copy", "link"], indirect=True)
def test_nothing_is_sent_and_a_base_that_is_rebuilt_leaves_a_copy_as_it_was(slots: Nights) -> None:
    slots.drop(3, {"B": b"b3"}, **base_of(2))
    before = slots.data_objects()
    slots.to_the_gate(night_of(3))
    assert len(slots.data_objects() - before) == 1
    for done in slots.publications("night/3"):
        assert (done.objects_new or 0) <= (2 if done.project == "B" else 1), done.project  # its catalog, and a file
    slots.link(night_of(3))
    assert read(slots, 3) == {**FULL, "B": b"b3"}
    slots.drop(2, {**FULL, "A": b"rebuilt"})
    slots.to_the_gate(night_of(2, "night/rebuilt"))
    by_copy = slots.site.settings.slot("main").partial == "copy"
    assert read(slots, 3)["A"] == (FULL["A"] if by_copy else b"rebuilt")
    slots.to_the_gate(night_of(3, "night/again"))
    assert read(slots, 3)["A"] == b"rebuilt"
    assert slots.link_states(night_of(3)) == {LinkState.UNCHANGED}
    assert slots.leads_to("latest") == f"{FOLDER}/b20261103"
    slots.assert_whole()
