"""Collections behind a stock gateway: publishers are kept out meanwhile whatever happens, and none is left out."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from include.cli.repo import app
from include.cvmfs.collect.report import CollectionReport
from include.cvmfs.collect.stock import preceding
from include.cvmfs.commit.commit import REFLOG_KEY
from include.cvmfs.coordination import generation
from include.cvmfs.coordination.generation import CollectionPhase, look
from include.cvmfs.errors import CollectionBusy, CollectionRefused, ManifestConflict
from include.cvmfs.format.compression import compress
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.reflog import Reflog
from include.gateway.errors import (
    COLLECTION_UNCLEAR,
    NOT_SWITCHED,
    AdminKeyNeeded,
    CollectionFailed,
    GatewayError,
    PathBusy,
    RepositoryDisabled,
)
from include.site.collecting import Collecting, collect, rehearse, rules_of
from include.site.site import Site
from include.site.stock_collecting import Remembered, StockRules, collect_behind, rehearse_behind
from include.storage.errors import Unavailable
from include.storage.file import FileStore
from include.storage.store import Store
from tests.fakes.refused import refused
from tests.fakes.site import DESTINATIONS, FQRN
from tests.fakes.stocksite import StockSite

NOW = datetime.now(UTC)
HERE = DESTINATIONS[0]
QUICK = StockRules("collector", patience_s=0.2, poll_s=0.02)
LONG_S = 120.0
"""Longer than anything takes on a busy machine; a test that passes never waits so long."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[StockSite]:
    """Of a repository with three old revisions of one destination, and a current one."""
    store = FileStore(tmp_path / "store" / FQRN)
    site = StockSite(tmp_path, store, store.url)
    site.start()
    site.reserve()
    for number in range(3):
        site.worker().publish(site.prepared(HERE, {"f": b"version %d" % number}), holder="test", now=NOW)
    site.age(days=9)
    yield site
    site.stop()


@pytest.fixture
def on_site(site: StockSite) -> Iterator[Site]:
    made = site.configured()
    yield made
    made.ledger.dispose()


def orphan(site: StockSite, content: bytes = b"of a publication that failed", days: float = 9) -> str:
    """An object that nothing names, stored so long ago; its key."""
    data = compress(content)
    key = hash_bytes(data).key
    site.store.put(key, data)
    then = time.time() - timedelta(days=days).total_seconds()
    os.utime(site.folder / "store" / FQRN / key, (then, then))
    return key


def ours(report: Any) -> CollectionReport:
    assert isinstance(report, CollectionReport)
    return report


def objects(site: StockSite) -> set[str]:
    return {one.key for one in site.store.list("data")}


def assert_open(site: StockSite) -> None:
    """Nothing is leased or disabled, readers find everything, and the next publication works."""
    assert site.gateway.held() == []
    assert site.gateway.enabled
    site.assert_sound()
    site.worker().publish(site.prepared(DESTINATIONS[1], {"after": os.urandom(9)}), holder="test", now=NOW)


def remembered(site: StockSite) -> Remembered:
    return Remembered.read(site.folder / "var" / "collections" / FQRN / "stock.json")


# -- under a lease on everything


def test_the_gateway_collects_under_our_lease_on_everything_and_says_what_it_did(
    site: StockSite, on_site: Site
) -> None:
    before, log = objects(site), io.StringIO()
    how = Collecting("collector", rules_of(on_site, FQRN), log=log)
    report = ours(collect(on_site, FQRN, how))
    gone = before - objects(site)
    assert (report.deleted, report.condemned, report.ok) == (len(gone), len(gone), True)
    assert len(gone) >= 6, "two versions of the file, with their catalogs and roots"
    assert report.roots_kept >= 1
    assert report.roots_condemned >= 3
    lines = log.getvalue().splitlines()
    assert lines[0].startswith("# Garbage Collection started at ")
    assert {f"data/{line[:2]}/{line[2:]}" for line in lines[1:-2]} == gone
    (asked,) = site.gateway.collections
    assert asked["leased"] == ["/"]
    assert asked["enabled"]
    assert not asked["dry_run"]
    assert site.gateway.calls.count("POST /repos/" + FQRN) == 0
    assert (remembered(site).seconds or 0) > 0
    assert_open(site)


def test_a_publisher_is_kept_out_as_long_as_the_gateway_collects(site: StockSite, on_site: Site) -> None:
    seen: list[bool] = []

    def publish() -> None:
        with pytest.raises(PathBusy):
            site.client().acquire(FQRN, "/other", hostname="stock publisher")
        seen.append(True)

    site.gateway.during_collection = publish
    collect_behind(on_site, FQRN, QUICK)
    assert seen == [True]
    assert_open(site)


