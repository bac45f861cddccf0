"""The native publisher with the real gateway: whole revisions, no lost work, nothing left leased."""

from __future__ import annotations

from typing import Any

import pytest

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import BaseChanged, DestinationError, NotReserved
from include.cvmfs.format.catalog import Catalog, NestedRef, PackedCatalog
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.schema import Counts
from include.gateway.errors import MERGE_FAILED, PathBusy
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.refused import refused
from tests.integration.conftest import AGAIN_ON_S3
from tests.site import BUILD, DESTINATIONS, NESTED, Deployment, now

pytestmark = AGAIN_ON_S3
DIRECTORY = Dirent("", 0o40755, size=4096, linkcount=2)
FILES = {"bin/tool": b"#!/bin/sh\n", "lib/a": b"a" * 100, "lib/.cvmfscatalog": b""}


def test_reserve_makes_one_revision_and_a_second_one_none(site: Deployment) -> None:
    assert site.reserve() == 1
    again = site.worker().reserve(DESTINATIONS, nested=NESTED, holder="test", now=now())
    assert (again.revision, again.created, again.lease_held_s) == (1, (), 0.0)
    assert site.readers().revision.nested_at(BUILD) is not None
    assert site.readers().revision.nested_at("/nightlies") is None
    site.assert_sound()


def test_a_stale_change_to_a_destination_that_moved_on_is_refused_and_reverts_nothing(reserved: Deployment) -> None:
    base = reserved.head()
    old = reserved.prepared(DESTINATIONS[0], {"f": b"old"}, base)
    new = reserved.prepared(DESTINATIONS[0], {"f": b"new"}, base)
    reserved.worker().publish(new, holder="one", now=now())
    with refused(BaseChanged, path=DESTINATIONS[0]):
        reserved.worker().publish(old, holder="two", now=now())
    assert reserved.readers().revision.read(f"{DESTINATIONS[0]}/f") == b"new"
    reserved.assert_sound()


def test_a_rebuild_derived_from_what_stands_replaces_it(reserved: Deployment) -> None:
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], {"f": b"1", "gone": b""}), holder="one", now=now())
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], {"f": b"2"}), holder="one", now=now())
    readers = reserved.readers()
    assert readers.revision.read(f"{DESTINATIONS[0]}/f") == b"2"
    assert readers.revision.lookup(f"{DESTINATIONS[0]}/gone") is None
    with refused(DestinationError, path=DESTINATIONS[0]):
        reserved.worker().publish(
            reserved.prepared(DESTINATIONS[0], {"f": b"3"}), holder="one", now=now(), replace=False
        )
    reserved.assert_sound()


def test_an_unreserved_destination_is_refused_without_a_lease(site: Deployment) -> None:
    changeset = site.prepared("/nowhere/yet", {"f": b"1"})
    with refused(NotReserved, path="/nowhere/yet"):
        site.worker().publish(changeset, holder="test", now=now())
    assert site.client().leases() == []


def test_a_file_in_the_way_is_refused(reserved: Deployment) -> None:
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], {"f": b"1"}), holder="test", now=now())
    with refused(DestinationError, path=f"{DESTINATIONS[0]}/f/x"):
        reserved.reserve([f"{DESTINATIONS[0]}/f/x"])


def test_removing_a_build_gives_the_old_counters_back(reserved: Deployment) -> None:
    before = reserved.readers()
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], {"a/b/c": b"1"}), holder="test", now=now())
    removed = reserved.worker().remove(DESTINATIONS[0], holder="test", now=now())
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
        done = reserved.worker(proxy.url).publish(changeset, holder="test", now=now())
    assert lost.struck == 1
    assert done.revision == 2
    assert reserved.readers().manifest.revision == 2
    reserved.assert_sound()


# -- any edit: tried before its lease, done again when another publishes meanwhile, never halved


