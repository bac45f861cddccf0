"""Partial builds: what they do not list is taken from the build they name, and not a byte of it is sent again.

Their bases may not be what they should be: not whole, partial themselves, undone, rebuilt, of another slot.
"""

from __future__ import annotations

import pytest

from include.cvmfs.errors import DestinationError
from include.nightlies.errors import BadIndex, BaseUnusable
from include.nightlies.records import builds
from include.nightlies.removal.undo import Replacement, undo
from include.nightlies.rules.build import LinkState
from include.nightlies.rules.publication import State
from include.nightlies.steps.inherit import inherit_batch
from tests.fakes.attempts import attempt
from tests.integration.nightlies.conftest import Once
from tests.nights import FOLDER, Nights, base_of, build_of, night_of, wish
from tests.site import FQRN, now

FULL = {"A": b"a" * 5000, "B": b"b" * 5000, "C": b"c" * 5000}
BOTH = pytest.mark.parametrize("slots", ["copy", "link"], indirect=True)


@pytest.fixture(params=["copy"])
def slots(nights: Nights, once: Once, request: pytest.FixtureRequest) -> Nights:
    """A whole build of the second, taken over by copies or by links."""
    nights.with_slot("other").with_slot(partial=request.param, links={}, optional={"projects": ["Extra"]})
    once("partial", lambda: nights.drop(2, FULL) and nights.to_the_gate(night_of(2)))
    return nights


@pytest.fixture
def partial(slots: Nights) -> Nights:
    """And the index of a partial one of the next day."""
    slots.drop(3, {"B": b"newer"}, **base_of(2))
    return slots


def refused(nights: Nights, day: int, says: str) -> None:
    before = nights.revision
    with pytest.raises(BaseUnusable, match=says):
        nights.plan_of(night_of(day))
    assert nights.revision == before
    assert builds.build(nights.site.ledger, "main", f"b202611{day:02}") is None


def read(nights: Nights, day: int) -> dict[str, bytes]:
    """A build as readers find it, links followed."""
    seen, found = nights.site.repository(FQRN), {}
    for project in ("A", "B", "C"):
        place = f"{FOLDER}/b202611{day:02}/{project}/x86_64"
        entry = seen.revision.lookup(place)
        if entry is not None and entry.is_symlink:
            place = f"{FOLDER}/{entry.symlink.removeprefix('../../')}"
        if entry is not None:
            found[project] = seen.revision.read(f"{place}/file")
    return found


@BOTH
def test_a_chain_of_partial_builds_is_three_whole_stacks_and_sends_only_what_changed(slots: Nights) -> None:
    before = slots.data_objects()
    slots.drop(3, {"B": b"newer" * 1000}, **base_of(2))
    taken = slots.to_the_gate(night_of(3))
    assert taken is not None
    assert sorted(f"{one.project}: {one.state.value}" for one in taken.done) == ["A: published", "C: published"]
    assert all("inherited" in one.reason for one in taken.done)
    assert len(slots.data_objects() - before) == 1
    slots.drop(4, {"C": b"newest" * 1000}, **base_of(3))
    slots.to_the_gate(night_of(4))
    assert len(slots.data_objects() - before) == 2
    assert read(slots, 4) == {"A": FULL["A"], "B": b"newer" * 1000, "C": b"newest" * 1000}
    if slots.site.settings.slot("main").partial == "link":
        # the chain is not followed link by link: each leads to where the tree is
        tree, place = slots.head().revision, f"{FOLDER}/b20261104"
        assert tree.entry(f"{place}/A/x86_64").symlink == "../../b20261102/A/x86_64"
        assert tree.entry(f"{place}/B/x86_64").symlink == "../../b20261103/B/x86_64"
    assert slots.link_states(night_of(4)) == {LinkState.MOVED}
    assert slots.leads_to("latest") == f"{FOLDER}/b20261104"
    slots.assert_whole()


@BOTH
def test_the_same_partial_build_again_takes_nothing_and_makes_no_revision(partial: Nights) -> None:
    partial.to_the_gate(night_of(3))
    before = partial.revision
    plan = partial.plan_of(night_of(3, "night/again"))
    assert plan.inherited is None
    assert plan.batches == ()
    assert {one.state for one in plan.settled} == {State.UNCHANGED}
    assert partial.revision == before


def test_what_stands_once_is_not_copied_again_under_another_revision_of_its_catalogs(partial: Nights) -> None:
    """The same tree at the same place has the same hash, so a copy that is made twice is the same objects."""
    partial.to_the_gate(night_of(3))
    head = partial.head()
    first = head.revision.nested_at(f"{FOLDER}/b20261103/A/x86_64")
    partial.site.publisher(FQRN).remove(f"{FOLDER}/b20261103/A/x86_64", holder="test", now=now())
    partial.to_the_gate(night_of(3, "night/again"))
    assert partial.head().revision.nested_at(f"{FOLDER}/b20261103/A/x86_64") == first