def test_a_lease_of_another_is_waited_for_and_nothing_is_begun_before_it_ends(site: StockSite, on_site: Site) -> None:
    lease = site.client().acquire(FQRN, "/other", hostname="publisher")
    with pytest.raises(PathBusy):
        collect_behind(on_site, FQRN, QUICK)
    assert site.gateway.collections == []
    ending = threading.Timer(0.2, lambda: site.client().drop(lease))
    ending.start()
    assert collect_behind(on_site, FQRN, replace(QUICK, patience_s=LONG_S)).deleted
    ending.join()
    assert_open(site)


def test_only_a_grace_that_is_longer_than_the_gateways_own_is_told_as_a_number_of_revisions(
    site: StockSite, on_site: Site
) -> None:
    for days in (3, 8):  # by then all but the current revision have left it
        rehearse_behind(on_site, FQRN, replace(QUICK, grace=timedelta(days=days)))
    assert [one["num_revisions"] for one in site.gateway.collections] == [0, 0]
    site.worker().publish(site.prepared(HERE, {"f": b"today"}), holder="test", now=NOW)
    rehearse_behind(on_site, FQRN, replace(QUICK, grace=timedelta(days=8)))
    assert site.gateway.collections[-1]["num_revisions"] == 1, "readers were on it until today"


def test_within_its_grace_every_revision_stays(site: StockSite, on_site: Site) -> None:
    roots = [root for _, root in preceding(site.head())]
    collect_behind(on_site, FQRN, replace(QUICK, grace=timedelta(days=10)))
    (asked,) = site.gateway.collections
    assert asked["num_revisions"] == len(roots) == site.head().manifest.revision
    head = site.head()
    for root in roots:
        assert all(site.store.exists(name.key) for name, _ in head.at(root).objects_below(""))
    assert_open(site)


def test_a_lease_that_is_too_short_for_the_last_collection_is_refused(site: StockSite, on_site: Site) -> None:
    memory = remembered(site)
    memory.file.parent.mkdir(parents=True)
    memory.seconds = 3601.0  # of leases of two hours
    memory.write()
    with refused(CollectionRefused) as short:
        collect_behind(on_site, FQRN, QUICK)
    assert "max_lease_time" in str(short.value)
    assert site.gateway.collections == []
    site.gateway.renews = True
    assert collect_behind(on_site, FQRN, QUICK).deleted
    assert_open(site)


def test_what_is_not_a_key_of_an_administrator_collects_nothing(site: StockSite) -> None:
    made = site.configured(admin="gateway-key")
    site.gateway.keys["gateway-key"] = site.gateway.keys["adminkey"]
    with pytest.raises(AdminKeyNeeded):
        collect_behind(made, FQRN, QUICK)
    assert site.gateway.collections == []
    made.ledger.dispose()
    assert_open(site)


def test_where_nightshift_collected_before_publishers_would_not_see_it(site: StockSite, on_site: Site) -> None:
    site.store.put(generation.KEY, generation.Generation(3, CollectionPhase.IDLE, NOW).format())
    site.gateway.calls.clear()
    with refused(CollectionRefused) as unseen:
        collect_behind(on_site, FQRN, QUICK)
    assert generation.KEY in str(unseen.value)
    assert site.gateway.calls == []


def test_two_collections_of_one_machine_exclude_each_other(site: StockSite, on_site: Site) -> None:
    def second() -> None:
        with pytest.raises(CollectionBusy):
            collect_behind(on_site, FQRN, QUICK)

    site.gateway.during_collection = second
    collect_behind(on_site, FQRN, QUICK)
    assert len(site.gateway.collections) == 1


# -- where it refuses to collect under a lease


def test_a_gateway_that_refuses_under_a_lease_is_closed_instead(site: StockSite, on_site: Site) -> None:
    site.gateway.scripts = True
    refusals: list[bool] = []

    def publish() -> None:
        with pytest.raises(RepositoryDisabled):
            site.client().acquire(FQRN, "/other", hostname="stock publisher")
        refusals.append(True)

    site.gateway.during_collection = publish
    report = collect_behind(on_site, FQRN, QUICK)
    assert report.deleted
    assert [(one["leased"], one["enabled"]) for one in site.gateway.collections] == [(["/"], True), ([], False)]
    assert refusals == [True]
    assert any("gave out none" in note for note in report.notes)
    assert_open(site)


