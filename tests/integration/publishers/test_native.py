"""The native publisher against the real gateway service and S3 server: two steps, no lost work, nothing left leased."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.errors import BaseChanged, DestinationError, NotReserved
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.refused import refused
from tests.fakes.together import together
from tests.site import BUILD, DESTINATIONS, NESTED, Deployment

NOW = datetime.now(UTC)


def test_reserve_makes_one_revision_and_a_second_one_none(site: Deployment) -> None:
    assert site.reserve() == 1
    again = site.worker().reserve(DESTINATIONS, nested=NESTED, holder="test", now=NOW)
    assert (again.revision, again.created, again.lease_held_s) == (1, (), 0.0)
    assert site.readers().revision.nested_at(BUILD) is not None
    assert site.readers().revision.nested_at("/nightlies") is None
    site.assert_sound()


def test_a_published_tree_is_read_back_through_the_public_url(reserved: Deployment) -> None:
    changeset = reserved.prepared(DESTINATIONS[0], {"bin/run": b"#!/bin/sh\n", "lib/data": b"x" * 100_000})
    done = reserved.worker().publish(changeset, holder="test", now=NOW, tag=NewTag("b1"))
    assert (done.revision_before, done.revision, done.unchanged) == (1, 2, False)
    readers = reserved.readers()
    assert readers.manifest.root == done.root_hash
    assert readers.revision.read(f"{DESTINATIONS[0]}/bin/run") == b"#!/bin/sh\n"
    assert readers.at("b1").read(f"{DESTINATIONS[0]}/lib/data") == b"x" * 100_000
    reserved.assert_sound()


def test_publishing_again_is_unchanged_and_makes_no_revision(reserved: Deployment) -> None:
    changeset = reserved.prepared(DESTINATIONS[0], {"f": b"1"})
    first = reserved.worker().publish(changeset, holder="test", now=NOW)
    again = reserved.worker().publish(changeset, holder="test", now=NOW)
    assert (again.unchanged, again.revision, again.nested_hash) == (True, first.revision, first.nested_hash)
    reserved.assert_sound()


def test_three_workers_publish_disjoint_paths_at_once_and_nothing_is_lost(reserved: Deployment) -> None:
    base = reserved.head()
    changesets = [reserved.prepared(path, {"f": path.encode(), "d/g": b"g"}, base) for path in DESTINATIONS]
    done = together(
        partial(reserved.worker().publish, changeset, holder=changeset.destination, now=NOW) for changeset in changesets
    )
    revisions = sorted(publication.revision for publication in done)
    readers = reserved.readers()
    assert 2 <= readers.manifest.revision <= 1 + len(changesets), "those that wait together share a revision"
    assert revisions[-1] == readers.manifest.revision
    assert [readers.revision.read(f"{path}/f") for path in DESTINATIONS] == [path.encode() for path in DESTINATIONS]
    reserved.assert_sound()


def test_a_stale_change_to_a_destination_that_moved_on_is_refused_and_reverts_nothing(reserved: Deployment) -> None:
    base = reserved.head()
    old = reserved.prepared(DESTINATIONS[0], {"f": b"old"}, base)
    new = reserved.prepared(DESTINATIONS[0], {"f": b"new"}, base)
    reserved.worker().publish(new, holder="one", now=NOW)
    with refused(BaseChanged, path=DESTINATIONS[0]):
        reserved.worker().publish(old, holder="two", now=NOW)
    assert reserved.readers().revision.read(f"{DESTINATIONS[0]}/f") == b"new"
    reserved.assert_sound()


def test_a_rebuild_derived_from_what_stands_replaces_it(reserved: Deployment) -> None:
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], {"f": b"1", "gone": b""}), holder="one", now=NOW)
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], {"f": b"2"}), holder="one", now=NOW)
    readers = reserved.readers()
    assert readers.revision.read(f"{DESTINATIONS[0]}/f") == b"2"
    assert readers.revision.lookup(f"{DESTINATIONS[0]}/gone") is None
    with refused(DestinationError, path=DESTINATIONS[0]):
        reserved.worker().publish(reserved.prepared(DESTINATIONS[0], {"f": b"3"}), holder="one", now=NOW, replace=False)
    reserved.assert_sound()


def test_an_unreserved_destination_is_refused_without_a_lease(site: Deployment) -> None:
    changeset = site.prepared("/nowhere/yet", {"f": b"1"})
    with refused(NotReserved, path="/nowhere/yet"):
        site.worker().publish(changeset, holder="test", now=NOW)
    assert site.client().leases() == []


def test_a_file_in_the_way_is_refused(reserved: Deployment) -> None:
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], {"f": b"1"}), holder="test", now=NOW)
    with refused(DestinationError, path=f"{DESTINATIONS[0]}/f/x"):
        reserved.reserve([f"{DESTINATIONS[0]}/f/x"])


def test_removing_a_build_gives_the_old_counters_back(reserved: Deployment) -> None:
    before = reserved.readers()
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], {"a/b/c": b"1"}), holder="test", now=NOW)
    removed = reserved.worker().remove(DESTINATIONS[0], holder="test", now=NOW)
    reserved.reserve()
    after = reserved.readers()
    assert removed.revision == 3
    one, other = (tree.catalogs.open(tree.manifest.root).statistics for tree in (before, after))
    assert one == other
    reserved.assert_sound()


def test_a_lost_reply_to_the_commit_is_settled_and_publishes_once(reserved: Deployment) -> None:
    changeset = reserved.prepared(DESTINATIONS[0], {"f": b"1"})
    with FaultProxy(reserved.url) as proxy:
        lost = proxy.cut(method="POST", path=r"/leases/.+", after_forwarding=True)
        done = reserved.worker(proxy.url).publish(changeset, holder="test", now=NOW)
    assert lost.struck == 1
    assert done.revision == 2
    assert reserved.readers().manifest.revision == 2
    reserved.assert_sound()
