"""Builds that are whole by the letter only: empty ones, ones of optional things alone, ones cut down or spoilt."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.nightlies.records import links as linked
from include.nightlies.rules.links import LinkState
from include.nightlies.steps.errors import GateClosed
from include.nightlies.steps.gate import gate
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.verify import tidy_run, verify_run
from tests.fakes.attempts import attempt
from tests.integration.nightlies.conftest import FQRN, Nights, missing
from tests.integration.nightlies.test_links import (
    FOLDER,
    MONDAY,
    SLOT,
    TUESDAY,
    build_of,
    leads_to,
    link,
    night_of,
    publish,
    whole_night,
    with_slots,
)


def slots(nights: Nights, folder: Path, more: str = "") -> Nights:
    return with_slots(nights, folder, SLOT.format(fqrn=FQRN) + more)


def last_reason(nights: Nights, name: str = "latest") -> str:
    return linked.history(nights.site.ledger, FQRN, f"{FOLDER}/{name}")[0].reason


def test_a_complete_index_that_lists_nothing_closes_the_gate_and_no_link_leads_to_nothing(
    nights: Nights, tmp_path: Path
) -> None:
    nights = slots(nights, tmp_path)
    build_of(MONDAY, {"A": b"1"}).store_in(nights.site.store("cvmfs"))
    whole_night(nights, night_of(MONDAY))
    build_of(TUESDAY, {}).store_in(nights.site.store("cvmfs"))
    night = night_of(TUESDAY)
    publish(nights, night)
    with pytest.raises(GateClosed) as closed:
        gate(nights.site, attempt(night.run), night=night)
    assert missing(closed.value) == ["build b20261103"]
    # even if somebody lets the links task run after that
    assert {one.state for one in link(nights, night).links} == {LinkState.STAYED}
    assert leads_to(nights, "latest") == f"{FOLDER}/b20261102"
    assert "nothing of it is" in last_reason(nights)


def test_optional_things_alone_make_a_build_if_they_are_there_and_none_if_all_of_them_failed(
    nights: Nights, tmp_path: Path
) -> None:
    nights = slots(nights, tmp_path)
    store = nights.site.store("cvmfs")
    build_of(MONDAY, {"A:dbg": b"1"}).store_in(store)
    assert {one.state for one in whole_night(nights, night_of(MONDAY)).links} == {LinkState.MOVED}
    build_of(TUESDAY, {"A:dbg": b"2"}).lose("A", "dbg").store_in(store)
    night = night_of(TUESDAY)
    plan = plan_night(nights.site, attempt(), night)
    for batch in plan.batches:
        nights.prepare(batch)
        nights.publish(batch)
    tidy_run(nights.site, attempt(), plan.batches)
    assert len(gate(nights.site, attempt(night.run), night=night).lacking) == 1
    assert {one.state for one in link(nights, night).links} == {LinkState.STAYED}
    assert leads_to(nights, "latest") == f"{FOLDER}/b20261102"


def test_a_required_platform_that_no_index_lists_is_missed_though_no_project_is_named(
    nights: Nights, tmp_path: Path
) -> None:
    nights = slots(nights, tmp_path, "    required: {platforms: [x86_64, riscv]}\n")
    build_of(MONDAY, {"A": b"1"}).store_in(nights.site.store("cvmfs"))
    night = night_of(MONDAY)
    publish(nights, night)
    verify_run(nights.site, attempt(night.run))
    with pytest.raises(GateClosed) as closed:
        gate(nights.site, attempt(night.run), night=night)
    assert missing(closed.value) == ["platform riscv"]
    assert {one.state for one in link(nights, night).links} == {LinkState.STAYED}
    assert "platform riscv: nothing of it is in the index" in last_reason(nights)


def test_what_is_listed_no_more_before_it_was_published_keeps_the_gate_shut_until_it_is_listed_again(
    nights: Nights, tmp_path: Path
) -> None:
    nights = slots(nights, tmp_path)
    store = nights.site.store("cvmfs")
    build_of(MONDAY, {"A": b"1", "B": b"2"}, complete=False).lose("B", "x86_64").store_in(store)
    publish(nights, night_of(MONDAY, "night/first"))
    build_of(MONDAY, {"A": b"1"}).store_in(store)
    night = night_of(MONDAY)
    publish(nights, night)
    verify_run(nights.site, attempt(night.run))
    with pytest.raises(GateClosed, match="B/x86_64: was listed before and is not any more") as closed:
        gate(nights.site, attempt(night.run), night=night)
    assert len(closed.value.missing) == 1
    assert leads_to(nights, "latest") == ""
    build_of(MONDAY, {"A": b"1", "B": b"2"}).store_in(store)
    whole_night(nights, night_of(MONDAY, "night/again"))
    assert leads_to(nights, "latest") == f"{FOLDER}/b20261102"


def test_what_is_listed_no_more_after_it_was_published_stays_and_the_build_is_whole(
    nights: Nights, tmp_path: Path
) -> None:
    nights = slots(nights, tmp_path)
    store = nights.site.store("cvmfs")
    build_of(MONDAY, {"A": b"1", "B": b"2"}, complete=False).store_in(store)
    first = night_of(MONDAY, "night/first")
    publish(nights, first)
    verify_run(nights.site, attempt(first.run))
    build_of(MONDAY, {"A": b"1"}).store_in(store)
    whole_night(nights, night_of(MONDAY))
    assert leads_to(nights, "latest") == f"{FOLDER}/b20261102"
    assert nights.site.head(FQRN).revision.read(f"{FOLDER}/b20261102/B/x86_64/file") == b"2"


def test_a_published_artifact_that_the_index_spoils_later_keeps_the_links_where_they_are(
    nights: Nights, tmp_path: Path
) -> None:
    nights = slots(nights, tmp_path)
    store = nights.site.store("cvmfs")
    build_of(MONDAY, {"A": b"1"}).store_in(store)
    whole_night(nights, night_of(MONDAY))
    build = build_of(TUESDAY, {"A": b"2", "B": b"3"})
    build.store_in(store)
    night = night_of(TUESDAY)
    publish(nights, night)
    verify_run(nights.site, attempt(night.run))
    twice = [*build.artifacts.values(), {**build.artifacts["B/x86_64"], "sha256": "0" * 64}]
    build.index["artifacts"] = twice
    build.store_in(store)
    again = night_of(TUESDAY, "night/spoilt")
    publish(nights, again)
    verify_run(nights.site, attempt(again.run))
    with pytest.raises(GateClosed) as closed:
        gate(nights.site, attempt(again.run), night=again)
    assert set(missing(closed.value)) == {"B/x86_64"}
    assert {one.state for one in link(nights, again).links} == {LinkState.STAYED}
    assert leads_to(nights, "latest") == f"{FOLDER}/b20261102"
    assert nights.site.head(FQRN).revision.read(f"{FOLDER}/b20261103/B/x86_64/file") == b"3"


def test_a_rebuild_that_fails_leaves_the_tree_and_the_links_as_they_were(nights: Nights, tmp_path: Path) -> None:
    nights = slots(nights, tmp_path)
    store = nights.site.store("cvmfs")
    build_of(MONDAY, {"A": b"1"}).store_in(store)
    whole_night(nights, night_of(MONDAY))
    rebuilt = build_of(TUESDAY, {"A": b"2"})
    rebuilt.store_in(store)
    night = night_of(TUESDAY)
    publish(nights, night)
    verify_run(nights.site, attempt(night.run))
    broken = build_of(TUESDAY, {"A": b"rebuilt and cut"})
    broken.artifacts["A/x86_64"]["size"] += 1
    broken.store_in(store)
    again = night_of(TUESDAY, "night/broken")
    publish(nights, again)
    verify_run(nights.site, attempt(again.run))
    with pytest.raises(GateClosed) as closed:
        gate(nights.site, attempt(again.run), night=again)
    assert missing(closed.value) == ["A/x86_64"]
    assert {one.state for one in link(nights, night).links} == {LinkState.STAYED}, "a cleared task of the first run"
    assert leads_to(nights, "latest") == f"{FOLDER}/b20261102"
    assert nights.site.head(FQRN).revision.read(f"{FOLDER}/b20261103/A/x86_64/file") == b"2"
