"""kill -9 of the gateway's process at each named point of a commit, while several publishers commit at that moment.

What was acknowledged is there; of the rest each change is wholly there or wholly absent; ``check`` finds nothing; the
same commits under the same tokens then succeed, and the next publication needs nobody's help.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import REFLOG_KEY, NewTag, store_all
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Reflog, RefType
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.gateway.client.client import GatewayClient
from include.gateway.client.leases import Lease
from include.gateway.errors import GatewayError
from include.gateway.service.commits.queue import Point
from include.storage.open import open_store
from include.storage.store import Store
from lab.servers.weed import WeedServer
from tests.fakes.apart import committers
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import BUILD, FQRN, ProcessSite, drop
from tests.faults.conftest import BUCKET

PUBLISHERS = 3
_VISIBLE = (Point.SWITCHED, Point.RECORDED, Point.REPLYING)
_EACH = (Point.QUEUED, Point.FENCED, Point.RECORDED, Point.REPLYING)
"""Steps between these: ``test_gateway_dies.py``; in a thread the state machine is killed at each."""
_AHEAD = (Point.REFLOG_WRITTEN, Point.BEFORE_SWITCH, Point.FENCED)


@dataclass(frozen=True)
class Work:
    """A publisher's lease and the change that is stored already, to be committed."""

    client: GatewayClient
    lease: Lease
    base: ObjectHash
    new: ObjectHash

    @property
    def path(self) -> str:
        return self.lease.path

    def commit(self) -> int | GatewayError:
        try:
            return self.client.commit(self.lease, self.base, self.new, tag=NewTag(self.path.rpartition("/")[2]))
        except GatewayError as error:
            return error