@pytest.fixture
def built(site: Deployment) -> Deployment:
    site.reserve()
    for place in DESTINATIONS[:2]:
        site.worker().publish(site.prepared(place, FILES), holder="test", now=now())
    return site


@pytest.mark.parametrize("what", ["absurd counter", "no database"])
def test_a_catalog_that_nobody_could_use_is_refused_to_its_sender_by_the_gateway(built: Deployment, what: str) -> None:
    catalog = Catalog.create("/q", DIRECTORY)
    catalog._count(Counts(regular=(1 << 63) - 1))
    bad = PackedCatalog.of(catalog.to_bytes() if what == "absurd counter" else b"no database")
    built.store.put(bad.hash.key, bad.data)
    before = built.head().manifest.revision
    with refused(MERGE_FAILED, path="/q") as caught:
        change(built, "/q", lambda edit: edit.hang(NestedRef("/q", bad.hash, bad.size), DIRECTORY, Counts()))
    assert str(bad.hash.with_suffix("")) in str(caught.value)
    assert built.head().manifest.revision == before
    change(built, "/other", lambda edit: edit.make_nested("/other", DIRECTORY))
    built.assert_sound()


def change(site: Deployment, lease: str, apply: Any, **fields: Any) -> Any:
    return site.worker().change(lease, apply, holder="test", now=now(), **fields)


def test_a_subtree_moves_without_its_data(built: Deployment) -> None:
    before = {meta.key for meta in built.store.list("data/") if meta.key[-1] not in "CH"}
    done = change(built, BUILD, lambda edit: edit.move(DESTINATIONS[0], f"{BUILD}/moved"))
    assert done.revision == done.revision_before + 1
    assert built.readers().revision.read(f"{BUILD}/moved/bin/tool") == b"#!/bin/sh\n"
    assert built.readers().revision.lookup(DESTINATIONS[0]) is None
    assert {meta.key for meta in built.store.list("data/") if meta.key[-1] not in "CH"} == before
    built.assert_sound()
    change(built, BUILD, lambda edit: edit.move(f"{BUILD}/moved", DESTINATIONS[0]), tag=NewTag("back"))
    assert built.readers().tag("back").revision == done.revision + 1
    built.assert_sound()


def test_several_places_go_in_one_revision(built: Deployment) -> None:
    def apply(edit: Edit) -> None:
        for place in DESTINATIONS:
            edit.remove(place)
        edit.symlink(f"{BUILD}/latest", "alpha", now=1)

    done = change(built, BUILD, apply)
    assert done.revision == done.revision_before + 1
    assert {entry.name for entry in built.readers().revision.listing(BUILD)} == {
        ".cvmfscatalog", "alpha", "beta", "gamma", "latest",
    }  # fmt: skip
    built.assert_sound()


def test_nothing_to_do_makes_no_revision_and_takes_no_lease(built: Deployment) -> None:
    link = f"{BUILD}/latest"
    first = change(built, link, lambda edit: edit.symlink(link, "alpha", now=1))
    with built.client().lease("nights.example.org", link, hostname="another"):
        again = change(built, link, lambda edit: edit.symlink(link, "alpha", now=2))
    assert again.unchanged
    assert again.revision == first.revision
    tagged = change(built, link, lambda edit: edit.symlink(link, "alpha", now=2), tag=NewTag("linked"))
    assert built.readers().tag("linked").revision == tagged.revision


def test_a_publication_in_between_is_kept(built: Deployment) -> None:
    calls: list[int] = []

    def apply(edit: Edit) -> None:
        edit.move(DESTINATIONS[0], f"{BUILD}/moved")
        calls.append(1)
        if len(calls) == 1:
            built.worker().publish(built.prepared(DESTINATIONS[2], FILES), holder="other", now=now())

    change(built, BUILD, apply)
    assert len(calls) == 2
    assert built.readers().revision.read(f"{DESTINATIONS[2]}/lib/a") == b"a" * 100
    assert built.readers().revision.read(f"{BUILD}/moved/lib/a") == b"a" * 100
    built.assert_sound()


