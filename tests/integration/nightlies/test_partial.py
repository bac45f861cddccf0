"""Partial builds: what they do not list is taken from the build they name, and not a byte of it is sent again."""

from __future__ import annotations

import pytest

from include.cvmfs.errors import DestinationError
from include.nightlies.errors import BaseUnusable
from include.nightlies.records import builds
from include.nightlies.rules.links import LinkState
from include.nightlies.rules.states import State
from include.nightlies.steps.inherit import inherit_batch
from include.nightlies.steps.plan import plan_night
from tests.fakes.attempts import attempt
from tests.nights import FOLDER, Nights, base_of, night_of
from tests.site import FQRN, now

FULL = {"A": b"a" * 5000, "B": b"b" * 5000, "C": b"c" * 5000}


@pytest.fixture(params=["copy", "link"])
def slots(nights: Nights, request: pytest.FixtureRequest) -> Nights:
    return nights.with_slot(partial=request.param, links={})


@pytest.fixture
def partial(slots: Nights) -> Nights:
    """A whole build that is published, and the index of a partial one of the next day."""
    slots.drop(2, FULL)
    slots.to_the_gate(night_of(2))
    slots.drop(3, {"B": b"newer"}, **base_of(2))
    return slots


def test_a_chain_of_partial_builds_is_three_whole_stacks_and_sends_only_what_changed(slots: Nights) -> None:
    slots.drop(2, FULL)
    slots.to_the_gate(night_of(2))
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
    head = slots.site.repository(FQRN)
    place = f"{FOLDER}/b20261104"
    if slots.site.settings.slot("main").partial == "copy":
        for project, content in {"A": FULL["A"], "B": b"newer" * 1000, "C": b"newest" * 1000}.items():
            assert head.revision.read(f"{place}/{project}/x86_64/file") == content
    else:
        # the chain is not followed link by link: each leads to where the tree is
        assert head.revision.entry(f"{place}/A/x86_64").symlink == "../../b20261102/A/x86_64"
        assert head.revision.entry(f"{place}/B/x86_64").symlink == "../../b20261103/B/x86_64"
        assert head.revision.read(f"{place}/C/x86_64/file") == b"newest" * 1000
    assert slots.link_states(night_of(4)) == {LinkState.MOVED}
    assert slots.leads_to("latest") == place
    slots.assert_whole()


def test_the_same_partial_build_again_takes_nothing_and_makes_no_revision(partial: Nights) -> None:
    partial.to_the_gate(night_of(3))
    before = partial.revision
    plan = partial.plan_of(night_of(3, "night/again"))
    assert plan.inherited is None
    assert plan.batches == ()
    assert {one.state for one in plan.settled} == {State.UNCHANGED}
    assert partial.revision == before


@pytest.mark.parametrize("slots", ["copy"], indirect=True)
def test_what_stands_once_is_not_copied_again_under_another_revision_of_its_catalogs(partial: Nights) -> None:
    """The same tree at the same place has the same hash, so a copy that is made twice is the same objects."""
    partial.to_the_gate(night_of(3))
    head = partial.head()
    first = head.revision.nested_at(f"{FOLDER}/b20261103/A/x86_64")
    partial.site.publisher(FQRN).remove(f"{FOLDER}/b20261103/A/x86_64", holder="test", now=now())
    partial.to_the_gate(night_of(3, "night/again"))
    assert partial.head().revision.nested_at(f"{FOLDER}/b20261103/A/x86_64") == first


def test_a_base_that_is_missing_failed_or_not_complete_is_named_before_anything_is_changed(slots: Nights) -> None:
    slots.drop(3, {"B": b"newer"}, **base_of(2))

    def refused(says: str) -> None:
        before = slots.revision
        with pytest.raises(BaseUnusable, match=says):
            plan_night(slots.site, attempt(), night_of(3))
        assert slots.revision == before
        assert builds.build(slots.site.ledger, "main", "b20261103") is None

    refused("which the ledger does not have")
    slots.published(2, FULL, complete=False)
    refused("is not complete")
    slots.published(2, {**FULL, "D": b"d"}, "night/late", lost="D/x86_64")
    refused("lacks 1 of its artifacts(.|\n)*D/x86_64: failed: artifact D/x86_64: there is no")
    slots.drop(3, {"B": b"newer"}, partial=True, base={"build_id": "b20261102", "date": "2026-11-01"})
    refused("has for 2026-11-02")


def test_a_tree_that_goes_between_plan_and_taking_fails_that_one_with_its_reason(partial: Nights) -> None:
    plan = partial.plan_of(night_of(3))
    partial.site.publisher(FQRN).remove(f"{FOLDER}/b20261102/A/x86_64", holder="operator", now=now())
    assert plan.inherited is not None
    taken = inherit_batch(partial.site, attempt(), plan.inherited)
    assert [type(one) for one in taken.failures.values()] == [DestinationError]
    assert [one.project for one in taken.done] == ["C"]
    assert taken.failures["A/x86_64"].path == f"{FOLDER}/b20261102/A/x86_64"


def test_while_the_build_is_leased_the_taking_is_busy_and_goes_on_later(partial: Nights) -> None:
    plan = partial.plan_of(night_of(3))
    batch = plan.inherited
    assert batch is not None
    partial.publish(plan.batches[0])  # reserves the build's skeleton
    if partial.site.settings.slot("main").partial == "link":
        with partial.client() as client, client.lease(FQRN, f"{FOLDER}/b20261103", hostname="somebody"):
            assert set(inherit_batch(partial.site, attempt(), batch).busy) == {"A/x86_64", "C/x86_64"}
    taken = inherit_batch(partial.site, attempt(), batch)
    assert {one.state for one in taken.done} == {State.PUBLISHED}


def test_a_dry_run_says_what_would_be_taken_and_writes_nothing(partial: Nights) -> None:
    before, objects = partial.revision, {one.key for one in partial.store.list()}
    plan = partial.plan_of(night_of(3, "night/dry", dry_run=True))
    assert plan.inherited is not None
    taken = inherit_batch(partial.site, attempt(), plan.inherited)
    assert {one.state for one in taken.done} == {State.SKIPPED}
    assert all(one.reason.startswith("dry run: would") for one in taken.done)
    assert partial.revision == before
    assert {one.key for one in partial.store.list()} == objects
