"""Each kind of store in trouble under a publication: survived and counted, or ended with key and cure and no harm."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.ingest.changeset import Changeset
from include.storage.buckets import PolicyServer, Role, admin_client, allow_roles, ensure_bucket
from include.storage.errors import BucketMissing, Forbidden, NotFound, StoreError
from include.storage.file import FileStore
from include.storage.kinds import Credentials, Traits
from include.storage.open import open_store
from include.storage.store import Store
from lab.servers.radosgw import RadosgwServer
from lab.servers.s3 import S3Server
from tests.fakes.faultproxy import Fault, FaultProxy
from tests.fakes.together import together
from tests.integration.conftest import ON_ONE_S3, USERS
from tests.site import DESTINATIONS, FQRN, Deployment

NOW = datetime.now(UTC)
DESTINATION = DESTINATIONS[0]
FILES = {f"d{number % 3}/{number}": os.urandom(2000) for number in range(36)}
OBJECTS = r"/data/../\w+$"


def through(
    server: S3Server, proxy: FaultProxy, url: str, keys: Credentials | None = None, **settings: object
) -> Store:
    known = Traits(True, True, True, etag_quotes=server.kind is not PolicyServer.RADOSGW)
    options = server.options(endpoint=proxy.url, traits=known, **settings)
    return open_store(url, credentials=keys or server.credentials, options=options)


@pytest.fixture
def s3_site(
    s3_server: S3Server, s3_store: Store, public_url: str, knowing: Callable[[S3Server, Store], Store], tmp_path: Path
) -> Iterator[Deployment]:
    """A repository, reserved, with its gateway straight at the store; publishers change ``store`` to go round."""
    site = Deployment(tmp_path, knowing(s3_server, s3_store), public_url)
    site.create()
    site.start()
    site.reserve()
    yield site
    site.stop()


def published(site: Deployment, store: Store) -> Changeset:
    """FILES prepared and published through a store."""
    direct, site.store = site.store, store
    try:
        changeset = site.prepared(DESTINATION, FILES)
        assert site.worker(store=store).publish(changeset, holder="test", now=NOW).revision == 2
    finally:
        site.store = direct
    return changeset


# -- no trouble at all


def test_three_workers_publish_at_once_and_readers_of_the_public_url_see_all(reserved: Deployment) -> None:
    base, files = reserved.head(), {"bin/run": b"#!/bin/sh\n", "lib/data": b"x" * 100_000}
    changesets = [reserved.prepared(path, {**files, "f": path.encode()}, base) for path in DESTINATIONS]
    done = together(
        partial(reserved.worker().publish, changeset, holder=changeset.destination, now=NOW) for changeset in changesets
    )
    readers = reserved.readers()
    assert 2 <= readers.manifest.revision <= 1 + len(changesets), "those that wait together share a revision"
    assert max(publication.revision for publication in done) == readers.manifest.revision
    for path in DESTINATIONS:
        assert {name: readers.revision.read(f"{path}/{name}") for name in files} == files
        assert readers.revision.read(f"{path}/f") == path.encode()
    reserved.assert_sound()


# -- passing trouble


@ON_ONE_S3
def test_a_storm_cuts_and_slowness_are_survived_and_each_is_counted(
    s3_site: Deployment, s3_server: S3Server, s3_proxy: FaultProxy
) -> None:
    refused = s3_proxy.answer(503, code="SlowDown", times=25, method="PUT", path=OBJECTS)
    lost = s3_proxy.cut(times=5, method="PUT", path=OBJECTS, after_forwarding=True)
    slow = s3_proxy.hold(times=3, method="PUT", path=OBJECTS)
    store = through(s3_server, s3_proxy, s3_site.store.url, retries=8, timeout_s=4)
    changeset = published(s3_site, store)
    assert (refused.struck, lost.struck, slow.struck) == (25, 5, 3)
    retries = dict(store.counters.retries)
    assert retries.pop("timeout") >= 3, "a busy server is late by itself too"
    assert retries == {"503": 25, "connection": 5}
    # one more for the catalogs from the destination's up to the root
    assert store.counters.puts > changeset.objects_new
    s3_site.assert_sound()
    slow.release()


# -- acknowledged, but lost


@ON_ONE_S3
def test_lost_objects_are_named_by_check_and_a_new_preparation_brings_them_back(
    s3_site: Deployment, s3_server: S3Server, s3_proxy: FaultProxy
) -> None:
    lost = s3_proxy.pretend(times=3, path=OBJECTS.replace("$", "[0-9a-f]$"))
    store = through(s3_server, s3_proxy, s3_site.store.url)
    published(s3_site, store)
    assert lost.struck == 3
    # readers without keys name the same objects, though Ceph tells them "forbidden" of what is absent
    problems = check(s3_site.head()).problems
    assert [one.path for one in check(s3_site.readers()).problems] == [one.path for one in problems]
    assert len(problems) == 3
    assert all(one.path.startswith(f"{DESTINATION}/d") and "is not in the store" in one.what for one in problems)
    s3_site.prepared(DESTINATION, FILES)
    s3_site.assert_sound()


# -- lasting trouble, in the middle of a run


class Midway:
    """A preparation that stands still at one of its objects until something was done to the store."""

    def __init__(self, site: Deployment, store: Store, fault: Fault) -> None:
        self._fault = fault
        self._pool = ThreadPoolExecutor(1)
        site.store, head = store, site.head()
        self._result: Future[Changeset] = self._pool.submit(site.prepared, DESTINATION, FILES, head)

    def after(self, harm: Callable[[], object]) -> StoreError:
        """The error with which it ends."""
        self._fault.wait()
        harm()
        self._fault.release()
        with self._pool, pytest.raises(StoreError) as caught:
            self._result.result(60)
        assert caught.value.key
        assert not caught.value.retryable
        return caught.value


@pytest.fixture
def own_bucket(s3_server: S3Server, s3_prefix: str) -> str:
    """The URL of a bucket with roles for one repository, that a test may ruin."""
    url = f"s3://ruined-{s3_prefix}"
    ensure_bucket(url, s3_server.credentials, s3_server.options())
    grant(s3_server, url)
    return url


def grant(server: S3Server, url: str, *roles: Role) -> None:
    principals = {role: server.kind.principal(role.value) for role in roles or (Role.PUBLISHER, Role.GATEWAY)}
    allow_roles(url, server.credentials, server.options(), repositories=[FQRN], principals=principals)


@pytest.fixture
def ruined_site(s3_server: S3Server, own_bucket: str, tmp_path: Path) -> Iterator[Deployment]:
    """A repository in that bucket; the gateway has a gateway's credentials."""
    keys = USERS[Role.GATEWAY.value]
    store = open_store(f"{own_bucket}/{FQRN}", credentials=keys, options=s3_server.options())
    site = Deployment(tmp_path, store, s3_server.public_url(own_bucket.removeprefix("s3://"), FQRN))
    site.create()
    site.start()
    site.reserve()
    yield site
    site.stop()


