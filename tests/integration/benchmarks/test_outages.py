"""OSDs that a campaign stops are started again: by it, by the next process, or by the timer on their server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from include.benchmarks.campaign.folder import CampaignFolder
from include.benchmarks.errors import OUTAGE_FAILED, TARGET_UNUSABLE
from include.benchmarks.measure.loads import ServerState
from include.benchmarks.measure.osds import OsdServer
from include.benchmarks.measure.programs import LocalHost
from tests.fakes.cephprogram import FileCluster
from tests.fakes.refused import refused

ARM = """\
import os, signal, sys
from include.benchmarks.measure.osds import OsdServer
from include.benchmarks.measure.programs import LocalHost
from include.settings.benchmarks import CephServer

server = OsdServer(CephServer.model_validate_json(sys.argv[1]), LocalHost("s1"))
server.arm("1", (0, 1), int(sys.argv[2]))
server.stop("1", (0, 1))
os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileCluster:
    return FileCluster(tmp_path, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> CampaignFolder:
    (tmp_path / "c-1").mkdir()
    return CampaignFolder(tmp_path, "c-1")


def until(true: Callable[[], bool]) -> None:
    """No event tells what another process did."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_osd_or_a_host_is_stopped_under_a_timer_and_all_is_restored(
    cluster: FileCluster, folder: CampaignFolder
) -> None:
    outage = cluster.outage(folder)
    for state, osds in ((ServerState.OSD_DOWN, 1), (ServerState.HOST_DOWN, 2)):
        outage.reach(state)
        assert cluster.files("down-", "noout-") == [
            f"{what}-{osd}" for what in ("down", "noout") for osd in range(osds)
        ]
        assert len(cluster.files("nightshift-outage-")) == 1
        assert outage.stopped == osds
        outage.renew()
        outage.reach(ServerState.RECOVERING)
        outage.end()
        outage.reach(ServerState.HEALTHY)
        assert cluster.files() == []
        assert folder.outage() is None
    with refused(OUTAGE_FAILED, subject="c-1"):
        outage.reach(ServerState.RECOVERING)
    # a further process restores what a killed one left
    cluster.outage(folder).reach(ServerState.HOST_DOWN)
    later = cluster.outage(folder)
    later.end()
    assert cluster.files() == []
    later.end()


def test_a_timer_restores_when_all_that_armed_it_is_killed(cluster: FileCluster) -> None:
    settings = cluster.settings().servers["s1"]
    command = [sys.executable, "-c", ARM, settings.model_dump_json(), "8"]
    (cluster.folder / "noout-0").touch()
    with subprocess.Popen(command, start_new_session=True) as process:
        process.wait()
    assert cluster.files("down-") == ["down-0", "down-1"]
    until(lambda: cluster.files() == [])


def test_a_timer_tries_again_until_its_commands_succeed(cluster: FileCluster) -> None:
    start = ["sh", "-c", 'test ! -e {folder}/broken && rm -f {folder}/down-"$0"', "{osd}"]
    settings = cluster.settings(start=[word.replace("{folder}", str(cluster.folder)) for word in start])
    server = OsdServer(settings.servers["s1"], LocalHost("s1"))
    for name in ("broken", "down-0"):
        (cluster.folder / name).touch()
    server.arm("1", (0,), 1)
    log = cluster.folder / "nightshift-outage-1" / "log"
    until(log.exists)
    assert cluster.files("down-") == ["down-0"]
    (cluster.folder / "broken").unlink()
    until(lambda: cluster.files() == [])


@pytest.mark.parametrize("seconds", [0, 1], ids=["before it was seen", "after it was seen"])
def test_nothing_is_stopped_when_the_timer_has_ended(cluster: FileCluster, seconds: int) -> None:
    server = OsdServer(cluster.settings().servers["s1"], LocalHost("s1"))
    server.arm("1", (0,), seconds)
    until(lambda: cluster.files() == [])
    for call in (lambda: server.stop("1", (0,)), lambda: server.renew("1", 100)):
        with refused(OUTAGE_FAILED, subject="s1"):
            call()
    assert cluster.files() == []


def test_commands_that_cannot_restore_are_found_before_anything_is_stopped(
    cluster: FileCluster, folder: CampaignFolder
) -> None:
    for command in ("start", "unset"):
        outage = cluster.outage(folder, **{command: ["false", "{osd}"]})
        with refused(OUTAGE_FAILED, subject="s1"):
            outage.reach(ServerState.OSD_DOWN)
        assert (cluster.files(), folder.outage()) == ([], None)


def test_no_osd_is_stopped_that_data_need_or_beside_flags_of_others(
    cluster: FileCluster, folder: CampaignFolder
) -> None:
    outage = cluster.outage(folder)
    cluster.report(OSDMAP_FLAGS="noout flag(s) set")
    with refused(TARGET_UNUSABLE, subject="t"):
        outage.reach(ServerState.OSD_DOWN)
    cluster.report()
    (cluster.folder / "unsafe").write_text("8 PGs would become inactive")
    with refused(OUTAGE_FAILED, subject="c-1"):
        outage.reach(ServerState.OSD_DOWN)
    assert (cluster.files(), folder.outage()) == ([], None)
