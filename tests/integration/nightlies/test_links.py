"""Links and tags of builds on a real store and gateway: forward only, to what is whole only, always with a reason."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from include.cvmfs.errors import DestinationError
from include.nightlies.records import links as linked
from include.nightlies.rules.links import LinkState
from include.nightlies.steps.errors import GateClosed
from include.nightlies.steps.gate import gate
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.values import Night
from include.nightlies.steps.verify import tidy_run
from include.site.single_changes import linking
from tests.fakes.attempts import attempt
from tests.fakes.together import together
from tests.nights import FOLDER, LINKED, Nights, build_of, night_of
from tests.site import FQRN, now

MONDAY, TUESDAY, NEXT_MONDAY = 2, 3, 9


@pytest.fixture
def slots(nights: Nights) -> Nights:
    return nights.with_slot(**LINKED)


def test_a_whole_build_gets_both_links_and_its_name_in_one_revision_and_again_nothing(slots: Nights) -> None:
    slots.drop(MONDAY, {"A": b"1", "B": b"2"})
    night = night_of(MONDAY)
    slots.publish_night(night)
    before = slots.revision
    done = slots.link(night)
    assert slots.revision == before + 1 == done.revision
    assert {one.path: one.state for one in done.links} == {
        f"{FOLDER}/latest": LinkState.MOVED, f"{FOLDER}/Mon": LinkState.MOVED,
    }  # fmt: skip
    assert slots.leads_to("latest") == slots.leads_to("Mon") == f"{FOLDER}/b20261102"
    head = slots.head()
    assert head.tag("main-b20261102").revision == done.revision
    again = slots.link(night)
    assert slots.revision == before + 1
    assert {one.state for one in again.links} == {LinkState.UNCHANGED}
    assert again.tag is not None
    assert again.tag.state is LinkState.UNCHANGED
    slots.assert_whole()


def test_a_backfill_moves_no_link_back_and_names_its_own_revision(slots: Nights) -> None:
    for day in (NEXT_MONDAY, MONDAY, TUESDAY):
        slots.drop(day, {"A": str(day).encode()})
        done = slots.whole_night(night_of(day))
        assert slots.leads_to("latest") == f"{FOLDER}/b20261109"
    assert slots.leads_to("Mon") == f"{FOLDER}/b20261109"
    assert slots.leads_to("Tue") == f"{FOLDER}/b20261103"
    latest, tuesday = done.links
    assert (latest.state, tuesday.state) == (LinkState.STAYED, LinkState.MOVED)
    assert "build b20261109 of 2026-11-09 already, which is later" in latest.reason
    record = linked.history(slots.site.ledger, FQRN, f"{FOLDER}/latest")
    assert [(one.build_id, one.state) for one in record] == [
        ("b20261103", "stayed"), ("b20261102", "stayed"), ("b20261109", "moved"),
    ]  # fmt: skip
    names = {one.name for one in slots.head().tags()}
    assert names >= {"main-b20261102", "main-b20261103", "main-b20261109"}


def test_what_is_required_and_missing_keeps_the_links_and_what_is_optional_does_not(slots: Nights) -> None:
    slots.drop(MONDAY, {"A": b"1"})
    slots.whole_night(night_of(MONDAY))
    slots.drop(TUESDAY, {"A": b"2", "A:dbg": b"3"}, lost="A/dbg")
    night = night_of(TUESDAY)
    slots.publish_night(night)
    passed = slots.gate(night)
    assert len(passed.lacking) == 1
    assert "A/dbg: failed" in passed.lacking[0]
    assert {one.state for one in slots.link(night).links} == {LinkState.MOVED}

    slots.drop(NEXT_MONDAY, {"A": b"4", "B": b"5"}, lost="B/x86_64")
    late = night_of(NEXT_MONDAY)
    slots.publish_night(late)
    assert slots.missing(late) == ["B/x86_64"]
    assert slots.leads_to("latest") == f"{FOLDER}/b20261103"
    assert slots.leads_to("Mon") == f"{FOLDER}/b20261102"
    for name in ("latest", "Mon"):
        record = linked.history(slots.site.ledger, FQRN, f"{FOLDER}/{name}")[0]
        assert (record.state, "B/x86_64: failed" in record.reason) == ("stayed", True)
    # even if somebody asks for the links without the gate
    assert {one.state for one in slots.link(late).links} == {LinkState.STAYED}
    # what was missing comes, in a run of its own
    slots.drop(NEXT_MONDAY, {"A": b"4", "B": b"5"})
    slots.whole_night(night_of(NEXT_MONDAY, "night/late"))
    assert slots.leads_to("latest") == slots.leads_to("Mon") == f"{FOLDER}/b20261109"


def test_a_run_without_what_failed_moves_the_links_and_only_it_does(slots: Nights) -> None:
    slots.drop(MONDAY, {"A": b"1", "B": b"2"}, lost="B/x86_64")
    night = night_of(MONDAY)
    slots.publish_night(night)
    assert slots.missing(replace(night, without=("C/x86_64", "B/dbg"))) == ["B/x86_64"]
    without = Night.from_json(replace(night, without=("B/x86_64",)).to_json())
    passed = gate(slots.site, attempt(night.run), night=without)
    assert [line.partition(":")[0] for line in passed.lacking] == ["B/x86_64"]
    assert {one.state for one in slots.link(without).links} == {LinkState.MOVED}
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"


def test_a_link_of_somebody_else_is_left_alone_with_the_reason(slots: Nights) -> None:
    by_hand = slots.site
    build_of(MONDAY, {"A": b"1"}).store_in(by_hand.store("cvmfs"))
    night = night_of(MONDAY)
    slots.publish_night(night)
    change = linking(f"{FOLDER}/latest", "of-somebody", now=now())
    change.commit(by_hand, FQRN, holder="operator", now=now())
    latest, monday = slots.link(night).links
    assert (latest.state, monday.state) == (LinkState.STAYED, LinkState.MOVED)
    assert "/nightlies/main/of-somebody, which is no build in the ledger" in latest.reason
    assert slots.leads_to("latest") == "/nightlies/main/of-somebody"


def test_beside_somebody_who_publishes_below_the_folder_the_links_are_set_one_by_one(slots: Nights) -> None:
    slots.drop(MONDAY, {"A": b"1"})
    night = night_of(MONDAY)
    slots.publish_night(night)
    before = slots.revision
    with slots.client() as client, client.lease(FQRN, f"{FOLDER}/b20261102/A/x86_64", hostname="somebody"):
        done = slots.link(night)
    assert slots.revision == before + 2
    assert {one.state for one in done.links} == {LinkState.MOVED}
    assert slots.head().tag("main-b20261102").revision == before + 2


def test_runs_of_two_builds_that_end_in_one_moment_leave_the_links_at_the_later(slots: Nights) -> None:
    nights = [night_of(day) for day in (MONDAY, TUESDAY)]
    for night in nights:
        slots.drop(night.date.day, {"A": night.run.encode()})
        slots.publish_night(night)
    failed: list[Exception] = []

    def run(night: Night) -> None:
        for _ in range(50):
            try:
                slots.link(night)
            except Exception as error:  # noqa: BLE001 - a busy path is tried again, as the operator does
                if not getattr(error, "retryable", False):
                    failed.append(error)
                    return
            else:
                return

    together(partial(run, night) for night in nights)
    assert failed == []
    assert slots.leads_to("latest") == f"{FOLDER}/b20261103"
    assert slots.leads_to("Mon") == f"{FOLDER}/b20261102"
    slots.assert_whole()


def test_a_night_replaces_no_tree_that_no_run_published(slots: Nights) -> None:
    slots.drop(MONDAY, {"A": b"1"})
    slots.publish_night(night_of(MONDAY))
    place = f"{FOLDER}/b20261102/A/x86_64"
    linking(f"{place}/by-hand", "x", now=now()).commit(slots.site, FQRN, holder="operator", now=now())
    slots.drop(MONDAY, {"A": b"rebuilt"})
    plan = slots.plan_of(night_of(MONDAY, "night/rebuilt"))
    failure = slots.prepare(plan.batches[0]).failures["A/x86_64"]
    assert isinstance(failure, DestinationError)
    assert failure.path == place


def test_a_rebuilt_artifact_replaces_the_tree_in_one_revision_and_the_links_stay_right(slots: Nights) -> None:
    slots.drop(MONDAY, {"A": b"1", "B": b"2"})
    slots.whole_night(night_of(MONDAY))
    before = slots.revision
    slots.drop(MONDAY, {"A": b"rebuilt", "B": b"2"})
    done = slots.whole_night(night_of(MONDAY, "night/rebuilt"))
    assert slots.revision == before + 1
    assert {one.state for one in done.links} == {LinkState.UNCHANGED}
    head = slots.head()
    assert head.revision.read(f"{FOLDER}/b20261102/A/x86_64/file") == b"rebuilt"
    old = head.at("main-b20261102")
    assert old.read(f"{FOLDER}/b20261102/A/x86_64/file") == b"1"
    slots.assert_whole()


# -- builds that are whole by the letter only: empty ones, ones of optional things alone, ones cut down or spoilt


def last_reason(slots: Nights, name: str = "latest") -> str:
    return linked.history(slots.site.ledger, FQRN, f"{FOLDER}/{name}")[0].reason


def test_a_complete_index_that_lists_nothing_closes_the_gate_and_no_link_leads_to_nothing(slots: Nights) -> None:
    slots.drop(MONDAY, {"A": b"1"})
    slots.whole_night(night_of(MONDAY))
    slots.drop(TUESDAY, {})
    night = night_of(TUESDAY)
    slots.publish_night(night)
    assert slots.missing(night) == ["build b20261103"]
    # even if somebody lets the links task run after that
    assert {one.state for one in slots.link(night).links} == {LinkState.STAYED}
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"
    assert "nothing of it is" in last_reason(slots)


def test_optional_things_alone_make_a_build_if_they_are_there_and_none_if_all_of_them_failed(slots: Nights) -> None:
    slots.drop(MONDAY, {"A:dbg": b"1"})
    assert {one.state for one in slots.whole_night(night_of(MONDAY)).links} == {LinkState.MOVED}
    slots.drop(TUESDAY, {"A:dbg": b"2"}, lost="A/dbg")
    night = night_of(TUESDAY)
    plan = plan_night(slots.site, attempt(), night)
    for batch in plan.batches:
        slots.prepare(batch)
        slots.publish(batch)
    tidy_run(slots.site, attempt(), plan.batches)
    assert len(slots.gate(night).lacking) == 1
    assert {one.state for one in slots.link(night).links} == {LinkState.STAYED}
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"


def test_a_required_platform_that_no_index_lists_is_missed_though_no_project_is_named(slots: Nights) -> None:
    slots.with_slot(**LINKED, required={"platforms": ["x86_64", "riscv"]})
    slots.drop(MONDAY, {"A": b"1"})
    night = night_of(MONDAY)
    slots.publish_night(night)
    assert slots.missing(night) == ["platform riscv"]
    assert {one.state for one in slots.link(night).links} == {LinkState.STAYED}
    assert "platform riscv: nothing of it is in the index" in last_reason(slots)


def test_what_is_listed_no_more_before_it_was_published_keeps_the_gate_shut_until_it_is(slots: Nights) -> None:
    slots.drop(MONDAY, {"A": b"1", "B": b"2"}, complete=False, lost="B/x86_64")
    slots.publish_night(night_of(MONDAY, "night/first"))
    slots.drop(MONDAY, {"A": b"1"})
    night = night_of(MONDAY)
    slots.publish_night(night)
    with pytest.raises(GateClosed, match="B/x86_64: is no longer listed") as closed:
        slots.gate(night)
    assert len(closed.value.missing) == 1
    assert slots.leads_to("latest") == ""
    slots.drop(MONDAY, {"A": b"1", "B": b"2"})
    slots.whole_night(night_of(MONDAY, "night/again"))
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"


def test_what_is_listed_no_more_after_it_was_published_stays_and_the_build_is_whole(slots: Nights) -> None:
    slots.drop(MONDAY, {"A": b"1", "B": b"2"}, complete=False)
    first = night_of(MONDAY, "night/first")
    slots.publish_night(first)
    slots.drop(MONDAY, {"A": b"1"})
    slots.whole_night(night_of(MONDAY))
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"
    assert slots.head().revision.read(f"{FOLDER}/b20261102/B/x86_64/file") == b"2"


def test_a_published_artifact_that_the_index_spoils_later_keeps_the_links_where_they_are(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    slots.drop(MONDAY, {"A": b"1"})
    slots.whole_night(night_of(MONDAY))
    build = build_of(TUESDAY, {"A": b"2", "B": b"3"})
    build.store_in(store)
    night = night_of(TUESDAY)
    slots.publish_night(night)
    twice = [*build.artifacts.values(), {**build.artifacts["B/x86_64"], "sha256": "0" * 64}]
    build.index["artifacts"] = twice
    build.store_in(store)
    again = night_of(TUESDAY, "night/spoilt")
    slots.publish_night(again)
    assert set(slots.missing(again)) == {"B/x86_64"}
    assert {one.state for one in slots.link(again).links} == {LinkState.STAYED}
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"
    assert slots.head().revision.read(f"{FOLDER}/b20261103/B/x86_64/file") == b"3"


def test_a_rebuild_that_fails_leaves_the_tree_and_the_links_as_they_were(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    slots.drop(MONDAY, {"A": b"1"})
    slots.whole_night(night_of(MONDAY))
    rebuilt = build_of(TUESDAY, {"A": b"2"})
    rebuilt.store_in(store)
    night = night_of(TUESDAY)
    slots.publish_night(night)
    broken = build_of(TUESDAY, {"A": b"rebuilt and cut"})
    broken.artifacts["A/x86_64"]["size"] += 1
    broken.store_in(store)
    again = night_of(TUESDAY, "night/broken")
    slots.publish_night(again)
    assert slots.missing(again) == ["A/x86_64"]
    assert {one.state for one in slots.link(night).links} == {LinkState.STAYED}, "a cleared task of the first run"
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"
    assert slots.head().revision.read(f"{FOLDER}/b20261103/A/x86_64/file") == b"2"
