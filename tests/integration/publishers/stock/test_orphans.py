"""Orphans behind a stock gateway: found by Nightshift, deleted only if a user says so, and before its collection."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from include.cli.repo import app
from include.cvmfs.collect.stock import preceding
from include.cvmfs.commit.commit import REFLOG_KEY
from include.cvmfs.coordination.generation import look
from include.cvmfs.errors import ManifestConflict
from include.cvmfs.format.database import Reflog
from include.gateway.errors import (
    CollectionFailed,
)
from include.site.collecting import Collecting, collect, rehearse, rules_of
from include.site.site import Site
from include.site.stock_collecting import StockRules, collect_behind
from tests.fakes.site import DESTINATIONS, FQRN
from tests.fakes.stocksite import StockSite, ours

NOW = datetime.now(UTC)
HERE = DESTINATIONS[0]
QUICK = StockRules("collector", patience_s=0.2, poll_s=0.02)
LONG_S = 120.0
"""Longer than anything takes on a busy machine; a test that passes never waits so long."""


def test_orphans_are_listed_and_deleted_only_when_that_is_said(site: StockSite, on_site: Site) -> None:
    old, young = site.orphan(), site.orphan(b"young", days=1)
    rules = rules_of(on_site, FQRN)
    plain = ours(collect(on_site, FQRN, Collecting("collector", rules)))
    assert (plain.orphans, plain.orphans_listed) == (0, [])
    listed = ours(collect(on_site, FQRN, Collecting("collector", rules, orphans=True)))
    assert (listed.orphans, listed.orphans_listed, listed.deleted) == (1, [old], 0)
    assert {old, young} <= site.objects()
    site.age(days=0)
    gone = ours(collect(on_site, FQRN, Collecting("collector", rules, orphans=True, delete_orphans=True)))
    assert (gone.orphans, gone.deleted, gone.orphans_listed) == (1, 1, [])
    assert old not in site.objects()
    assert young in site.objects()
    site.assert_open()


def test_what_any_revision_names_that_can_still_be_reached_is_no_orphan(site: StockSite, on_site: Site) -> None:
    """Also where a reflog lost its roots: nobody signs what a stock collection makes of one."""
    reflog = Reflog.load(site.store.get(REFLOG_KEY))
    reflog.remove_all([one.hash for one in reflog.refs()])
    site.store.put(REFLOG_KEY, reflog.to_bytes())
    for key in site.objects():
        then = time.time() - 9 * 86400
        os.utime(site.folder / "store" / FQRN / key, (then, then))
    roots = [root.key for _, root in preceding(site.head())]
    report = rehearse(on_site, FQRN, rules_of(on_site, FQRN), orphans=True)
    assert len(roots) >= 3
    assert not set(roots) & set(report.orphans_listed)


def test_orphans_go_under_the_lease_and_before_the_time_of_the_collection_moves(site: StockSite, on_site: Site) -> None:
    """A publisher that saw one of them is to look for its objects again, whenever it looked."""
    key, there = site.orphan(), []
    site.gateway.during_collection = lambda: there.append(site.store.exists(key))
    collect_behind(on_site, FQRN, replace(QUICK, orphans=True, delete_orphans=True))
    assert there == [False]
    assert site.gateway.collections[0]["leased"] == ["/"]


def test_publishers_are_told_of_deleted_orphans_also_where_the_collection_failed(
    site: StockSite, on_site: Site
) -> None:
    site.orphan()
    before = look(site.store).token
    site.gateway.collection_fails = ["exit status 1", "exit status 1"]
    with pytest.raises(CollectionFailed):
        collect_behind(on_site, FQRN, replace(QUICK, orphans=True, delete_orphans=True))
    assert look(site.store).token != before
    site.assert_open()


def test_no_orphan_is_deleted_once_a_revision_came_although_everything_is_leased(
    site: StockSite, on_site: Site
) -> None:
    key = site.orphan()

    def switch_beside_the_gateway(step: str, done: int, total: int) -> None:
        if (step, done) == ("orphans", total):
            root = site.head().manifest.root
            site.gateway.receiver.commit("/", root, root, None)

    rules = replace(QUICK, orphans=True, delete_orphans=True, progress=switch_beside_the_gateway)
    with pytest.raises(ManifestConflict):
        collect_behind(on_site, FQRN, rules)
    assert key in site.objects()
    assert site.gateway.collections == []
    site.assert_open()


def test_a_dry_run_leases_and_changes_nothing(site: StockSite, on_site: Site) -> None:
    before, key = {one: site.store.get(one) for one in site.objects()}, site.orphan()
    report = rehearse(on_site, FQRN, rules_of(on_site, FQRN), orphans=True)
    assert report.dry_run
    assert report.condemned >= 6
    assert report.deleted == 0
    assert report.orphans_listed == [key]
    assert before.keys() | {key} == site.objects()
    assert site.gateway.held() == []
    assert site.gateway.collections[0]["leased"] == []
    site.assert_open()


def test_the_command_lists_orphans_and_deletes_them_only_with_yes(
    site: StockSite, on_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = site.orphan()
    monkeypatch.setattr("include.cli.repository.repair.open_site", lambda: on_site)

    def gc(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["gc", FQRN, *words], catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done.output

    assert f"orphan: {key}" in gc("--orphans", "--dry-run")
    assert f"orphan: {key}" in gc("--orphans")
    gc("--yes", code=2)
    gc("--orphans", "--yes", "--dry-run", code=2)
    assert key in site.objects()
    assert json.loads(gc("--orphans", "--yes", "--json"))["deleted"] == 1
    assert key not in site.objects()
