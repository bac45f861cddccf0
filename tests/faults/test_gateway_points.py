"""kill -9 of the gateway's process at each named point of a commit, while several publishers commit at that moment.

What was acknowledged is there; of the rest each change is wholly there or wholly absent; ``check`` finds nothing; the
same commits under the same tokens then succeed, and the next publication needs nobody's help.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from include.cvmfs.format.hashes import ObjectHash
from include.gateway.errors import GatewayError
from include.gateway.service.commits.queue import Point
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.site import BUILD, ProcessSite, drop
from tests.faults.works import Work, made, seen, sound, work

PUBLISHERS = 3
_VISIBLE = (Point.SWITCHED, Point.RECORDED, Point.REPLYING)
_EACH = (Point.QUEUED, Point.FENCED, Point.SWITCHED, Point.RECORDED, Point.REPLYING)
"""Steps before these: ``test_gateway_dies.py``; in a thread the state machine is killed at each."""
_AHEAD = (Point.REFLOG_WRITTEN, Point.BEFORE_SWITCH, Point.FENCED)


@pytest.fixture
def on_files(tmp_path: Path, reserved: Mapping[str, bytes]) -> Iterator[ProcessSite]:
    with made(tmp_path, reserved, {"store": f"file://{tmp_path}/store"}) as site:
        yield site


def die_and_go_on(site: ProcessSite, point: Point) -> None:
    # The second group dies, or the second call that comes by: something was acknowledged before, most of the time.
    dying = site.start_gateway(die_at=f"{point.value}:2")
    committers = psutil.Process(dying.process.pid).children()
    assert len(committers) == 1
    before = site.head().manifest.revision
    first = work(site, f"{BUILD}/first")
    works = [first, *(work(site, f"{BUILD}/more-{number}") for number in range(PUBLISHERS))]
    told: dict[str, int | GatewayError] = {first.path: first.commit()}
    assert told[first.path] == before + 1
    with ThreadPoolExecutor(PUBLISHERS) as publishers:
        told |= dict(zip((one.path for one in works[1:]), publishers.map(Work.commit, works[1:]), strict=True))
    dying.process.join(20)
    assert dying.process.exitcode == -9, "it came by the point and died there"
    assert psutil.wait_procs(committers, 30)[1] == [], "the process that commits does not outlive it"
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


@pytest.fixture
def crashed(on_files: ProcessSite) -> Callable[[], None]:
    """Another writer than the gateway replaces the reflog and dies."""

    def crash() -> None:
        from include.cvmfs.commit.commit import REFLOG_KEY
        from include.cvmfs.format.database import Reflog, RefType

        reflog = Reflog.load(on_files.store.get(REFLOG_KEY))
        root = ObjectHash.parse("ab" * 20 + "C")
        on_files.store.put(root.key, b"the root catalog of a revision that never was")
        reflog.add(root, RefType.CATALOG, int(datetime.now(UTC).timestamp()))
        on_files.store.put(REFLOG_KEY, reflog.to_bytes())
        assert on_files.reflog_is_ahead()

    return crash


def test_a_foreign_crash_between_reflog_and_manifest_is_repaired_by_the_next_commit(
    on_files: ProcessSite, crashed: Callable[[], None]
) -> None:
    on_files.start_gateway()
    one, other = work(on_files, f"{BUILD}/one"), work(on_files, f"{BUILD}/other")
    crashed()
    assert isinstance(one.commit(), int)
    assert not on_files.reflog_is_ahead()
    sound(on_files)
    assert isinstance(other.commit(), int), "the reflog that the gateway kept is not the one of the store"
    sound(on_files)
    on_files.goes_on()