def test_leases_that_came_in_between_are_waited_for_before_it_collects(
    site: StockSite, on_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.gateway.scripts = True
    enable = site.gateway._enable

    def late(headers: Any, body: bytes) -> Any:
        if site.gateway.leased[-1:] != ["/other"]:
            site.client().acquire(FQRN, "/other", hostname="quick publisher")
        return enable(headers, body)

    monkeypatch.setattr(site.gateway, "_enable", late)
    with pytest.raises(PathBusy):
        collect_behind(on_site, FQRN, QUICK)
    assert len(site.gateway.collections) == 1, "the one that was refused"
    site.gateway.expire_all()
    assert_open(site)


def test_the_repository_is_enabled_again_after_a_collection_that_failed(site: StockSite, on_site: Site) -> None:
    site.gateway.collection_fails = ["exit status 6", "exit status 6"]
    with refused(CollectionFailed, reason="exit status 6"):
        collect_behind(on_site, FQRN, QUICK)
    assert [one["enabled"] for one in site.gateway.collections] == [True, False]
    assert not remembered(site).disabled
    assert_open(site)


def test_a_repository_that_stays_disabled_is_said_and_the_next_collection_enables_it(
    site: StockSite, on_site: Site
) -> None:
    site.gateway.scripts = site.gateway.keeps_disabled = True
    with refused(NOT_SWITCHED):
        collect_behind(on_site, FQRN, QUICK)
    assert remembered(site).disabled
    assert not site.gateway.enabled
    site.gateway.keeps_disabled = site.gateway.scripts = False
    report = collect_behind(on_site, FQRN, QUICK)
    assert any("left the repository disabled" in note for note in report.notes)
    assert_open(site)


# -- when the reply is lost


def test_after_a_lost_reply_the_lease_is_kept_until_the_collection_has_ended(
    site: StockSite, on_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.gateway.cut_collections = 1
    polls, held, waited = list[list[str]](), list[list[str]](), threading.Event()
    site.gateway.during_collection = lambda: waited.wait(LONG_S)
    last = generation.look

    def looked(store: Store) -> Any:
        polls.append(site.gateway.held())
        if len(polls) == 5:
            held.extend(polls[1:])
            waited.set()
        return last(store)

    monkeypatch.setattr("include.site.stock_collecting.look", looked)
    report = collect_behind(on_site, FQRN, QUICK)
    assert held == [["/"]] * 4, "from before the collection until its end"
    assert report.deleted == 0
    assert any("reply was lost" in note for note in report.notes)
    assert look(site.store).last_collection
    assert_open(site)


def test_before_the_lease_ends_the_repository_is_disabled_for_a_collection_that_goes_on(
    site: StockSite, on_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.site.stock_collecting._Run._margin_s", 1e6)  # longer than any lease
    site.gateway.cut_collections = 1

    def until_disabled() -> None:
        deadline = time.monotonic() + LONG_S
        while site.gateway.enabled and time.monotonic() < deadline:
            time.sleep(0.01)
        assert site.gateway.held() == ["/"], "it is disabled before the lease ends"
        site.gateway.expire_all()

    site.gateway.during_collection = until_disabled
    collect_behind(on_site, FQRN, replace(QUICK, limit_s=2 * LONG_S))
    assert_open(site)


def test_a_collection_whose_end_is_never_seen_is_unclear_and_publishers_get_in_again(
    site: StockSite, on_site: Site
) -> None:
    site.gateway.cut_collections = 1
    over = threading.Event()
    site.gateway.during_collection = lambda: over.wait(LONG_S)
    with refused(COLLECTION_UNCLEAR):
        collect_behind(on_site, FQRN, replace(QUICK, limit_s=0.3))
    assert site.gateway.held() == []
    assert site.gateway.enabled
    over.set()


def test_a_collection_that_we_are_stopped_in_keeps_its_lease_until_that_ends(
    site: StockSite, on_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway goes on: what the stopped command would drop keeps publishers out."""

    def stopped(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("include.gateway.client.client.GatewayClient.collect_garbage", stopped)
    with pytest.raises(KeyboardInterrupt):
        collect_behind(on_site, FQRN, QUICK)
    assert site.gateway.held() == ["/"]


def test_a_store_that_is_away_meanwhile_does_not_end_the_wait(
    site: StockSite, on_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.gateway.cut_collections, looks = 1, list[str]()
    last = generation.look

    def looked(store: Store) -> Any:
        looks.append("look")
        if 3 <= len(looks) <= 5:  # after those before the collection
            raise Unavailable("the store is away", key="k", cause="test")
        return last(store)

    monkeypatch.setattr("include.site.stock_collecting.look", looked)
    collect_behind(on_site, FQRN, QUICK)
    assert len(looks) > 5
    assert_open(site)


def test_a_gateway_that_was_restarted_by_the_collection_is_waited_for(site: StockSite, on_site: Site) -> None:
    """The old scripts stop the gateway meanwhile; after it, everything is enabled."""
    site.gateway.lose_collections = 1
    site.gateway.during_collection = site.gateway.restart
    report = collect_behind(on_site, FQRN, QUICK)
    assert any("reply was lost" in note for note in report.notes)
    assert_open(site)


# -- orphans


def test_orphans_are_listed_and_deleted_only_when_that_is_said(site: StockSite, on_site: Site) -> None:
    old, young = orphan(site), orphan(site, b"young", days=1)
    rules = rules_of(on_site, FQRN)
    plain = ours(collect(on_site, FQRN, Collecting("collector", rules)))
    assert (plain.orphans, plain.orphans_listed) == (0, [])
    listed = ours(collect(on_site, FQRN, Collecting("collector", rules, orphans=True)))
    assert (listed.orphans, listed.orphans_listed, listed.deleted) == (1, [old], 0)
    assert {old, young} <= objects(site)
    site.age(days=0)
    gone = ours(collect(on_site, FQRN, Collecting("collector", rules, orphans=True, delete_orphans=True)))
    assert (gone.orphans, gone.deleted, gone.orphans_listed) == (1, 1, [])
    assert old not in objects(site)
    assert young in objects(site)
    assert_open(site)


def test_what_any_revision_names_that_can_still_be_reached_is_no_orphan(site: StockSite, on_site: Site) -> None:
    """Also where a reflog lost its roots: nobody signs what a stock collection makes of one."""
    reflog = Reflog.load(site.store.get(REFLOG_KEY))
    reflog.remove_all([one.hash for one in reflog.refs()])
    site.store.put(REFLOG_KEY, reflog.to_bytes())
    for key in objects(site):
        then = time.time() - 9 * 86400
        os.utime(site.folder / "store" / FQRN / key, (then, then))
    roots = [root.key for _, root in preceding(site.head())]
    report = rehearse(on_site, FQRN, rules_of(on_site, FQRN), orphans=True)
    assert len(roots) >= 3
    assert not set(roots) & set(report.orphans_listed)


def test_orphans_go_under_the_lease_and_before_the_time_of_the_collection_moves(site: StockSite, on_site: Site) -> None:
    """A publisher that saw one of them is to look for its objects again, whenever it looked."""
    key, there = orphan(site), []
    site.gateway.during_collection = lambda: there.append(site.store.exists(key))
    collect_behind(on_site, FQRN, replace(QUICK, orphans=True, delete_orphans=True))
    assert there == [False]
    assert site.gateway.collections[0]["leased"] == ["/"]


def test_publishers_are_told_of_deleted_orphans_also_where_the_collection_failed(
    site: StockSite, on_site: Site
) -> None:
    orphan(site)
    before = look(site.store).token
    site.gateway.collection_fails = ["exit status 1", "exit status 1"]
    with pytest.raises(CollectionFailed):
        collect_behind(on_site, FQRN, replace(QUICK, orphans=True, delete_orphans=True))
    assert look(site.store).token != before
    assert_open(site)


def test_no_orphan_is_deleted_once_a_revision_came_although_everything_is_leased(
    site: StockSite, on_site: Site
) -> None:
    key = orphan(site)

    def switch_beside_the_gateway(step: str, done: int, total: int) -> None:
        if (step, done) == ("orphans", total):
            root = site.head().manifest.root
            site.gateway.receiver.commit("/", root, root, None)

    rules = replace(QUICK, orphans=True, delete_orphans=True, progress=switch_beside_the_gateway)
    with pytest.raises(ManifestConflict):
        collect_behind(on_site, FQRN, rules)
    assert key in objects(site)
    assert site.gateway.collections == []
    assert_open(site)


def test_a_dry_run_leases_and_changes_nothing(site: StockSite, on_site: Site) -> None:
    before, key = {one: site.store.get(one) for one in objects(site)}, orphan(site)
    report = rehearse(on_site, FQRN, rules_of(on_site, FQRN), orphans=True)
    assert report.dry_run
    assert report.condemned >= 6
    assert report.deleted == 0
    assert report.orphans_listed == [key]
    assert before.keys() | {key} == objects(site)
    assert site.gateway.held() == []
    assert site.gateway.collections[0]["leased"] == []
    assert_open(site)


def test_the_command_lists_orphans_and_deletes_them_only_with_yes(
    site: StockSite, on_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = orphan(site)
    monkeypatch.setattr("include.cli.repo_repair.open_site", lambda: on_site)

    def gc(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["gc", FQRN, *words], catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done.output

    assert f"orphan: {key}" in gc("--orphans", "--dry-run")
    assert f"orphan: {key}" in gc("--orphans")
    gc("--yes", code=2)
    gc("--orphans", "--yes", "--dry-run", code=2)
    assert key in objects(site)
    assert json.loads(gc("--orphans", "--yes", "--json"))["deleted"] == 1
    assert key not in objects(site)


def test_a_gateway_without_the_stock_tools_says_so_once(site: StockSite, on_site: Site) -> None:
    site.gateway.collection_fails = ['exec: "cvmfs_server": executable file not found in $PATH']
    with pytest.raises(GatewayError, match="executable file not found"):
        collect_behind(on_site, FQRN, QUICK)
    assert_open(site)
