"""Links and tags of builds on a real store and gateway: forward only, to what is whole only, always with a reason."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from include.cvmfs.errors import DestinationError
from include.cvmfs.format.paths import link_target
from include.nightlies.records import builds
from include.nightlies.records import links as linked
from include.nightlies.rules.links import LinkState
from include.nightlies.steps.errors import GateClosed
from include.nightlies.steps.gate import gate
from include.nightlies.steps.links import Linked, link_night
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.values import Night
from include.nightlies.steps.verify import verify_run
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.single_changes import linking
from include.site.site import Site
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.integration.nightlies.conftest import FQRN, Nights, missing, now

SLOT = """
slots:
  main:
    repository: {fqrn}
    store: cvmfs
    links: {{}}
    tag: "{{slot}}-{{build_id}}"
    optional: {{platforms: [dbg]}}
"""
FOLDER = "/nightlies/main"
MONDAY, TUESDAY, NEXT_MONDAY = 2, 3, 9


@pytest.fixture
def slots(nights: Nights, tmp_path: Path) -> Nights:
    """The same site, its slot with links, a tag, and an optional platform."""
    return with_slots(nights, tmp_path, SLOT.format(fqrn=FQRN))


def with_slots(nights: Nights, folder: Path, block: str) -> Nights:
    file = folder / "site.yaml"
    file.write_text(file.read_text().partition("slots:")[0] + block)
    nights.site.ledger.dispose()
    return Nights(Site(load(), EnvSecrets()), nights.environment)


def night_of(day: int, run: str = "") -> Night:
    return Night(run or f"night/{day}", "main", date(2026, 11, day), "test")


def build_of(day: int, projects: Mapping[str, bytes], **index: object) -> Build:
    """A build of these projects; `A:dbg` is another platform."""
    build = Build(f"2026-11-{day:02}", index=dict(index))
    for name, content in projects.items():
        project, _, platform = name.partition(":")
        build.add(project, platform or "x86_64", tree({"file": content}))
    return build


def whole_night(nights: Nights, night: Night) -> Linked:
    """All steps of a night in their order; what became of its links."""
    publish(nights, night)
    verify_run(nights.site, attempt(night.run))
    gate(nights.site, attempt(night.run), night=night)
    return link(nights, night)


def publish(nights: Nights, night: Night) -> None:
    plan = plan_night(nights.site, attempt(), night, max_mapped=1)
    for batch in plan.batches:
        nights.prepare(batch)
        assert not nights.publish(batch).busy


def link(nights: Nights, night: Night) -> Linked:
    (build,) = builds.builds_of(nights.site.ledger, "main", night.date)
    return link_night(nights.site, attempt(night.run), night, build)


def leads_to(nights: Nights, name: str) -> str:
    path = f"{FOLDER}/{name}"
    entry = nights.site.head(FQRN).revision.lookup(path)
    return link_target(path, entry.symlink) if entry is not None else ""


def revision(nights: Nights) -> int:
    return nights.site.head(FQRN).manifest.revision


def test_a_whole_build_gets_both_links_and_its_name_in_one_revision_and_again_nothing(slots: Nights) -> None:
    build_of(MONDAY, {"A": b"1", "B": b"2"}).store_in(slots.site.store("cvmfs"))
    night = night_of(MONDAY)
    publish(slots, night)
    verify_run(slots.site, attempt(night.run))
    before = revision(slots)
    done = link(slots, night)
    assert revision(slots) == before + 1 == done.revision
    assert {one.path: one.state for one in done.links} == {
        f"{FOLDER}/latest": LinkState.MOVED, f"{FOLDER}/Mon": LinkState.MOVED,
    }  # fmt: skip
    assert leads_to(slots, "latest") == leads_to(slots, "Mon") == f"{FOLDER}/b20261102"
    head = slots.site.head(FQRN)
    assert head.tag("main-b20261102").revision == done.revision
    again = link(slots, night)
    assert revision(slots) == before + 1
    assert {one.state for one in again.links} == {LinkState.UNCHANGED}
    assert again.tag is not None
    assert again.tag.state is LinkState.UNCHANGED
    assert slots.check().problems == ()


def test_a_backfill_moves_no_link_back_and_names_its_own_revision(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    for day in (NEXT_MONDAY, MONDAY, TUESDAY):
        build_of(day, {"A": str(day).encode()}).store_in(store)
        done = whole_night(slots, night_of(day))
        assert leads_to(slots, "latest") == f"{FOLDER}/b20261109"
    assert leads_to(slots, "Mon") == f"{FOLDER}/b20261109"
    assert leads_to(slots, "Tue") == f"{FOLDER}/b20261103"
    latest, tuesday = done.links
    assert (latest.state, tuesday.state) == (LinkState.STAYED, LinkState.MOVED)
    assert "build b20261109 of 2026-11-09 already, which is later" in latest.reason
    record = linked.history(slots.site.ledger, FQRN, f"{FOLDER}/latest")
    assert [(one.build_id, one.state) for one in record] == [
        ("b20261103", "stayed"), ("b20261102", "stayed"), ("b20261109", "moved"),
    ]  # fmt: skip
    names = {one.name for one in slots.site.head(FQRN).tags()}
    assert names >= {"main-b20261102", "main-b20261103", "main-b20261109"}


def test_what_is_required_and_missing_keeps_the_links_and_what_is_optional_does_not(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    build_of(MONDAY, {"A": b"1"}).store_in(store)
    whole_night(slots, night_of(MONDAY))
    build_of(TUESDAY, {"A": b"2", "A:dbg": b"3"}).lose("A", "dbg").store_in(store)
    night = night_of(TUESDAY)
    publish(slots, night)
    verify_run(slots.site, attempt(night.run))
    passed = gate(slots.site, attempt(night.run), night=night)
    assert len(passed.lacking) == 1
    assert "A/dbg: failed" in passed.lacking[0]
    assert {one.state for one in link(slots, night).links} == {LinkState.MOVED}

    build_of(NEXT_MONDAY, {"A": b"4", "B": b"5"}).lose("B", "x86_64").store_in(store)
    late = night_of(NEXT_MONDAY)
    publish(slots, late)
    verify_run(slots.site, attempt(late.run))
    with pytest.raises(GateClosed) as closed:
        gate(slots.site, attempt(late.run), night=late)
    assert missing(closed.value) == ["B/x86_64"]
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261103"
    assert leads_to(slots, "Mon") == f"{FOLDER}/b20261102"
    for name in ("latest", "Mon"):
        record = linked.history(slots.site.ledger, FQRN, f"{FOLDER}/{name}")[0]
        assert (record.state, "B/x86_64: failed" in record.reason) == ("stayed", True)
    # even if somebody asks for the links without the gate
    assert {one.state for one in link(slots, late).links} == {LinkState.STAYED}
    # what was missing comes, in a run of its own
    build_of(NEXT_MONDAY, {"A": b"4", "B": b"5"}).store_in(store)
    whole_night(slots, night_of(NEXT_MONDAY, "night/late"))
    assert leads_to(slots, "latest") == leads_to(slots, "Mon") == f"{FOLDER}/b20261109"


def test_a_run_without_what_failed_moves_the_links_and_only_it_does(slots: Nights) -> None:
    build_of(MONDAY, {"A": b"1", "B": b"2"}).lose("B", "x86_64").store_in(slots.site.store("cvmfs"))
    night = night_of(MONDAY)
    publish(slots, night)
    verify_run(slots.site, attempt(night.run))
    with pytest.raises(GateClosed) as closed:
        gate(slots.site, attempt(night.run), night=replace(night, without=("C/x86_64", "B/dbg")))
    assert missing(closed.value) == ["B/x86_64"]
    without = Night.from_json(replace(night, without=("B/x86_64",)).to_json())
    passed = gate(slots.site, attempt(night.run), night=without)
    assert [line.partition(":")[0] for line in passed.lacking] == ["B/x86_64"]
    assert {one.state for one in link(slots, without).links} == {LinkState.MOVED}
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261102"


def test_a_link_of_somebody_else_is_left_alone_with_the_reason(slots: Nights) -> None:
    by_hand = slots.site
    build_of(MONDAY, {"A": b"1"}).store_in(by_hand.store("cvmfs"))
    night = night_of(MONDAY)
    publish(slots, night)
    verify_run(slots.site, attempt(night.run))
    change = linking(f"{FOLDER}/latest", "of-somebody", now=now())
    change.commit(by_hand, FQRN, holder="operator", now=now())
    latest, monday = link(slots, night).links
    assert (latest.state, monday.state) == (LinkState.STAYED, LinkState.MOVED)
    assert "/nightlies/main/of-somebody, which is no build in the ledger" in latest.reason
    assert leads_to(slots, "latest") == "/nightlies/main/of-somebody"


def test_beside_somebody_who_publishes_below_the_folder_the_links_are_set_one_by_one(slots: Nights) -> None:
    build_of(MONDAY, {"A": b"1"}).store_in(slots.site.store("cvmfs"))
    night = night_of(MONDAY)
    publish(slots, night)
    verify_run(slots.site, attempt(night.run))
    before = revision(slots)
    with slots.client() as client, client.lease(FQRN, f"{FOLDER}/b20261102/A/x86_64", hostname="somebody"):
        done = link(slots, night)
    assert revision(slots) == before + 2
    assert {one.state for one in done.links} == {LinkState.MOVED}
    assert slots.site.head(FQRN).tag("main-b20261102").revision == before + 2


def test_runs_of_two_builds_that_end_in_one_moment_leave_the_links_at_the_later(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    nights = [night_of(day) for day in (MONDAY, TUESDAY)]
    for night in nights:
        build_of(night.date.day, {"A": night.run.encode()}).store_in(store)
        publish(slots, night)
        verify_run(slots.site, attempt(night.run))
    start, failed = threading.Barrier(2), list[Exception]()

    def run(night: Night) -> None:
        start.wait()
        for _ in range(50):
            try:
                link(slots, night)
            except Exception as error:  # noqa: BLE001 - a busy path is tried again, as the operator does
                if not getattr(error, "retryable", False):
                    failed.append(error)
                    return
            else:
                return

    threads = [threading.Thread(target=run, args=(night,)) for night in nights]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261103"
    assert leads_to(slots, "Mon") == f"{FOLDER}/b20261102"
    assert slots.check().problems == ()


def test_a_night_replaces_no_tree_that_no_run_published(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    build_of(MONDAY, {"A": b"1"}).store_in(store)
    publish(slots, night_of(MONDAY))
    place = f"{FOLDER}/b20261102/A/x86_64"
    linking(f"{place}/by-hand", "x", now=now()).commit(slots.site, FQRN, holder="operator", now=now())
    build_of(MONDAY, {"A": b"rebuilt"}).store_in(store)
    plan = plan_night(slots.site, attempt(), night_of(MONDAY, "night/rebuilt"), max_mapped=1)
    failure = slots.prepare(plan.batches[0]).failures["A/x86_64"]
    assert isinstance(failure, DestinationError)
    assert failure.path == place


def test_a_rebuilt_artifact_replaces_the_tree_in_one_revision_and_the_links_stay_right(slots: Nights) -> None:
    store = slots.site.store("cvmfs")
    build_of(MONDAY, {"A": b"1", "B": b"2"}).store_in(store)
    whole_night(slots, night_of(MONDAY))
    before = revision(slots)
    build_of(MONDAY, {"A": b"rebuilt", "B": b"2"}).store_in(store)
    done = whole_night(slots, night_of(MONDAY, "night/rebuilt"))
    assert revision(slots) == before + 1
    assert {one.state for one in done.links} == {LinkState.UNCHANGED}
    head = slots.site.head(FQRN)
    assert head.revision.read(f"{FOLDER}/b20261102/A/x86_64/file") == b"rebuilt"
    old = head.at("main-b20261102")
    assert old.read(f"{FOLDER}/b20261102/A/x86_64/file") == b"1"
    assert slots.check().problems == ()
