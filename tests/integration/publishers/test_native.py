"""The native publisher against the real gateway service and S3 server: two steps, no lost work, nothing left leased."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.errors import BaseChanged, DestinationError, NotReserved
from include.gateway.errors import PathBusy
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.refused import refused
from tests.fakes.site import BUILD, DESTINATIONS, NESTED
from tests.integration.publishers.conftest import ThreadSite as SiteSettings

NOW = datetime.now(UTC)


def reserve(site: SiteSettings, destinations: list[str] = DESTINATIONS) -> int:
    return site.reserve(destinations)


def assert_sound(site: SiteSettings) -> None:
    site.assert_sound()


def test_reserve_makes_one_revision_and_a_second_one_none(site: SiteSettings) -> None:
    assert reserve(site) == 1
    again = site.worker().reserve(DESTINATIONS, nested=NESTED, holder="test", now=NOW)
    assert (again.revision, again.created, again.lease_held_s) == (1, (), 0.0)
    assert site.readers().revision.nested_at(BUILD) is not None
    assert site.readers().revision.nested_at("/nightlies") is None
    assert_sound(site)


def test_a_published_tree_is_read_back_through_the_public_url(site: SiteSettings) -> None:
    reserve(site)
    changeset = site.prepared(DESTINATIONS[0], {"bin/run": b"#!/bin/sh\n", "lib/data": b"x" * 100_000})
    done = site.worker().publish(changeset, holder="test", now=NOW, tag=NewTag("b1"))
    assert (done.revision_before, done.revision, done.unchanged) == (1, 2, False)
    readers = site.readers()
    assert readers.manifest.root == done.root_hash
    assert readers.revision.read(f"{DESTINATIONS[0]}/bin/run") == b"#!/bin/sh\n"
    assert readers.at("b1").read(f"{DESTINATIONS[0]}/lib/data") == b"x" * 100_000
    assert_sound(site)


def test_publishing_again_is_unchanged_and_makes_no_revision(site: SiteSettings) -> None:
    reserve(site)
    changeset = site.prepared(DESTINATIONS[0], {"f": b"1"})
    first = site.worker().publish(changeset, holder="test", now=NOW)
    again = site.worker().publish(changeset, holder="test", now=NOW)
    assert (again.unchanged, again.revision, again.nested_hash) == (True, first.revision, first.nested_hash)
    assert_sound(site)


def test_three_workers_publish_disjoint_paths_at_once_and_nothing_is_lost(site: SiteSettings) -> None:
    reserve(site)
    base = site.head()
    changesets = [site.prepared(path, {"f": path.encode(), "d/g": b"g"}, base) for path in DESTINATIONS]
    barrier = threading.Barrier(len(changesets))

    def publish(changeset):
        worker = site.worker()
        barrier.wait(20)
        return worker.publish(changeset, holder=changeset.destination, now=NOW)

    with ThreadPoolExecutor(len(changesets)) as pool:
        revisions = sorted(done.revision for done in pool.map(publish, changesets))
    readers = site.readers()
    assert 2 <= readers.manifest.revision <= 1 + len(changesets), "those that wait together share a revision"
    assert revisions[-1] == readers.manifest.revision
    assert [readers.revision.read(f"{path}/f") for path in DESTINATIONS] == [path.encode() for path in DESTINATIONS]
    assert_sound(site)


def test_a_stale_change_to_a_destination_that_moved_on_is_refused_and_reverts_nothing(site: SiteSettings) -> None:
    reserve(site)
    base = site.head()
    old = site.prepared(DESTINATIONS[0], {"f": b"old"}, base)
    new = site.prepared(DESTINATIONS[0], {"f": b"new"}, base)
    site.worker().publish(new, holder="one", now=NOW)
    with refused(BaseChanged, path=DESTINATIONS[0]):
        site.worker().publish(old, holder="two", now=NOW)
    assert site.readers().revision.read(f"{DESTINATIONS[0]}/f") == b"new"
    assert_sound(site)


def test_a_rebuild_derived_from_what_stands_replaces_it(site: SiteSettings) -> None:
    reserve(site)
    site.worker().publish(site.prepared(DESTINATIONS[0], {"f": b"1", "gone": b""}), holder="one", now=NOW)
    site.worker().publish(site.prepared(DESTINATIONS[0], {"f": b"2"}), holder="one", now=NOW)
    readers = site.readers()
    assert readers.revision.read(f"{DESTINATIONS[0]}/f") == b"2"
    assert readers.revision.lookup(f"{DESTINATIONS[0]}/gone") is None
    with refused(DestinationError, path=DESTINATIONS[0]):
        site.worker().publish(site.prepared(DESTINATIONS[0], {"f": b"3"}), holder="one", now=NOW, replace=False)
    assert_sound(site)


def test_an_unreserved_destination_is_refused_without_a_lease(site: SiteSettings) -> None:
    changeset = site.prepared("/nowhere/yet", {"f": b"1"})
    with refused(NotReserved, path="/nowhere/yet"):
        site.worker().publish(changeset, holder="test", now=NOW)
    assert site.client().leases() == []


def test_a_file_in_the_way_is_refused(site: SiteSettings) -> None:
    reserve(site)
    site.worker().publish(site.prepared(DESTINATIONS[0], {"f": b"1"}), holder="test", now=NOW)
    with refused(DestinationError, path=f"{DESTINATIONS[0]}/f/x"):
        reserve(site, [f"{DESTINATIONS[0]}/f/x"])


def test_a_busy_path_names_its_holder_and_the_time_left(site: SiteSettings) -> None:
    reserve(site)
    changeset = site.prepared(DESTINATIONS[0], {"f": b"1"})
    with (
        site.client().lease("nights.example.org", DESTINATIONS[0], hostname="somebody else"),
        refused(PathBusy, path=DESTINATIONS[0]) as busy,
    ):
        site.worker().publish(changeset, holder="test", now=NOW)
    assert busy.value.holder is not None
    assert busy.value.holder.hostname == "somebody else"
    assert 0 < busy.value.time_remaining_s <= site.max_lease_time_s
    site.worker().publish(changeset, holder="test", now=NOW)
    assert_sound(site)


def test_removing_a_build_gives_the_old_counters_back(site: SiteSettings) -> None:
    reserve(site)
    before = site.readers()
    site.worker().publish(site.prepared(DESTINATIONS[0], {"a/b/c": b"1"}), holder="test", now=NOW)
    removed = site.worker().remove(DESTINATIONS[0], holder="test", now=NOW)
    reserve(site)
    after = site.readers()
    assert removed.revision == 3
    one, other = (tree.catalogs.open(tree.manifest.root).statistics for tree in (before, after))
    assert one == other
    assert_sound(site)


def test_a_lost_reply_to_the_commit_is_settled_and_publishes_once(site: SiteSettings) -> None:
    reserve(site)
    changeset = site.prepared(DESTINATIONS[0], {"f": b"1"})
    with FaultProxy(site.url) as proxy:
        lost = proxy.cut(method="POST", path=r"/leases/.+", after_forwarding=True)
        done = site.worker(proxy.url).publish(changeset, holder="test", now=NOW)
    assert lost.struck == 1
    assert done.revision == 2
    assert site.readers().manifest.revision == 2
    assert_sound(site)


def test_a_restarted_gateway_keeps_what_was_acknowledged_and_goes_on(site: SiteSettings) -> None:
    reserve(site)
    site.worker().publish(site.prepared(DESTINATIONS[0], {"f": b"1"}), holder="test", now=NOW)
    site.stop()
    site.start()
    site.worker().publish(site.prepared(DESTINATIONS[1], {"f": b"2"}), holder="test", now=NOW)
    assert_sound(site)
