"""Changesets that lie, are stale or have lost their objects are refused before anything is switched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.errors import (
    CHANGESET_EXPIRED,
    LAYOUT_CHANGED,
    BaseChanged,
    CatalogError,
    CvmfsError,
    DestinationError,
    ObjectDamaged,
    ObjectMissing,
    ObjectsLost,
    RepositoryError,
)
from include.cvmfs.format.hashes import CATALOG, Algorithm, ObjectHash
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.schema import Counts, Statistics
from include.cvmfs.ingest.changeset import Changeset
from include.gateway.errors import ROOT_MISSING, CommitUnclear, TagRefused
from include.storage.store import Store
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.refused import refused
from tests.integration.conftest import AGAIN_ON_S3
from tests.site import BUILD, DESTINATIONS, FQRN, NESTED, Deployment

pytestmark = AGAIN_ON_S3
NOW = datetime.now(UTC)
DESTINATION = DESTINATIONS[0]
FILES = {"bin/run": b"#!/bin/sh\n", "lib/data": b"x" * 1000}
Spoil = Callable[[Deployment, Changeset], Changeset]
Named = Callable[[Changeset], dict[str, object]]


def key_of(changeset: Changeset) -> str:
    return changeset.root.with_suffix(CATALOG).key


KEY: Named = lambda it: {"key": key_of(it)}  # noqa: E731
KEYS: Named = lambda it: {"path": DESTINATION, "keys": (key_of(it),)}  # noqa: E731


def harmed(harm: Callable[[Store, str], object]) -> Spoil:
    """Do something to its root catalog in the store."""

    def spoil(site: Deployment, changeset: Changeset) -> Changeset:
        harm(site.store, key_of(changeset))
        return changeset

    return spoil


def miscounted(_: Deployment, it: Changeset) -> Changeset:
    statistics = Statistics(it.statistics.own + Counts(regular=1_000_000), it.statistics.below)
    return replace(it, statistics=statistics)


def no_catalog(site: Deployment, it: Changeset) -> Changeset:
    return replace(it, root=site.head().manifest.certificate.with_suffix(CATALOG))


def test_a_changeset_of_another_layout_than_the_repository_is_prepared_again(reserved: Deployment) -> None:
    before = reserved.head().manifest
    changeset = reserved.prepared(DESTINATION, FILES, layout=Layout.MTIME_NS)
    with refused(LAYOUT_CHANGED, path=DESTINATION):
        reserved.worker().publish(changeset, holder="test", now=NOW)
    assert reserved.head().manifest == before
    again = reserved.worker().publish(reserved.prepared(DESTINATION, FILES), holder="test", now=NOW)
    assert again.revision == before.revision + 1
    reserved.assert_sound()


@pytest.mark.parametrize(
    ("spoil", "error", "named"),
    [
        (harmed(lambda store, key: store.delete([key])), ObjectsLost, KEYS),
        (harmed(lambda store, key: store.put(key, store.get(key)[:-1] + b"!")), ObjectDamaged, KEY),
        (harmed(lambda store, key: store.put(key, b"")), ObjectDamaged, KEY),
        (lambda _, it: replace(it, destination=DESTINATIONS[1]), CatalogError, lambda _: {"path": DESTINATIONS[1]}),
        (miscounted, CatalogError, lambda _: {"path": DESTINATION}),
        (lambda _, it: replace(it, root_size=it.root_size + 4096), CatalogError, lambda _: {"path": DESTINATION}),
        (lambda _, it: replace(it, repository="other.example.org"), RepositoryError, lambda _: {"fqrn": FQRN}),
        (lambda _, it: replace(it, stored=False), ObjectMissing, KEY),
        (no_catalog, ObjectsLost, KEYS),
    ],
    ids=["lost", "damaged", "emptied", "elsewhere", "miscounted", "missized", "foreign", "of a dry run", "no catalog"],
)
def test_a_changeset_that_is_not_what_it_says_is_refused_without_a_lease(
    reserved: Deployment, spoil: Spoil, error: type[CvmfsError], named: Named
) -> None:
    before = reserved.head().manifest
    changeset = spoil(reserved, reserved.prepared(DESTINATION, FILES))
    with FaultProxy(reserved.url) as proxy:
        with refused(error, **named(changeset)):
            reserved.worker(proxy.url).publish(changeset, holder="test", now=NOW)
        assert proxy.count("POST") == 0
    assert reserved.head().manifest == before
    reserved.assert_sound()
    reserved.worker().publish(reserved.prepared(DESTINATION, FILES), holder="test", now=NOW)
    reserved.assert_sound()


def test_attributes_that_a_changeset_claims_do_not_matter_the_catalogs_own_do(reserved: Deployment) -> None:
    changeset = reserved.prepared(DESTINATION, FILES)
    lying = replace(changeset, root_entry=changeset.root_entry.changed(uid=0xFFFF, linkcount=77, mtime=5))
    reserved.worker().publish(lying, holder="test", now=NOW)
    entry = reserved.readers().revision.lookup(DESTINATION)
    assert entry is not None
    assert (entry.uid, entry.linkcount, entry.mtime) == (0, 4, 1)
    reserved.assert_sound()


def test_a_catalog_that_vanished_after_it_was_verified_is_refused_by_the_gateway(reserved: Deployment) -> None:
    before = reserved.head().manifest
    changeset = reserved.prepared(DESTINATION, FILES)
    with refused(ROOT_MISSING, path=DESTINATION):
        reserved.worker().publish(
            changeset, holder="test", now=NOW, on_lease=lambda drop: reserved.store.delete([key_of(changeset)])
        )
    assert reserved.head().manifest == before
    reserved.assert_sound()


def test_a_change_whose_base_was_collected_is_to_be_derived_again(reserved: Deployment) -> None:
    reserved.worker().publish(reserved.prepared(DESTINATION, FILES), holder="one", now=NOW)
    base = reserved.head()
    changeset = reserved.prepared(DESTINATION, {"f": b"2"})
    reserved.worker().publish(reserved.prepared(DESTINATION, {"f": b"3"}), holder="two", now=NOW)
    reserved.store.delete([base.manifest.root.with_suffix(CATALOG).key])
    with refused(BaseChanged, path=DESTINATION):
        reserved.worker().publish(changeset, holder="one", now=NOW)
    assert reserved.readers().revision.read(f"{DESTINATION}/f") == b"3"
    head = reserved.head().manifest
    again = replace(changeset, base_root=head.root, base_revision=head.revision)
    reserved.worker().publish(again, holder="one", now=NOW)
    assert reserved.readers().revision.read(f"{DESTINATION}/f") == b"2"


# -- tags


def test_a_publication_with_a_tag_that_is_repeated_is_unchanged(reserved: Deployment) -> None:
    changeset = reserved.prepared(DESTINATION, FILES)
    first = reserved.worker().publish(changeset, holder="test", now=NOW, tag=NewTag("v1"))
    again = reserved.worker().publish(changeset, holder="test", now=NOW, tag=NewTag("v1"))
    assert (again.unchanged, again.revision) == (True, first.revision)
    reserved.assert_sound()


def test_a_tag_that_is_taken_is_a_conflict_and_a_new_one_goes_on_what_stands(reserved: Deployment) -> None:
    changeset = reserved.prepared(DESTINATION, FILES)
    reserved.worker().publish(changeset, holder="test", now=NOW, tag=NewTag("v1"))
    other = reserved.prepared(DESTINATIONS[1], FILES)
    with refused(TagRefused, path=DESTINATIONS[1]):
        reserved.worker().publish(other, holder="test", now=NOW, tag=NewTag("v1"))
    assert reserved.head().manifest.revision == 2
    reserved.assert_sound()
    tagged = reserved.worker().publish(changeset, holder="test", now=NOW, tag=NewTag("v2"))
    assert (tagged.unchanged, tagged.revision) == (False, 3)
    assert {tag.name for tag in reserved.readers().history().tags()} == {"trunk", "trunk-previous", "v1", "v2"}
    reserved.assert_sound()


# -- reserving


@pytest.mark.parametrize("inner", [f"{DESTINATION}/inner", f"{DESTINATION}/a/b"])
def test_a_destination_inside_another_is_refused(site: Deployment, inner: str) -> None:
    with refused(DestinationError, path=inner):
        site.reserve([inner, DESTINATION])
    assert site.client().leases() == []


def test_a_lost_reply_to_a_reservation_is_no_success_because_the_directory_stands(reserved: Deployment) -> None:
    """The lease is on a plain directory that others change too: that it looks the same says nothing."""
    worker = reserved.worker()
    wanted = ["/nightlies/other/b1/alpha/x86_64", "/nightlies/third/b1/alpha/x86_64"]

    class Unclear(type(worker._client)):  # type: ignore[misc]
        def commit(self, lease: object, old_root: ObjectHash, new_root: ObjectHash, **_: object) -> int:
            self.drop(lease)  # it never arrived; then a rival adds as many directories as we wanted to
            rivals = ["/nightlies/fourth/b1/alpha/x86_64", "/nightlies/fifth/b1/alpha/x86_64"]
            reserved.worker().reserve(rivals, nested=[], holder="rival", now=NOW)
            raise CommitUnclear("no reply")

    worker._client.__class__ = Unclear
    with pytest.raises(CommitUnclear):
        worker.reserve(wanted, nested=[], holder="test", now=NOW)
    assert reserved.readers().revision.lookup("/nightlies/other") is None
    reserved.worker().reserve(wanted, nested=[], holder="test", now=NOW)
    reserved.assert_sound()


# -- names, algorithms, clocks


@pytest.mark.parametrize(
    "destination",
    [
        f"{BUILD}/with space/x86 64",
        f"{BUILD}/e\u0301te\u0301/\u00e9t\u00e9",
        f"{BUILD}/{'n' * 200}/{'ü' * 100}",
        f"{BUILD}/{'/'.join(f'd{level}' for level in range(50))}",
        f"{BUILD}/100%/a+b&c=d?e#f'\"",
        "/日本/語",
    ],
    ids=["spaces", "combining characters", "200 bytes", "50 levels", "signs", "other scripts"],
)
def test_destinations_of_all_kinds_are_reserved_published_and_removed(site: Deployment, destination: str) -> None:
    site.worker().reserve([destination], nested=NESTED, holder="test", now=NOW)
    changeset = Changeset.parse(site.prepared(destination, {"e\u0301": b"1", "\u00e9": b"2", "a b": b"3"}).format())
    site.worker().publish(changeset, holder="test", now=NOW)
    readers = site.readers()
    names = [entry.name for entry in readers.revision.listing(destination)]
    assert names == [".cvmfscatalog", "a b", "e\u0301", "\u00e9"]
    assert readers.revision.read(f"{destination}/\u00e9") == b"2"
    site.assert_sound()
    site.worker().remove(destination, holder="test", now=NOW)
    assert site.readers().revision.lookup(destination) is None
    site.assert_sound()


@pytest.mark.parametrize("algorithm", [Algorithm.RMD160, Algorithm.SHAKE128])
def test_repositories_of_other_hash_algorithms_are_published_to(
    site: Deployment, any_store: Store, algorithm: Algorithm
) -> None:
    any_store.delete([found.key for found in any_store.list()])
    site.algorithm = algorithm
    site.create()
    site.reserve()
    site.worker().publish(site.prepared(DESTINATION, FILES), holder="test", now=NOW, tag=NewTag("v1"))
    site.worker().publish(site.prepared(DESTINATION, {**FILES, "new": b"1"}), holder="test", now=NOW)
    readers = site.readers()
    assert readers.revision.read(f"{DESTINATION}/new") == b"1"
    assert {readers.manifest.root.algorithm, readers.revision.lookup(f"{DESTINATION}/new").algorithm} == {algorithm}
    site.assert_sound()


def test_publishers_whose_clocks_differ_by_years_publish_all_the_same(reserved: Deployment) -> None:
    for years, destination in ((30, DESTINATIONS[0]), (-30, DESTINATIONS[1]), (0, DESTINATIONS[2])):
        when = NOW + timedelta(days=365 * years)
        changeset = reserved.prepared(destination, FILES)
        if years:
            with refused(CHANGESET_EXPIRED):
                reserved.worker().publish(changeset, holder="test", now=when)
        # a worker prepares by the clock that it publishes by
        reserved.worker().publish(replace(changeset, created=when), holder="test", now=when)
    reserved.assert_sound()
    assert abs(reserved.head().manifest.timestamp - datetime.now(UTC).timestamp()) < 600