def work(site: ProcessSite, path: str, url: str | None = None) -> Work:
    client = GatewayClient(url or site.url, KEY_ID, SECRET, timeout_s=20, retries=0)
    lease = client.acquire(FQRN, path, hostname="publisher")
    base = site.head().manifest.root
    edit = Edit(CatalogCache(site.store), base)
    edit.make_nested(path, Dirent("", 0o040755, size=4096, linkcount=2, mtime=1_700_000_000))
    edit.symlink(f"{path}/whole", "there", now=1_700_000_000)
    new = edit.finish(1_700_000_000)
    store_all(site.store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
    return Work(client, lease, base, new.hash)


@contextmanager
def made(
    folder: Path,
    reserved: Mapping[str, bytes],
    storage: Mapping[str, object],
    public_url: str = "",
    store: Store | None = None,
) -> Iterator[ProcessSite]:
    """A site with a reserved build; no gateway runs."""
    store = store or open_store(str(storage["store"]))
    site = ProcessSite(folder, store, public_url or store.url, storage=storage)
    site.create(reserved)
    yield site
    site.close()


def seen(site: ProcessSite, works: Sequence[Work]) -> dict[str, bool]:
    """Tell for each change if it is there; wholly, or not at all."""
    repository, found = site.head(), {}
    for one in works:
        whole = [repository.revision.lookup(path) is not None for path in (one.path, f"{one.path}/whole")]
        assert all(whole) or not any(whole), f"{one.path} is there in part"
        found[one.path] = all(whole)
    return found


def sound(site: ProcessSite) -> None:
    report = check(site.readers(), contents=True)
    assert not report.problems, report.problems


@pytest.fixture
def on_files(tmp_path: Path, reserved: Mapping[str, bytes]) -> Iterator[ProcessSite]:
    with made(tmp_path, reserved, {"store": f"file://{tmp_path}/store"}) as site:
        yield site


def die_and_go_on(site: ProcessSite, point: Point) -> None:
    # The second group dies, or the second call that comes by: something was acknowledged before, most of the time.
    dying = site.start_gateway(die_at=f"{point.value}:2")
    children = psutil.Process(dying.process.pid).children()
    assert len(children) == 1
    before = site.head().manifest.revision
    first = work(site, f"{BUILD}/first")
    works = [first, *(work(site, f"{BUILD}/more-{number}") for number in range(PUBLISHERS))]
    told: dict[str, int | GatewayError] = {first.path: first.commit()}
    assert told[first.path] == before + 1
    with ThreadPoolExecutor(PUBLISHERS) as publishers:
        told |= dict(zip((one.path for one in works[1:]), publishers.map(Work.commit, works[1:]), strict=True))
    dying.process.join(20)
    assert dying.process.exitcode == -9, "it came by the point and died there"
    assert psutil.wait_procs(children, 30)[1] == [], "the process that commits does not outlive it"
    assert any(isinstance(answer, GatewayError) for answer in told.values())

    dead = seen(site, works)
    for one in works:
        if isinstance(told[one.path], int):
            assert dead[one.path], f"{one.path} was acknowledged and is not there"
    lost = [one for one in works if not isinstance(told[one.path], int)]
    assert any(dead[one.path] for one in lost) == (point in _VISIBLE)
    assert site.reflog_is_ahead() == (point in _AHEAD)

    site.start_gateway()
    assert not site.reflog_is_ahead()
    sound(site)
    held = {lease.path for lease in works[0].client.leases()}
    assert held <= {one.path for one in lost}, "only whoever was not answered still has a lease"
    again = {one.path: one.commit() for one in works}
    for one in works:
        assert isinstance(again[one.path], int), again[one.path]
        if isinstance(told[one.path], int):
            assert again[one.path] == told[one.path], "a repetition gives the same revision"
    assert all(seen(site, works).values())
    tags = {tag.name: tag for tag in site.head().tags()}
    assert {one.path.rpartition("/")[2] for one in works} <= tags.keys()
    made_again = {again[one.path] for one in lost if not dead[one.path]}
    assert site.head().manifest.revision == max(made_again | {again[one.path] for one in works})
    for one in works:
        one.client.close()
    site.goes_on()


POINTS = [pytest.param(point, id=point.value, marks=() if point in _EACH else pytest.mark.thorough) for point in Point]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_it_loses_nothing_on_a_file_store(on_files: ProcessSite, point: Point) -> None:
    die_and_go_on(on_files, point)


@pytest.mark.parametrize("after_forwarding", [False, True], ids=["before the switch", "switched"])
def test_when_the_process_that_commits_is_killed_alone_the_commit_is_made_once(
    site: ProcessSite, behind: FaultProxy, after_forwarding: bool
) -> None:
    assert site.gateway is not None
    site.gateway.kill()
    gateway = site.start_gateway()
    one, before = work(site, f"{BUILD}/one"), site.head().manifest.revision
    held = behind.hold(method="PUT", path=r"/\.cvmfspublished$", after_forwarding=after_forwarding)
    with ThreadPoolExecutor(1) as publisher:
        told = publisher.submit(one.commit)
        held.wait()
        [child] = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        drop(held)
        assert told.result(60) == before + 1
    assert seen(site, [one]) == {one.path: True}
    assert one.client.leases() == []
    assert site.head().manifest.revision == before + 1
    one.client.close()
    site.goes_on()


# -- a crash between reflog and manifest, of somebody else


def test_a_foreign_crash_between_reflog_and_manifest_is_repaired_by_the_next_commit(on_files: ProcessSite) -> None:
    """Another writer than the gateway replaces the reflog and dies."""
    on_files.start_gateway()
    one, other = work(on_files, f"{BUILD}/one"), work(on_files, f"{BUILD}/other")
    reflog = Reflog.load(on_files.store.get(REFLOG_KEY))
    root = ObjectHash.parse("ab" * 20 + "C")
    on_files.store.put(root.key, b"the root catalog of a revision that never was")
    reflog.add(root, RefType.CATALOG, int(datetime.now(UTC).timestamp()))
    on_files.store.put(REFLOG_KEY, reflog.to_bytes())
    assert on_files.reflog_is_ahead()
    assert isinstance(one.commit(), int)
    assert not on_files.reflog_is_ahead()
    sound(on_files)
    assert isinstance(other.commit(), int), "the reflog that the gateway kept is not the one of the store"
    sound(on_files)
    on_files.goes_on()


# -- two gateways, started by mistake, where the store keeps no conditional writes; where it does: test_gateway_dies.py


def test_the_second_does_not_start_and_the_first_that_slept_publishes_nothing_once_it_was_followed(
    weed: WeedServer, tmp_path: Path, reserved: Mapping[str, bytes]
) -> None:
    storage = {
        "store": f"s3://{BUCKET}/two",
        "endpoint": weed.endpoint,
        "credentials": [weed.credentials.access_key, weed.credentials.secret_key],
        "traits": {"put_if_absent": False, "replace": False, "bulk_delete": True},
        "single_writer": True,
    }
    with made(tmp_path, reserved, storage, weed.public_url(BUCKET, "two"), weed.store(BUCKET, "two")) as site:
        first = site.start_gateway()
        late, before = work(site, f"{BUILD}/late"), site.files()
        [committer] = committers(first.process.pid)
        with pytest.raises(AssertionError, match=f"process {committer.pid} on .*Stop that gateway"):
            site.start_gateway("other.db", port=0)
        assert site.files() == before
        first.pause()
        other = site.start_gateway("other.db", port=0).said[-1]["url"]
        done = work(site, f"{BUILD}/done", other)
        assert isinstance(done.commit(), int)
        after = site.files()
        first.go_on()
        assert isinstance(late.commit(), GatewayError), "it must not undo the other's revision"
        assert site.files() == after
        assert seen(site, [done, late]) == {done.path: True, late.path: False}
        first.kill()
        site.url = other
        again = work(site, f"{BUILD}/late", other)
        assert isinstance(again.commit(), int)
        sound(site)
        for one in (late, done, again):
            one.client.close()
        site.goes_on()
