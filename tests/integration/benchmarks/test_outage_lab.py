"""A campaign on a real Ceph cluster is killed while an OSD is stopped: nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from include.benchmarks.campaign.folder import CampaignFolder, CampaignRecord
from include.benchmarks.campaigns import campaign_root, clean_up, measure
from include.benchmarks.loads import LoadAccess, LoadStep, RunnerKind, ServerState, StreamLoad
from include.benchmarks.scenarios.plan import CampaignPlan, CampaignWish, PlannedStep
from include.lab.servers.ceph_lab import FILES, CephLab
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.settings.storage_benchmark.blocks import TargetKind
from include.site.site import Site
from tests.fakes.benchmarking import START

TIMER_S = 20
RUN = """\
import sys
from include.benchmarks.campaigns import find_campaign, measure
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site

site = Site(SiteSettings.model_validate_json(sys.argv[1]), EnvSecrets({}))
measure(site, find_campaign(site, sys.argv[2]))
"""


def settings_of(lab: CephLab, folder: Path) -> str:
    marks = dict.fromkeys(("benchmark", "fill", "degrade"), "allowed")
    cluster = {**lab.cluster_block(), "pool": FILES, "timer_s": TIMER_S}
    target = {"kind": "path", "path": str(lab.mountpoint), "cluster": cluster, **marks}
    site = {"ledger": f"sqlite:///{folder}/ledger.db", "paths": {"var": f"{folder}/var"}}
    return json.dumps({**site, "benchmarks": {"targets": {"cephfs": target}}})


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
    plan = CampaignPlan(CampaignWish("cephfs", "hlt2-degraded-osd"), TargetKind.PATH, tuple(steps))
    folder.create(CampaignRecord(folder.id, plan, START, "here", None))
    return folder


def until(true: Callable[[], bool]) -> None:
    """No event tells what another process did."""
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.server("radosgw")
@pytest.mark.server("fio")
def test_a_campaign_that_is_killed_in_an_outage_leaves_no_stopped_osd_and_no_data(tmp_path: Path) -> None:
    lab = CephLab(tmp_path / "ceph")
    try:
        lab.up(osd_gib=2, say=print)
        if not lab.mountpoint.is_mount():
            pytest.skip("ceph-fuse or /dev/fuse is missing")
        settings = settings_of(lab, tmp_path)
        site = Site(SiteSettings.model_validate_json(settings), EnvSecrets({}))
        folder = planned(campaign_root(site))

        def flags() -> str:
            return subprocess.check_output(["ceph", "--conf", str(lab.conf), "osd", "dump"], text=True)

        with subprocess.Popen([sys.executable, "-c", RUN, settings, folder.id], start_new_session=True) as process:
            until(lambda: not all(lab.status().osds.values()) and not folder.has(folder.record().plan.steps[2]))
            os.killpg(process.pid, signal.SIGKILL)
        assert "noout" in flags()
        until(lambda: all(lab.status().osds.values()) and "noout" not in flags())
        assert folder.outage() is not None, "only the timer has done it"
        before = [ended.step.number for ended in folder.steps()]
        assert before == [1, 2]
        measure(site, folder)
        assert folder.outage() is None
        steps = list(folder.steps())
        assert [ended.error for ended in steps] == [None] * 5
        assert all(
            load.operations and not load.failed for ended in steps if ended.result for load in ended.result.loads
        )
        assert max(look.osds_down for look in steps[2].cluster) == 1, "data were read and written meanwhile"
        assert clean_up(site, folder).left == ()
        assert list(lab.mountpoint.iterdir()) == []
        assert list(folder.path.rglob("*.part")) == []
        assert all(lab.status().osds.values())
        assert "noout" not in flags()
    finally:
        lab.down(purge=True, say=print)
