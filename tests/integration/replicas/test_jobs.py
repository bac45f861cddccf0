"""Snapshots and collections of a stratum 1 over SSH: started once, joined, watched, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.publishers.errors import COMMAND_FAILED, NodeLost, NodeUnreachable
from include.publishers.server import maintenance
from include.publishers.server.connection import SshConnection
from include.publishers.server.maintenance import DetachedJob, JobLook, Stage
from include.replicas.look import job_on, looks_of
from include.replicas.states import ReplicaState
from include.settings.errors import SettingsError
from include.site.site import Site
from operators.care import CollectReplicaOperator, SnapshotReplicaOperator
from operators.lease_task import Killed, WaitedTooLong
from tests.fakes.node import PublisherNode
from tests.fakes.refused import refused
from tests.fakes.replica import Replica, replica
from tests.fakes.taskcontext import task_context
from tests.site import FQRN
from triggers import poll
from triggers.replicas import ReplicaJobTrigger

pytestmark = pytest.mark.server("sshd")
OURS, THEIRS = "a" * 16, "b" * 16


@pytest.fixture
def node(node: PublisherNode, monkeypatch: pytest.MonkeyPatch) -> PublisherNode:
    """A stratum 1's machine; stratum 0 is the repository of the fake itself. Who joins a job waits for a moment."""
    monkeypatch.setattr(maintenance, "_START", maintenance._START.replace("--wait 2", "--wait 0.4"))
    (node.root / "stratum0").write_text(str(node.folder / "cvmfs" / FQRN))
    return node


@pytest.fixture
def copy(node: PublisherNode) -> Iterator[Replica]:
    with replica(node.root / "replica") as made:
        yield made


@pytest.fixture
def site(node: PublisherNode, copy: Replica) -> Site:
    login = {
        "host": "127.0.0.1", "port": node.ssh.port, "user": node.ssh.user, "key": str(node.ssh.user_key),
        "known_hosts": str(node.ssh.known_hosts), "spool": str(node.root / "spool"),
    }  # fmt: skip
    copies = [{"name": "s1", "url": copy.url, "node": login}, {"name": "s2", "url": copy.url}]
    return node.site(replicas=copies)


@pytest.fixture
def snapshot(site: Site) -> DetachedJob:
    return job_on(site, FQRN, "s1", "snapshot")


def ended(job: DetachedJob) -> JobLook:
    end = time.monotonic() + 120
    while (seen := job.look()).stage is Stage.RUNNING:
        assert time.monotonic() < end, seen
        time.sleep(0.05)
    return seen


def begun(copy: Replica) -> None:
    end = time.monotonic() + 120
    while not copy.marker.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_job_is_started_once_joined_by_others_and_outlives_the_server(
    node: PublisherNode, snapshot: DetachedJob, copy: Replica
) -> None:
    node.fault("snapshot", "wait")
    assert snapshot.look().stage is Stage.LOST
    assert snapshot.start(OURS)
    begun(copy)
    assert not snapshot.start(THEIRS)
    assert snapshot.start(OURS)
    assert snapshot.look() == JobLook(Stage.RUNNING, None, ("Starting...",))
    node.ssh.process.stop()
    with pytest.raises(NodeUnreachable):
        snapshot.look()
    node.ssh.process.start()
    assert snapshot.look().stage is Stage.RUNNING
    (node.root / "go-on").touch()
    assert ended(snapshot) == JobLook(Stage.ENDED, 0, ("Starting...", "Serving revision"))
    assert len(node.calls("snapshot")) == 1
    assert snapshot.start(THEIRS)
    ended(snapshot)
    assert len(node.calls("snapshot")) == 2


