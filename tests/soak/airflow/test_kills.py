"""kill -9 under the scheduler, in the middle of prepare and of publish; the retry may run beside the old process.

Six artifacts of one run, each with its own accident: the task process, its supervisor, or a task process with a live
child is killed while a proxy holds one of its requests. What was held is let go while the retry is at the same point,
so that a late write arrives and, where the supervisor was killed, two processes do the same work at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from include.nightlies.rules.publication import Publication
from tests.e2e.deployment import FQRN, HEARTBEAT_TIMEOUT_S, LEASE_S, Deployment
from tests.e2e.kills import COMMIT, DAG, RETRY_S, SOON_S, Stage, TaskProcess, build_of_victims, own_file, upload_of
from tests.fakes.builds import Build

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

RUN, DATE = "kills", "2026-11-10"
VICTIMS = ("task", "supervisor", "child")


def night_of_kills() -> Build:
    return build_of_victims(
        DATE,
        *(
            (f"{victim}/{when}", priority)
            for when, priority in (("publish", 100), ("prepare", 10))
            for victim in VICTIMS
        ),
    )


@dataclass
class Story:
    """What the run left behind, for the tests to look at."""

    state: str
    before: int
    after: int
    build: Build
    publications: dict[str, Publication]
    tries: dict[str, int]
    leases: list[str]
    survivors: list[TaskProcess]


@pytest.fixture(scope="module")
def orphans() -> Iterator[list[int]]:
    """Children whose task was killed; they would go on."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def story(deployment: Deployment, orphans: list[int]) -> Iterator[Story]:
    """One run, in which all six kills happen."""
    try:
        yield play(deployment, orphans)
    finally:
        deployment.store_proxy.clear()
        deployment.gateway_proxy.clear()


def play(deployment: Deployment, orphans: list[int]) -> Story:
    """Hold, kill, let go, and wait for the end of the run."""
    build = night_of_kills()
    deployment.drop(build)
    before = deployment.revision()
    stage = Stage(deployment, RUN)
    store, gateway = deployment.store_proxy, deployment.gateway_proxy
    uploads = {victim: store.hold(method="PUT", path=upload_of(f"{victim}/prepare")) for victim in VICTIMS}
    uploads_again = {victim: store.hold(method="PUT", path=upload_of(f"{victim}/prepare")) for victim in VICTIMS}
    reserving = gateway.hold(method="POST", path=COMMIT)
    deployment.trigger(DAG, RUN, slot="faults", build_date=DATE)
    reserving.wait(SOON_S)
    commits = [gateway.hold(method="POST", path=COMMIT) for _ in VICTIMS]
    commits_again = [gateway.hold(method="POST", path=COMMIT) for _ in VICTIMS[1:]]
    reserving.release()

    publishing = {one.victim: one for one in (stage.accident(fault, gateway) for fault in commits)}
    preparing = {victim: stage.accident(fault, store) for victim, fault in uploads.items()}
    for one in (*publishing.values(), *preparing.values()):
        assert one.try_number == 1
        one.kill(orphans)
    # the commit of a dead process goes through: its retry must find that it was published
    publishing["task"].fault.release()
    stage.answered(publishing["task"])

    for fault in commits_again:
        retry = stage.accident(fault, gateway, RETRY_S)
        assert retry.try_number == 2
        # its lease has run out, and the retry holds another one
        assert publishing[retry.victim].process.alive() == (retry.victim == "supervisor")
        publishing[retry.victim].fault.release()
        stage.answered(publishing[retry.victim])
        retry.fault.release()
    for victim, fault in uploads_again.items():
        retry = stage.accident(fault, store, RETRY_S)
        assert (retry.artifact, retry.try_number) == (f"{victim}/prepare", 2)
        assert preparing[victim].process.alive() == (victim == "supervisor")
        preparing[victim].fault.release()
        stage.answered(preparing[victim])
        retry.fault.release()

    seen = deployment.follow(DAG, RUN)
    tries = {f"{one['task_id']} {one['rendered_map_index']}": one["try_number"] for one in stage.instances()}
    survivors = [one.process for one in (publishing["supervisor"], preparing["supervisor"])]
    return Story(
        seen.state, before, deployment.revision(), build, deployment.publications(DAG, RUN), tries,
        deployment.leases(), survivors,
    )  # fmt: skip


def test_the_run_ends_well_by_the_retries(story: Story) -> None:
    assert story.state == "success"
    assert {name: one.state.value for name, one in story.publications.items()} == dict.fromkeys(
        [f"{victim}/{when}" for victim in VICTIMS for when in ("prepare", "publish")], "published"
    )
    for name, one in story.publications.items():
        killed_in = name.partition("/")[2]
        assert story.tries[f"artifact.{killed_in} {name}"] == 2
        assert (one.prepare_try, one.publish_try) == ((2, 1) if killed_in == "prepare" else (1, 2))
        assert one.verified_at is not None
    assert "an earlier try of this run had published it" in story.publications["task/publish"].reason


def test_there_is_exactly_one_revision_per_artifact(story: Story) -> None:
    reserved = 1
    assert story.after == story.before + reserved + len(story.publications)
    made = {one.revision_after for name, one in story.publications.items() if name != "task/publish"}
    assert len(made) == len(story.publications) - 1
    assert made < set(range(story.before + 2, story.after + 1))


def test_nothing_is_doubled_reverted_or_damaged(deployment: Deployment, story: Story) -> None:
    repository = deployment.site.repository(FQRN)
    for name in story.publications:
        path = story.build.destination(*name.split("/"))
        assert repository.revision.read(f"{path}/lib/own.so") == own_file(name)
        assert sorted(entry.name for entry in repository.revision.listing(f"{path}/lib")) == ["common.so", "own.so"]
    assert deployment.problems() == ()


def test_no_lease_and_no_process_of_a_killed_try_is_left(story: Story) -> None:
    # the run went on for longer than a lease lives
    assert HEARTBEAT_TIMEOUT_S > LEASE_S
    assert story.leases == []
    assert not any(process.alive() for process in story.survivors)