def as_publisher(server: S3Server, url: str, proxy: FaultProxy | None = None) -> Store:
    options = server.options(endpoint=proxy.url if proxy else server.endpoint)
    return open_store(f"{url}/{FQRN}", credentials=USERS[Role.PUBLISHER.value], options=options)


@ON_ONE_S3
def test_a_permission_that_is_withdrawn_in_mid_run_ends_it_and_given_back_it_works_again(
    s3_server: S3Server, own_bucket: str, ruined_site: Deployment, s3_proxy: FaultProxy
) -> None:
    gateway, store = ruined_site.store, as_publisher(s3_server, own_bucket, s3_proxy)
    midway = Midway(ruined_site, store, s3_proxy.hold(method="PUT", path=OBJECTS))
    told = midway.after(lambda: grant(s3_server, own_bucket, Role.GATEWAY))
    assert isinstance(told, Forbidden)
    ruined_site.store = gateway
    assert ruined_site.head().manifest.revision == 1
    ruined_site.assert_sound()
    grant(s3_server, own_bucket)
    published(ruined_site, store)
    ruined_site.assert_sound()


@ON_ONE_S3
def test_a_bucket_that_is_removed_in_mid_run_is_told_from_a_missing_object(
    s3_server: S3Server, own_bucket: str, ruined_site: Deployment, s3_proxy: FaultProxy
) -> None:
    bucket = own_bucket.removeprefix("s3://")

    def remove() -> None:
        owner = s3_server.store(bucket)
        owner.delete([meta.key for meta in owner.list()])
        admin_client(s3_server.credentials, s3_server.options()).delete_bucket(Bucket=bucket)

    gateway, store = ruined_site.store, as_publisher(s3_server, own_bucket, s3_proxy)
    told = Midway(ruined_site, store, s3_proxy.hold(times=None, method="PUT", path=OBJECTS)).after(remove)
    assert isinstance(told, BucketMissing)
    ruined_site.store = gateway


@pytest.mark.server("radosgw")
def test_a_quota_that_is_used_up_in_mid_run_says_so(radosgw: RadosgwServer, s3_prefix: str, tmp_path: Path) -> None:
    url = f"s3://quota-{s3_prefix}"
    ensure_bucket(url, radosgw.credentials, radosgw.options())
    store = radosgw.store(url.removeprefix("s3://"))
    site = Deployment(tmp_path, store, store.url)
    site.create()
    radosgw.set_quota(url.removeprefix("s3://"), max_bytes=100_000)
    base = site.head()
    many = {str(number): os.urandom(2000) for number in range(500)}  # more than can be in flight before it is counted
    with pytest.raises(StoreError, match=r"quota is used up; raise it or delete") as caught:
        site.prepared(DESTINATION, many, base)
    assert caught.value.key
    assert store.counters.retries == {}
    radosgw.set_quota(url.removeprefix("s3://"), max_bytes=None)
    site.prepared(DESTINATION, many, base)


def test_a_folder_that_vanishes_in_mid_run_is_not_made_again(tmp_path: Path) -> None:
    started, vanished = threading.Event(), threading.Event()

    class Watched(FileStore):
        def put(self, key: str, data: bytes) -> None:
            started.set()
            assert vanished.wait(20)
            super().put(key, data)

    store = FileStore(tmp_path / "store")
    site = Deployment(tmp_path, store, store.url)
    site.create()
    base = site.head()
    site.store = Watched(tmp_path / "store")
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(site.prepared, DESTINATION, FILES, base)
        assert started.wait(20)
        shutil.move(tmp_path / "store", tmp_path / "elsewhere")
        vanished.set()
        with pytest.raises(NotFound) as caught:
            result.result(60)
    assert caught.value.key.startswith("data/")
    assert not (tmp_path / "store").exists()
