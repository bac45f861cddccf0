"""A store that is overloaded, cut off, forbidding, lying or full: work goes on, or ends with a cure and no harm."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.errors import ObjectMissing
from include.storage.file import FileStore
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.site import DESTINATIONS, Job, ProcessSite

DESTINATION = DESTINATIONS[0]
FILES = {f"lib/{number}": os.urandom(3000) for number in range(8)}
OBJECTS, CATALOGS = r"/data/../\w+$", r"/data/../\w+C$"
MANIFEST, REFLOG = r"/\.cvmfspublished$", r"/\.cvmfsreflog$"


def publisher(site: ProcessSite, **order: object) -> Job:
    tree = site.folder / "trees" / "tree"
    if not tree.exists():
        site.tree("tree", FILES)
    return site.start("publish", tree=str(tree), destination=DESTINATION, **order)


def assert_published(site: ProcessSite, revision: int = 2) -> None:
    assert site.head().manifest.revision == revision
    assert len(site.contents_over_time(DESTINATION)) == 3
    readers = site.readers()
    assert {path: readers.revision.read(f"{DESTINATION}/{path}") for path in FILES} == FILES
    site.goes_on()


# -- overload and lost connections


EACH = {("503", True, CATALOGS), ("cut", False, REFLOG), ("cut", True, MANIFEST)}
"""A write of each kind, each kind of trouble, and the write that counts whose reply is lost."""
TROUBLE = [
    pytest.param(
        how, after, path, id=f"{how}-{'after the store had done it' if after else 'before the store got it'}-{path}",
        marks=() if (how, after, path) in EACH else pytest.mark.thorough,
    )
    for how in ("cut", "503")
    for after in (False, True)
    for path in (CATALOGS, r"/data/../\w+H$", REFLOG, MANIFEST)
]  # fmt: skip


@pytest.mark.parametrize(("how", "after", "path"), TROUBLE)
def test_trouble_with_any_write_of_the_gateway_is_survived_and_makes_one_revision(
    site: ProcessSite, behind: FaultProxy, path: str, after: bool, how: str
) -> None:
    if how == "cut":
        fault = behind.cut(times=2, method="PUT", path=path, after_forwarding=after)
    else:
        fault = behind.answer(503, code="SlowDown", times=2, method="PUT", path=path, after_forwarding=after)
    done = publisher(site).outcome()
    assert done.get("revision") == 2, done
    assert fault.struck >= 1
    assert_published(site)


def test_a_store_that_stays_away_ends_the_publication_with_a_retryable_error_and_the_next_one_works(
    site: ProcessSite, behind: FaultProxy
) -> None:
    before = site.files()
    fault = behind.cut(times=None, method="PUT", path=REFLOG)
    told = publisher(site).outcome()
    assert (told["error"], told["retryable"]) == ("commit-storage-failed", True)
    assert "gave up after" in told["message"]
    assert site.files() == before
    assert site.client().leases() == []
    fault.times = 0
    assert publisher(site).outcome()["revision"] == 2
    assert_published(site)


# -- permissions


def test_a_publisher_that_may_not_write_catalogs_gives_its_lease_back(
    site: ProcessSite, to_store: FaultProxy, to_gateway: FaultProxy
) -> None:
    granted = to_gateway.hold(method="POST", path=r"/leases$", after_forwarding=True)
    job = publisher(site)
    granted.wait()
    to_store.answer(403, code="AccessDenied", times=None, method="PUT", path=CATALOGS)
    granted.release()
    assert job.outcome()["error"] == "store-forbidden"
    site.assert_sound()
    to_store.clear()
    assert publisher(site).outcome()["revision"] == 2
    assert_published(site)


@pytest.mark.parametrize(
    "path", [*(pytest.param(path, marks=pytest.mark.thorough) for path in (CATALOGS, REFLOG)), MANIFEST]
)
def test_a_gateway_that_may_not_write_tells_and_switches_nothing(
    site: ProcessSite, behind: FaultProxy, path: str
) -> None:
    manifest = site.head().manifest
    fault = behind.answer(403, code="AccessDenied", times=None, method="PUT", path=path)
    told = publisher(site).outcome()
    assert told["error"] == "commit-storage-failed"
    assert "give this key the permission" in told["message"]
    assert (".cvmfs" in told["message"]) == (path != CATALOGS)
    assert site.head().manifest == manifest
    assert site.client().leases() == []
    fault.times = 0
    assert publisher(site).outcome()["revision"] == 2
    assert_published(site)


# -- acknowledged, but lost


@pytest.mark.parametrize(
    "path", [CATALOGS, pytest.param(r"/data/../\w+H$", marks=pytest.mark.thorough)], ids=["catalogs", "history"]
)
def test_what_a_store_lost_of_the_gateways_is_noticed_before_the_switch(
    site: ProcessSite, behind: FaultProxy, to_gateway: FaultProxy, path: str
) -> None:
    sent = to_gateway.hold(method="POST", path=r"/leases/.+")
    job = publisher(site)
    sent.wait()
    # a revision in between, so that the gateway has to make catalogs that the publisher did not store
    other = site.prepared(DESTINATIONS[1], {"f": b"other"})
    site.worker().publish(other, holder="other", now=datetime.now(UTC))
    before = site.files()
    lost = behind.pretend(times=None, path=path)
    sent.release()
    told = job.outcome()
    assert lost.struck
    assert (told.get("error"), told.get("retryable")) == ("commit-root-missing", True), told
    assert "does not have it; commit again; if the current revision lost it, this names the cure" in told["message"]
    assert site.files() == before
    behind.clear()
    site.assert_sound()
    assert publisher(site).outcome()["revision"] == 3
    assert_published(site, 3)


# -- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB; the test is skipped where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs the program mount")
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a small tmpfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(filler: Path) -> None:
    """Leave no room for another page."""
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.fixture
def small_site(tmp_path: Path, reserved: Mapping[str, bytes], small_disk: Path) -> Iterator[ProcessSite]:
    """A repository in files on that disk."""
    store = FileStore(small_disk / "store")
    site = ProcessSite(tmp_path, store, store.url, storage={"store": store.url})
    site.create(reserved)
    site.start_gateway()
    yield site
    site.close()


def test_a_disk_that_fills_up_is_named_with_its_cure_and_leaves_the_old_revision_and_the_next_one_works(
    small_site: ProcessSite, small_disk: Path
) -> None:
    before = small_site.files()
    big = small_site.tree("big", {f"{number}": os.urandom(400_000) for number in range(8)})
    told = small_site.start("publish", tree=str(big), destination=DESTINATION).outcome()
    assert (told["error"], told["retryable"]) == ("store-full", False)
    assert told["key"] in told["message"]
    assert "free space or raise the quota" in told["message"]
    small_site.store.delete([meta.key for meta in small_site.store.list("data") if meta.size > 100_000])
    changeset = small_site.folder / "changeset"
    prepared = publisher(small_site, changeset=str(changeset), prepare_only=True)
    prepared.outcome()
    filler = small_disk / "filler"
    fill(filler)
    told = small_site.start("publish_prepared", changeset=str(changeset)).outcome()
    assert told["error"] == "store-full"
    assert small_site.files() == before
    assert small_site.client().leases() == []
    small_site.assert_sound()
    filler.unlink()
    assert small_site.start("publish_prepared", changeset=str(changeset)).outcome()["revision"] == 2
    assert_published(small_site)


def test_a_repository_that_lost_its_current_root_says_so(site: ProcessSite) -> None:
    site.store.delete([site.head().manifest.root.with_suffix("C").key])
    told = publisher(site).outcome()
    assert told["error"] == ObjectMissing.code
    assert site.client().leases() == []