def test_a_busy_place_and_a_bad_change_leave_everything_as_it_was(built: Deployment) -> None:
    before = built.head().manifest
    with built.client().lease("nights.example.org", DESTINATIONS[1], hostname="another"), pytest.raises(PathBusy):
        change(built, BUILD, lambda edit: edit.move(DESTINATIONS[0], f"{BUILD}/moved"))
    with pytest.raises(DestinationError):
        change(built, BUILD, lambda edit: edit.move(DESTINATIONS[0], DESTINATIONS[1]))
    assert built.head().manifest == before
    built.assert_sound()


def test_what_is_outside_of_the_lease_is_refused(built: Deployment) -> None:
    with refused(MERGE_FAILED, path=DESTINATIONS[0]):
        change(built, DESTINATIONS[0], lambda edit: edit.remove(DESTINATIONS[1]))
    assert built.readers().revision.lookup(DESTINATIONS[1]) is not None
    built.assert_sound()


# -- reservations of which nothing came are taken away, together, and never what another published meanwhile


def test_reservations_go_in_one_revision_with_the_directories_that_would_be_empty(reserved: Deployment) -> None:
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], FILES), holder="test", now=now())
    before = reserved.head().manifest.revision
    done = reserved.worker().release(DESTINATIONS, floor=BUILD, holder="test", now=now())
    assert done.removed == tuple(path.rpartition("/")[0] for path in DESTINATIONS[1:])
    assert done.revision == reserved.head().manifest.revision == before + 1
    names = [entry.name for entry in reserved.readers().revision.listing(BUILD)]
    assert names == [".cvmfscatalog", "alpha"]
    reserved.assert_sound()


def test_directories_that_were_created_with_the_reservations_go_with_the_last_of_them(site: Deployment) -> None:
    site.reserve(["/software/kept/1.0"])
    created: list[str] = []
    wanted = ["/software/lost/1.0", "/software/lost/2.0"]
    done = site.worker().reserve(wanted, nested=[], holder="test", now=now(), on_create=created.extend)
    assert tuple(created) == done.created == ("/software/lost", *wanted)
    site.worker().publish(site.prepared(wanted[0], FILES), holder="test", now=now())
    assert site.worker().release(wanted, floor=None, created=created, holder="test", now=now()).removed == (wanted[1],)
    site.worker().remove(wanted[0], holder="test", now=now())
    site.reserve([wanted[1]])
    gone = site.worker().release(wanted, floor=None, created=created, holder="test", now=now())
    assert gone.removed == ("/software/lost",)
    assert [entry.name for entry in site.readers().revision.listing("/software")] == ["kept"]
    site.assert_sound()


def test_with_nothing_to_take_away_no_lease_is_taken(reserved: Deployment) -> None:
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], FILES), holder="test", now=now())
    before = reserved.head().manifest.revision
    with reserved.client().lease("nights.example.org", BUILD, hostname="another publisher"):
        done = reserved.worker().release([DESTINATIONS[0], "/nowhere"], floor=BUILD, holder="test", now=now())
    assert (done.removed, done.revision) == ((), before)


def test_what_is_published_between_the_look_and_the_lease_stays(reserved: Deployment) -> None:
    worker = reserved.worker()
    changeset = reserved.prepared(DESTINATIONS[1], FILES)

    class Late(type(worker._client)):  # type: ignore[misc]
        def acquire(self, *args: object, **more: object) -> object:
            if self is worker._client:
                reserved.worker().publish(changeset, holder="a late publisher", now=now())
            return super().acquire(*args, **more)

    worker._client.__class__ = Late
    done = worker.release(DESTINATIONS[:2], floor=None, holder="test", now=now())
    assert done.removed == (DESTINATIONS[0],)
    assert reserved.readers().revision.read(f"{DESTINATIONS[1]}/lib/a") == FILES["lib/a"]
    reserved.assert_sound()
