"""Collections behind a stock gateway: publishers are kept out meanwhile whatever happens, and none is left out."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.cvmfs.collect.report import CollectionOptions, CollectionReport, CollectionRules
from include.cvmfs.coordination import generation
from include.cvmfs.coordination.generation import CollectionPhase, look
from include.cvmfs.errors import CollectionBusy, CollectionRefused
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.gateway.errors import (
    COLLECTION_UNCLEAR,
    NOT_SWITCHED,
    AdminKeyNeeded,
    CollectionFailed,
    GatewayError,
    PathBusy,
    RepositoryDisabled,
)
from include.site.collecting import collect, options_of
from include.site.site import Site
from include.site.stock_collecting import Remembered, StockWaits, collect_behind
from include.storage.errors import Unavailable
from include.storage.store import Store
from tests.fakes.refused import refused
from tests.fakes.stocksite import StockSite
from tests.site import DESTINATIONS, FQRN

NOW = datetime.now(UTC)
HERE = DESTINATIONS[0]
QUICK = StockWaits(patience_s=0.2, poll_s=0.02)
USUAL = CollectionOptions("collector", CollectionRules())
LONG_S = 120.0
"""Longer than anything takes on a busy machine; a test that passes never waits so long."""


def kept(grace: timedelta, **more: Any) -> CollectionOptions:
    return replace(USUAL, rules=CollectionRules(grace), **more)


def remembered(site: StockSite) -> Remembered:
    return Remembered.read(site.folder / "var" / "collections" / FQRN / "stock.json")


# -- under a lease on everything


def test_the_gateway_collects_under_our_lease_on_everything_and_reports(site: StockSite, on_site: Site) -> None:
    before, log = site.objects(), io.StringIO()
    how = options_of(on_site, FQRN, "collector", log=log)
    report = collect(on_site, FQRN, how)
    assert isinstance(report, CollectionReport)
    gone = before - site.objects()
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
    site.assert_open()


def test_a_publisher_is_kept_out_as_long_as_the_gateway_collects(site: StockSite, on_site: Site) -> None:
    seen: list[bool] = []

    def publish() -> None:
        with pytest.raises(PathBusy):
            site.client().acquire(FQRN, "/other", hostname="stock publisher")
        seen.append(True)

    site.gateway.during_collection = publish
    collect_behind(on_site, FQRN, USUAL, QUICK)
    assert seen == [True]
    site.assert_open()


def test_a_lease_of_another_is_waited_for_and_nothing_is_begun_before_it_ends(site: StockSite, on_site: Site) -> None:
    lease = site.client().acquire(FQRN, "/other", hostname="publisher")
    with pytest.raises(PathBusy):
        collect_behind(on_site, FQRN, USUAL, QUICK)
    assert site.gateway.collections == []
    ending = threading.Timer(0.2, lambda: site.client().drop(lease))
    ending.start()
    assert collect_behind(on_site, FQRN, USUAL, replace(QUICK, patience_s=LONG_S)).deleted
    ending.join()
    site.assert_open()


def test_only_a_grace_that_is_longer_than_the_gateways_own_is_told_as_a_number_of_revisions(
    site: StockSite, on_site: Site
) -> None:
    for days in (3, 8):  # by then all but the current revision have left it
        collect_behind(on_site, FQRN, kept(timedelta(days=days), dry_run=True), QUICK)
    assert [one["num_revisions"] for one in site.gateway.collections] == [0, 0]
    site.worker().publish(site.prepared(HERE, {"f": b"today"}), holder="test", now=NOW)
    collect_behind(on_site, FQRN, kept(timedelta(days=8), dry_run=True), QUICK)
    assert site.gateway.collections[-1]["num_revisions"] == 1, "readers were on it until today"


def test_within_its_grace_every_revision_stays(site: StockSite, on_site: Site) -> None:
    revisions = site.head().superseded_after(0)
    collect_behind(on_site, FQRN, kept(timedelta(days=10)), QUICK)
    (asked,) = site.gateway.collections
    assert asked["num_revisions"] == revisions == site.head().manifest.revision
    revision: Revision | None = site.head().revision
    while revision is not None:
        assert all(site.store.exists(name.key) for name, _ in revision.objects_below(""))
        before = revision.root.previous_revision
        revision = None if before is None else site.head().at(before)
    site.assert_open()


def test_a_lease_that_is_too_short_for_the_last_collection_is_refused(site: StockSite, on_site: Site) -> None:
    memory = remembered(site)
    memory.file.parent.mkdir(parents=True)
    memory.seconds = 3601.0  # of leases of two hours
    memory.write()
    with refused(CollectionRefused) as short:
        collect_behind(on_site, FQRN, USUAL, QUICK)
    assert "max_lease_time" in str(short.value)
    assert site.gateway.collections == []
    site.gateway.renews = True
    assert collect_behind(on_site, FQRN, USUAL, QUICK).deleted
    site.assert_open()


def test_what_is_not_a_key_of_an_administrator_collects_nothing(site: StockSite) -> None:
    made = site.configured(admin="gateway-key")
    site.gateway.keys["gateway-key"] = site.gateway.keys["adminkey"]
    with pytest.raises(AdminKeyNeeded):
        collect_behind(made, FQRN, USUAL, QUICK)
    assert site.gateway.collections == []
    site.assert_open()


def test_where_nightshift_collected_before_publishers_would_not_see_it(site: StockSite, on_site: Site) -> None:
    site.store.put(generation.KEY, generation.Generation(3, CollectionPhase.IDLE, NOW).format())
    site.gateway.calls.clear()
    with refused(CollectionRefused) as unseen:
        collect_behind(on_site, FQRN, USUAL, QUICK)
    assert generation.KEY in str(unseen.value)
    assert site.gateway.calls == []


def test_two_collections_of_one_machine_exclude_each_other(site: StockSite, on_site: Site) -> None:
    def second() -> None:
        with pytest.raises(CollectionBusy):
            collect_behind(on_site, FQRN, USUAL, QUICK)

    site.gateway.during_collection = second
    collect_behind(on_site, FQRN, USUAL, QUICK)
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
    report = collect_behind(on_site, FQRN, USUAL, QUICK)
    assert report.deleted
    assert [(one["leased"], one["enabled"]) for one in site.gateway.collections] == [(["/"], True), ([], False)]
    assert refusals == [True]
    assert any("gave out none" in note for note in report.notes)
    site.assert_open()


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
        collect_behind(on_site, FQRN, USUAL, QUICK)
    assert len(site.gateway.collections) == 1, "the one that was refused"
    site.gateway.expire_all()
    site.assert_open()


def test_the_repository_is_enabled_again_after_a_collection_that_failed(site: StockSite, on_site: Site) -> None:
    site.gateway.collection_fails = ["exit status 6", "exit status 6"]
    with refused(CollectionFailed, reason="exit status 6"):
        collect_behind(on_site, FQRN, USUAL, QUICK)
    assert [one["enabled"] for one in site.gateway.collections] == [True, False]
    assert not remembered(site).disabled
    site.assert_open()


def test_a_repository_that_stays_disabled_is_enabled_by_the_next_collection(site: StockSite, on_site: Site) -> None:
    site.gateway.scripts = site.gateway.keeps_disabled = True
    with refused(NOT_SWITCHED):
        collect_behind(on_site, FQRN, USUAL, QUICK)
    assert remembered(site).disabled
    assert not site.gateway.enabled
    site.gateway.keeps_disabled = site.gateway.scripts = False
    report = collect_behind(on_site, FQRN, USUAL, QUICK)
    assert any("left the repository disabled" in note for note in report.notes)
    site.assert_open()


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
    report = collect_behind(on_site, FQRN, USUAL, QUICK)
    assert held == [["/"]] * 4, "from before the collection until its end"
    assert report.deleted == 0
    assert any("reply was lost" in note for note in report.notes)
    assert look(site.store).last_collection
    site.assert_open()


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
    collect_behind(on_site, FQRN, USUAL, replace(QUICK, limit_s=2 * LONG_S))
    site.assert_open()


def test_a_collection_whose_end_is_never_seen_is_unclear_and_keeps_nobody_out(site: StockSite, on_site: Site) -> None:
    site.gateway.cut_collections = 1
    over = threading.Event()
    site.gateway.during_collection = lambda: over.wait(LONG_S)
    with refused(COLLECTION_UNCLEAR):
        collect_behind(on_site, FQRN, USUAL, replace(QUICK, limit_s=0.3))
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
        collect_behind(on_site, FQRN, USUAL, QUICK)
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
    collect_behind(on_site, FQRN, USUAL, QUICK)
    assert len(looks) > 5
    site.assert_open()


def test_a_gateway_that_was_restarted_by_the_collection_is_waited_for(site: StockSite, on_site: Site) -> None:
    """The old scripts stop the gateway meanwhile; after it, everything is enabled."""
    site.gateway.lose_collections = 1
    site.gateway.during_collection = site.gateway.restart
    report = collect_behind(on_site, FQRN, USUAL, QUICK)
    assert any("reply was lost" in note for note in report.notes)
    site.assert_open()


def test_a_gateway_without_the_stock_tools_says_so_once(site: StockSite, on_site: Site) -> None:
    site.gateway.collection_fails = ['exec: "cvmfs_server": executable file not found in $PATH']
    with pytest.raises(GatewayError, match="executable file not found"):
        collect_behind(on_site, FQRN, USUAL, QUICK)
    site.assert_open()


def test_a_store_that_fails_before_the_gateway_is_asked_leaves_no_lease(
    site: StockSite, on_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> int:
        raise Unavailable("the store is away", key="k", cause="test")

    monkeypatch.setattr(Repository, "superseded_after", away)
    with refused(Unavailable, key="k"):
        collect_behind(on_site, FQRN, kept(timedelta(days=10)), QUICK)
    assert site.gateway.collections == []
    site.assert_open()