@BOTH
def test_a_tree_that_goes_between_plan_and_taking_fails_that_one_with_its_reason(partial: Nights) -> None:
    plan = partial.plan_of(night_of(3))
    partial.site.publisher(FQRN).remove(f"{FOLDER}/b20261102/A/x86_64", holder="operator", now=now())
    assert plan.inherited is not None
    taken = inherit_batch(partial.site, attempt(), plan.inherited)
    assert [type(one) for one in taken.failures.values()] == [DestinationError]
    assert [one.project for one in taken.done] == ["C"]
    assert taken.failures["A/x86_64"].path == f"{FOLDER}/b20261102/A/x86_64"


@pytest.mark.parametrize("slots", ["link"], indirect=True)
def test_while_the_build_is_leased_the_taking_is_busy_and_goes_on_later(partial: Nights) -> None:
    plan = partial.plan_of(night_of(3))
    batch = plan.inherited
    assert batch is not None
    partial.publish(plan.batches[0])  # reserves the build's skeleton
    with partial.client() as client, client.lease(FQRN, f"{FOLDER}/b20261103", hostname="somebody"):
        assert set(inherit_batch(partial.site, attempt(), batch).busy) == {"A/x86_64", "C/x86_64"}
    taken = inherit_batch(partial.site, attempt(), batch)
    assert {one.state for one in taken.done} == {State.PUBLISHED}


@BOTH
def test_a_dry_run_says_what_would_be_taken_and_writes_nothing(partial: Nights) -> None:
    before, objects = partial.revision, {one.key for one in partial.store.list()}
    plan = partial.plan_of(night_of(3, "night/dry", dry_run=True))
    assert plan.inherited is not None
    taken = inherit_batch(partial.site, attempt(), plan.inherited)
    assert {one.state for one in taken.done} == {State.SKIPPED}
    assert all(one.reason.startswith("dry run: would") for one in taken.done)
    assert partial.revision == before
    assert {one.key for one in partial.store.list()} == objects


# -- bases


def test_a_base_that_is_missing_failed_or_not_complete_is_named_before_anything_is_changed(nights: Nights) -> None:
    nights.with_slot(partial="copy")
    nights.drop(3, {"B": b"newer"}, **base_of(2))
    refused(nights, 3, "which the ledger does not have")
    nights.published(2, FULL, complete=False)
    refused(nights, 3, "is not complete")
    nights.published(2, {**FULL, "D": b"d"}, "night/late", lost="D/x86_64")
    refused(nights, 3, "lacks 1 of its artifacts(.|\n)*D/x86_64: failed: artifact D/x86_64: there is no")
    nights.drop(3, {"B": b"newer"}, partial=True, base={"build_id": "b20261102", "date": "2026-11-01"})
    refused(nights, 3, "has for 2026-11-02")


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
    plan = slots.plan_of(night_of(4))
    assert any("Extra/x86_64 is not taken from" in note for note in plan.notes)


@pytest.mark.parametrize("instead", list(Replacement))
def test_what_was_undone_of_the_base_is_named_with_who_did_it_and_why(slots: Nights, instead: Replacement) -> None:
    slots.drop(3, {"A": b"a3", "B": b"b3", "C": b"c3"})
    slots.to_the_gate(night_of(3))
    undo(slots.site, attempt("by hand/op", holder="op"), wish(projects=("A",), instead=instead))
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
        slots.plan_of(night_of(4))


def test_builds_that_name_each_other_end_and_take_what_there_is(slots: Nights) -> None:
    slots.drop(3, {"B": b"b3"}, **base_of(2))
    slots.to_the_gate(night_of(3))
    slots.drop(2, {"A": FULL["A"]}, **base_of(3))
    plan = slots.plan_of(night_of(2, "night/circle"))
    assert plan.batches == ()
    assert {one.state for one in plan.settled} == {State.UNCHANGED}


@BOTH
def test_a_base_with_other_platforms_gives_all_of_them(slots: Nights) -> None:
    slots.drop(3, {"A": b"a", "A:arm": b"arm", "B": b"b"})
    slots.to_the_gate(night_of(3))
    slots.drop(4, {"A:riscv": b"new", "B": b"b4"}, **base_of(3))
    slots.to_the_gate(night_of(4))
    head = slots.head()
    assert {one.name for one in head.revision.listing(f"{FOLDER}/b20261104/A")} >= {"x86_64", "arm", "riscv"}
    assert slots.link_states(night_of(4)) == {LinkState.MOVED}
    slots.assert_whole()


@BOTH
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
