"""What has begun a campaign on a real Ceph cluster is killed while an OSD is stopped: nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.benchmarks.campaign.campaigns import campaign_root, clean_up, measure
from include.benchmarks.campaign.folder import CampaignFolder, CampaignRecord
from include.benchmarks.campaign.plan import CampaignPlan, CampaignWish, PlannedStep
from include.benchmarks.measure.loads import LoadAccess, LoadStep, RunnerKind, ServerState, StreamLoad
from include.benchmarks.measure.osds import FOLDER as TIMER
from include.settings.benchmarks import TargetKind
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from lab.servers.ceph_lab import FILES, CephLab
from tests.fakes.benchmarking import START

pytestmark = [
    pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1800), pytest.mark.server("radosgw"),
    pytest.mark.server("fio"),
]  # fmt: skip
TIMER_S = 30
UNTIL_S = 600.0
MEASURE = """\
import json
import sys
from include.benchmarks.campaign.campaigns import find_campaign, measure
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site

site = Site(SiteSettings.model_validate(json.loads(sys.argv[1])), EnvSecrets({}))
measure(site, find_campaign(site, sys.argv[2]))
"""


@pytest.fixture
def ceph(tmp_path: Path) -> Iterator[CephLab]:
    """A cluster with CephFS mounted, and an empty folder in it."""
    lab = CephLab(tmp_path / "ceph")
    try:
        lab.up(osd_gib=3, say=print)
        if not lab.mountpoint.is_mount():
            pytest.skip("ceph-fuse or /dev/fuse is missing")
        folder_of(lab).mkdir()
        yield lab
    finally:
        lab.down(purge=True, say=print)


def test_a_campaign_that_is_killed_in_an_outage_leaves_no_stopped_osd_and_no_data(
    ceph: CephLab, tmp_path: Path
) -> None:
    blocks = {"ledger": f"sqlite:///{tmp_path}/ledger.db", "paths": {"var": f"{tmp_path}/var"}}
    settings = {**blocks, "benchmarks": benchmarks_on(ceph)}
    site = Site(SiteSettings.model_validate(settings), EnvSecrets({}))
    folder = planned(campaign_root(site))
    command = [sys.executable, "-c", MEASURE, json.dumps(settings), folder.id]
    with subprocess.Popen(command, start_new_session=True) as process:
        until(lambda: in_outage(ceph, folder), alive=lambda: process.poll() is None)
        os.killpg(process.pid, signal.SIGKILL)
    the_timer_restores(ceph, folder)
    assert [ended.step.number for ended in folder.steps()] == [1, 2]
    measure(site, folder)
    assert clean_up(site, folder).left == ()
    nothing_is_left(ceph, folder)


# -- the campaign


def folder_of(lab: CephLab) -> Path:
    return lab.mountpoint / "benchmarks"


def benchmarks_on(lab: CephLab) -> dict[str, Any]:
    """The block of the settings."""
    marks = dict.fromkeys(("benchmark", "fill", "degrade"), "allowed")
    cluster = {**lab.cluster_block(), "pool": FILES, "timer_s": TIMER_S}
    limits = {"bytes": "20GiB", "fill_percent": 90}
    target = {"kind": "path", "path": str(folder_of(lab)), "cluster": cluster, "limits": limits, **marks}
    return {"targets": {"cephfs": target}}


def planned(root: Path) -> CampaignFolder:
    """Reading and writing before, during and after an outage."""
    write = StreamLoad(LoadAccess.WRITE, "new", streams=1, file_bytes=64 << 20, block_bytes=1 << 20, rate=8 << 20)
    both = (replace(write, dataset="missed"), replace(write, dataset="stored", access=LoadAccess.READ))
    states = (ServerState.HEALTHY, ServerState.OSD_DOWN, ServerState.RECOVERING, ServerState.HEALTHY)
    steps = [PlannedStep(1, 0, LoadStep("prepare", RunnerKind.FIO, (replace(write, dataset="stored"),), 60))]
    steps += [
        PlannedStep(number, 1, LoadStep(f"{number}-{state.value}", RunnerKind.FIO, both, 8), servers=state)
        for number, state in enumerate(states, start=2)
    ]
    folder = CampaignFolder(root, "cephfs-1")
    plan = CampaignPlan(CampaignWish("cephfs", "hlt2-degraded-osd", rounds=1), TargetKind.PATH, tuple(steps))
    folder.create(CampaignRecord(folder.id, plan, START, "here", None))
    return folder


# -- what is seen of it


def in_outage(lab: CephLab, folder: CampaignFolder) -> bool:
    """Whether an OSD is down for the step that is running."""
    step = next(step for step in folder.record().plan.steps if step.servers is ServerState.OSD_DOWN)
    return folder.outage() is not None and not folder.has(step) and not all(lab.status().osds.values())


def the_timer_restores(lab: CephLab, folder: CampaignFolder) -> None:
    """Just after the kill an OSD is down; it is started, and its noout unset, with nobody left to do so."""
    assert in_outage(lab, folder), "killed too late"
    assert "noout" in flags(lab)
    assert len(timers(lab)) == 1
    until(lambda: timers(lab) == [] and lab.status().clean)
    assert all(lab.status().osds.values())
    assert "noout" not in flags(lab)
    assert folder.outage() is not None, "only the timer has done it"


def nothing_is_left(lab: CephLab, folder: CampaignFolder) -> None:
    """Every step was measured, and neither cluster nor target show that there was a campaign."""
    steps = list(folder.steps())
    assert [ended.step.number for ended in steps] == [step.number for step in folder.record().plan.steps]
    assert [ended.error for ended in steps] == [None] * len(steps)
    assert all(load.operations and not load.failed for ended in steps if ended.result for load in ended.result.loads)
    (outage,) = (ended for ended in steps if ended.step.servers is ServerState.OSD_DOWN)
    assert max(look.osds_down for look in outage.cluster) == 1, "data were read and written meanwhile"
    assert (folder.closed, folder.outage(), list(folder.path.rglob("*.part"))) == (True, None, [])
    assert list(folder_of(lab).iterdir()) == []
    assert all(lab.status().osds.values())
    assert "noout" not in flags(lab)
    assert timers(lab) == []


def flags(lab: CephLab) -> str:
    return subprocess.check_output(["ceph", "--conf", str(lab.conf), "osd", "dump"], text=True)


def timers(lab: CephLab) -> list[Path]:
    return list(lab.place.var.glob(f"{TIMER}*"))


def until(true: Callable[[], bool], alive: Callable[[], bool] = lambda: True) -> None:
    """No event tells what another process did; `alive`: whether it may still do it."""
    deadline = time.monotonic() + UNTIL_S
    while not true():
        assert time.monotonic() < deadline
        assert alive()
        time.sleep(0.5)