def test_of_many_that_start_at_once_one_does(node: PublisherNode, snapshot: DetachedJob, copy: Replica) -> None:
    node.fault("snapshot", "wait")
    started: list[bool] = []
    threads = [threading.Thread(target=lambda one=one: started.append(snapshot.start(one * 16))) for one in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begun(copy)
    (node.root / "go-on").touch()
    ended(snapshot)
    assert sorted(started) == [False, False, False, True]
    assert len(node.calls("snapshot")) == 1


def test_a_reply_that_is_lost_starts_nothing_twice(
    node: PublisherNode, snapshot: DetachedJob, copy: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fault("snapshot", "wait")
    run, lost = SshConnection.run, [True]

    def losing(self: SshConnection, *arguments: Any, **more: Any) -> Any:
        done = run(self, *arguments, **more)
        if lost:
            lost.pop()
            raise NodeLost(FQRN, "the connection ended")
        return done

    monkeypatch.setattr(SshConnection, "run", losing)
    assert snapshot.start(OURS)
    begun(copy)
    (node.root / "go-on").touch()
    assert ended(snapshot).code == 0
    assert len(node.calls("snapshot")) == 1


def test_only_who_started_a_job_ends_it(node: PublisherNode, snapshot: DetachedJob, copy: Replica) -> None:
    node.fault("snapshot", "wait")
    snapshot.start(OURS)
    begun(copy)
    assert not snapshot.end(THEIRS)
    assert snapshot.look().stage is Stage.RUNNING
    assert snapshot.end(OURS)
    seen = ended(snapshot)
    assert seen.code == 143
    assert not copy.marker.exists()
    with refused(COMMAND_FAILED):
        snapshot.require_success(seen)
    assert not snapshot.end(OURS)


def test_a_job_that_was_killed_is_lost_and_can_be_started_again(
    node: PublisherNode, snapshot: DetachedJob, copy: Replica
) -> None:
    node.fault("snapshot", "wait")
    snapshot.start(OURS)
    begun(copy)
    job = int((node.root / "spool" / "nightshift.snapshot.pid").read_text())
    keeper = int(Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (keeper, job):
        os.kill(pid, signal.SIGKILL)
    seen = ended(snapshot)
    assert seen.stage is Stage.LOST
    with refused(COMMAND_FAILED):
        snapshot.require_success(seen)
    assert snapshot.start(OURS)
    assert ended(snapshot).code == 0


def test_a_replica_without_a_machine_or_a_spool_is_refused(
    node: PublisherNode, site: Site, snapshot: DetachedJob
) -> None:
    with pytest.raises(SettingsError):
        job_on(site, FQRN, "s2", "snapshot")
    (node.root / "spool").rename(node.root / "elsewhere")
    with refused(COMMAND_FAILED):
        snapshot.start(OURS)


# -- operators


def operator(kind: type, site: Site, **settings: Any) -> Any:
    class Here(kind):  # type: ignore[misc, valid-type]
        def site(self) -> Site:
            return site

    return Here(task_id="job", repository=FQRN, replica="s1", poll_interval=0.05, **settings)


def test_the_task_leaves_the_watch_to_the_triggerer_and_notes_how_far_the_replica_is(
    site: Site, copy: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "open_site", lambda _: site)
    task = operator(SnapshotReplicaOperator, site)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(task_context())
    path, row = deferred.value.trigger.serialize()
    assert path == "triggers.replicas.ReplicaJobTrigger"
    assert set(row) == {"repository", "replica", "verb", "token", "deadline", "poll_s", "since"}

    async def watched() -> Any:
        return (await anext(ReplicaJobTrigger(**row).run())).payload

    event = asyncio.run(watched())
    assert task.ended(task_context(), event) == ["Starting...", "Serving revision"]
    (look,) = looks_of(site.ledger, FQRN)
    assert (look.replica, look.state) == ("s1", ReplicaState.IN_SYNC)
    assert look.last_snapshot is not None


def test_a_job_that_fails_or_lasts_too_long_fails_the_task(node: PublisherNode, site: Site, copy: Replica) -> None:
    node.fault("gc", "fail")
    with refused(COMMAND_FAILED):
        operator(CollectReplicaOperator, site, deferrable=False).execute(task_context())
    assert operator(CollectReplicaOperator, site, deferrable=False).execute(task_context()) == [
        "Garbage collection completed"
    ]
    assert node.calls("gc")[-1] == ["gc", "-f", FQRN]
    node.fault("snapshot", "wait")
    with pytest.raises(WaitedTooLong):
        operator(SnapshotReplicaOperator, site, deferrable=False, limit_minutes=0.001).execute(task_context())
    assert copy.marker.exists()


@pytest.mark.parametrize("deferred", [False, True])
def test_a_task_that_is_stopped_ends_what_it_started(
    node: PublisherNode, site: Site, copy: Replica, monkeypatch: pytest.MonkeyPatch, deferred: bool
) -> None:
    monkeypatch.setattr("triggers.replicas.open_site", lambda _: site)
    node.fault("snapshot", "wait")
    task, job = operator(SnapshotReplicaOperator, site), job_on(site, FQRN, "s1", "snapshot")
    with pytest.raises(TaskDeferred) as waiting:
        task.execute(task_context())
    begun(copy)
    if deferred:
        asyncio.run(waiting.value.trigger.on_kill())
    else:
        with pytest.raises(Killed):
            task.on_kill()
    assert ended(job).code == 143


def test_a_task_that_joined_ends_nothing(node: PublisherNode, site: Site, snapshot: DetachedJob, copy: Replica) -> None:
    node.fault("snapshot", "wait")
    snapshot.start(THEIRS)
    begun(copy)
    task = operator(SnapshotReplicaOperator, site)
    with pytest.raises(TaskDeferred) as waiting:
        task.execute(task_context())
    task.on_kill()
    asyncio.run(waiting.value.trigger.on_kill())
    assert snapshot.look().stage is Stage.RUNNING
    (node.root / "go-on").touch()
    assert ended(snapshot).code == 0
