"""Partial builds: what they do not list is taken from the build they name, and not a byte of it is sent again."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from include.cvmfs.errors import DestinationError
from include.nightlies.errors import BaseUnusable
from include.nightlies.records import builds
from include.nightlies.rules.links import LinkState
from include.nightlies.rules.states import State
from include.nightlies.steps.gate import gate
from include.nightlies.steps.inherit import inherit_batch
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.publish import PublishOutcome
from include.nightlies.steps.values import Night
from include.nightlies.steps.verify import verify_run
from tests.fakes.attempts import attempt
from tests.integration.nightlies.conftest import FQRN, Nights, now
from tests.integration.nightlies.test_links import build_of, leads_to, link, night_of, publish, revision, with_slots

FOLDER = "/nightlies/main"
SLOT = "slots:\n  main: {{repository: {fqrn}, store: cvmfs, partial: {partial}, links: {{}}}}\n"
FULL = {"A": b"a" * 5000, "B": b"b" * 5000, "C": b"c" * 5000}


@pytest.fixture(params=["copy", "link"])
def slots(nights: Nights, tmp_path: Path, request: pytest.FixtureRequest) -> Nights:
    return with_slots(nights, tmp_path, SLOT.format(fqrn=FQRN, partial=request.param))


def base_of(day: int) -> dict[str, object]:
    return {"partial": True, "base": {"build_id": f"b202611{day:02}", "date": f"2026-11-{day:02}"}}


def run(nights: Nights, night: Night) -> PublishOutcome | None:
    """A night to its gate; what it took from another build."""
    plan = plan_night(nights.site, attempt(), night, max_mapped=1)
    taken = None
    if plan.inherited is not None:
        taken = inherit_batch(nights.site, attempt(), plan.inherited)
        assert not taken.failures
        assert not taken.busy
    for batch in plan.batches:
        nights.prepare(batch)
        assert not nights.publish(batch).failures
    verify_run(nights.site, attempt(night.run))
    gate(nights.site, attempt(night.run), night=night)
    return taken


def data_objects(nights: Nights) -> set[str]:
    """What is stored beside catalogs, histories and meta data."""
    return {one.key for one in nights.store.list() if one.key.startswith("data/") and one.key[-1] not in "CHXM"}


def test_a_chain_of_partial_builds_is_three_whole_stacks_and_sends_only_what_changed(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    build_of(2, FULL).store_in(store)
    run(slots, night_of(2))
    before = data_objects(slots)
    build_of(3, {"B": b"newer" * 1000}, **base_of(2)).store_in(store)
    taken = run(slots, night_of(3))
    assert taken is not None
    assert sorted(f"{one.project}: {one.state.value}" for one in taken.done) == ["A: published", "C: published"]
    assert all("inherited" in one.reason for one in taken.done)
    assert len(data_objects(slots) - before) == 1
    build_of(4, {"C": b"newest" * 1000}, **base_of(3)).store_in(store)
    run(slots, night_of(4))
    assert len(data_objects(slots) - before) == 2
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
    done = link(slots, night_of(4))
    assert {one.state for one in done.links} == {LinkState.MOVED}
    assert leads_to(slots, "latest") == place
    assert slots.check().problems == ()


def test_the_same_partial_build_again_takes_nothing_and_makes_no_revision(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    build_of(2, FULL).store_in(store)
    run(slots, night_of(2))
    build_of(3, {"B": b"newer"}, **base_of(2)).store_in(store)
    run(slots, night_of(3))
    before = revision(slots)
    plan = plan_night(slots.site, attempt(), night_of(3, "night/again"), max_mapped=1)
    assert plan.inherited is None
    assert plan.batches == ()
    assert {one.state for one in plan.settled} == {State.UNCHANGED}
    assert revision(slots) == before


@pytest.mark.parametrize("slots", ["copy"], indirect=True)
def test_what_stands_once_is_not_copied_again_under_another_revision_of_its_catalogs(slots: Nights) -> None:
    """The same tree at the same place has the same hash, so a copy that is made twice is the same objects."""
    store = slots.site.store("cvmfs")
    build_of(2, FULL).store_in(store)
    run(slots, night_of(2))
    build_of(3, {"B": b"newer"}, **base_of(2)).store_in(store)
    run(slots, night_of(3))
    head = slots.site.head(FQRN)
    first = head.revision.nested_at(f"{FOLDER}/b20261103/A/x86_64")
    slots.site.publisher(FQRN).remove(f"{FOLDER}/b20261103/A/x86_64", holder="test", now=now())
    run(slots, night_of(3, "night/again"))
    assert slots.site.head(FQRN).revision.nested_at(f"{FOLDER}/b20261103/A/x86_64") == first


def test_a_base_that_is_missing_failed_or_not_complete_is_named_before_anything_is_changed(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    build_of(3, {"B": b"newer"}, **base_of(2)).store_in(store)

    def refused(says: str) -> None:
        before = revision(slots)
        with pytest.raises(BaseUnusable, match=says):
            plan_night(slots.site, attempt(), night_of(3))
        assert revision(slots) == before
        assert builds.build(slots.site.ledger, "main", "b20261103") is None

    refused("which the ledger does not have")
    build_of(2, FULL, complete=False).store_in(store)
    publish(slots, night_of(2))
    refused("is not complete")
    build_of(2, {**FULL, "D": b"d"}).lose("D", "x86_64").store_in(store)
    publish(slots, night_of(2, "night/late"))
    refused("lacks 1 of its artifacts(.|\n)*D/x86_64: failed: artifact D/x86_64: there is no")
    build_of(3, {"B": b"newer"}, partial=True, base={"build_id": "b20261102", "date": "2026-11-01"}).store_in(store)
    refused("has for 2026-11-02")


def test_a_tree_that_goes_between_plan_and_taking_fails_that_one_with_its_reason(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    build_of(2, FULL).store_in(store)
    run(slots, night_of(2))
    build_of(3, {"B": b"newer"}, **base_of(2)).store_in(store)
    plan = plan_night(slots.site, attempt(), night_of(3), max_mapped=1)
    slots.site.publisher(FQRN).remove(f"{FOLDER}/b20261102/A/x86_64", holder="operator", now=now())
    assert plan.inherited is not None
    taken = inherit_batch(slots.site, attempt(), plan.inherited)
    assert [type(one) for one in taken.failures.values()] == [DestinationError]
    assert [one.project for one in taken.done] == ["C"]
    assert taken.failures["A/x86_64"].path == f"{FOLDER}/b20261102/A/x86_64"


def test_while_the_build_is_leased_the_taking_is_busy_and_goes_on_later(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    build_of(2, FULL).store_in(store)
    run(slots, night_of(2))
    build_of(3, {"B": b"newer"}, **base_of(2)).store_in(store)
    plan = plan_night(slots.site, attempt(), night_of(3), max_mapped=1)
    batch = plan.inherited
    assert batch is not None
    nights, linked = slots, slots.site.settings.slot("main").partial == "link"
    nights.publish(plan.batches[0])  # reserves the build's skeleton
    with slots.client() as client, client.lease(FQRN, f"{FOLDER}/b20261103", hostname="somebody"):
        if linked:
            assert set(inherit_batch(slots.site, attempt(), batch).busy) == {
                "A/x86_64", "C/x86_64",
            }  # fmt: skip
    taken = inherit_batch(slots.site, attempt(), batch)
    assert {one.state for one in taken.done} == {State.PUBLISHED}


def test_a_dry_run_says_what_would_be_taken_and_writes_nothing(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    build_of(2, FULL).store_in(store)
    run(slots, night_of(2))
    build_of(3, {"B": b"newer"}, **base_of(2)).store_in(store)
    before, objects = revision(slots), {one.key for one in slots.store.list()}
    night = Night("night/dry", "main", date(2026, 11, 3), "test", dry_run=True)
    plan = plan_night(slots.site, attempt(), night)
    assert plan.inherited is not None
    taken = inherit_batch(slots.site, attempt(), plan.inherited)
    assert {one.state for one in taken.done} == {State.SKIPPED}
    assert all(one.reason.startswith("dry run: would") for one in taken.done)
    assert revision(slots) == before
    assert {one.key for one in slots.store.list()} == objects
