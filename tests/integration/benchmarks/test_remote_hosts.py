"""Campaigns on hosts over SSH: one runner on each, results gathered, and a silent host named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from include.benchmarks.campaign.campaigns import open_target, remove_data, run_campaign, watched_servers
from include.benchmarks.campaign.folder import CampaignFolder, CampaignRecord
from include.benchmarks.campaign.plan import CampaignPlan, CampaignWish, PlannedStep
from include.benchmarks.errors import AREA_FOREIGN, TARGET_UNUSABLE
from include.benchmarks.judge.compare import figures_of, missing_parts
from include.benchmarks.measure import remote
from include.benchmarks.measure.loads import LoadAccess, LoadStep, RunnerKind, StreamLoad
from include.benchmarks.measure.remote import RemoteArea
from include.benchmarks.measure.targets import MARKER
from include.settings.benchmarks import TargetKind
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.benchmarking import START, begin_campaign, campaigns_of, ticking
from tests.fakes.refused import refused
from tests.servers.sshd import SshServer

pytestmark = pytest.mark.server("fio")


@pytest.fixture
def hosts(
    tmp_path: Path, need: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SshServer, SshServer]]:
    need("sshd")
    monkeypatch.setattr(remote, "LEAD_S", 1.0)  # these hosts are not far
    with SshServer(tmp_path / "a") as first, SshServer(tmp_path / "b") as second:
        yield first, second


def site_with(folder: Path, hosts: tuple[SshServer, ...]) -> Site:
    (folder / "target").mkdir(exist_ok=True)
    logins = {
        f"host{number}": {
            "host": "127.0.0.1", "port": host.port, "user": host.user, "known_hosts": f"{host.known_hosts}",
            "key": f"{host.user_key}",
        }
        for number, host in enumerate(hosts)
    }  # fmt: skip
    servers = {"hosts": {"storage": logins["host0"]}, "every_s": 1}
    target = {
        "kind": "remote", "path": f"{folder}/target", "hosts": logins, "benchmark": "allowed", "servers": servers,
    }  # fmt: skip
    limits = {"limits": {"bytes": "20GiB", "fill_percent": 95}}
    settings = {
        "ledger": f"sqlite:///{folder}/ledger.db",
        "paths": {"var": f"{folder}/var"},
        "benchmarks": {"targets": {"far": {**target, **limits}}},
    }
    return Site(SiteSettings.model_validate(settings), EnvSecrets({}))


def small_campaign(site: Site) -> CampaignFolder:
    """A campaign that writes four files of 4 MiB and reads them for two seconds."""
    load = StreamLoad(LoadAccess.WRITE, "data", streams=4, file_bytes=4 << 20, block_bytes=1 << 20)
    steps = (
        PlannedStep(1, 1, LoadStep("write", RunnerKind.REMOTE, (load,), 60)),
        PlannedStep(2, 1, LoadStep("read", RunnerKind.REMOTE, (replace(load, access=LoadAccess.READ),), 2)),
    )
    folder = CampaignFolder(campaigns_of(site), "far-1")
    made = CampaignPlan(CampaignWish("far", "small"), TargetKind.REMOTE, steps)
    folder.create(CampaignRecord(folder.id, made, START, "here", None))
    return folder


def test_each_host_has_its_streams_and_the_results_are_one(tmp_path: Path, hosts: tuple[SshServer, SshServer]) -> None:
    site = site_with(tmp_path, hosts)
    folder = small_campaign(site)
    target = open_target(site, "far")
    run_campaign(folder, target, clock=ticking(), watch=watched_servers(site, target).during)
    steps = list(folder.steps())
    assert [step.error for step in steps] == [None, None]
    for step in steps:
        assert step.servers is not None
        assert {(machine.name, machine.server) for machine in step.servers.machines} == {
            ("this machine", False), ("host0", False), ("host1", False), ("storage", True),
        }  # fmt: skip
        assert all(machine.use.load >= 0 and machine.over_time for machine in step.servers.machines)
        assert step.result is not None
        assert step.result.missing == ()
        assert len(step.result.commands) == 2
        assert [load.failed for load in step.result.loads] == [0]
        assert sum("clock" in note for note in step.result.notes) == 2
    written, read = (step.result.loads[0] for step in steps if step.result)
    assert (written.bytes, written.operations) == (16 << 20, 16)
    assert written.latencies is not None
    assert written.latencies.operations == 16
    assert read.bytes > 0
    assert {point.second for point in read.series}
    assert len(list((tmp_path / "target").iterdir())) == 2
    assert remove_data(folder, target).left == ()
    assert list((tmp_path / "target").iterdir()) == []


def test_a_silent_host_is_named_and_its_step_is_not_compared(
    tmp_path: Path, hosts: tuple[SshServer, SshServer]
) -> None:
    site = site_with(tmp_path, hosts)
    hosts[1].stop()
    folder = small_campaign(site)
    target = open_target(site, "far")
    run_campaign(folder, target, clock=ticking())
    steps = list(folder.steps())
    assert figures_of(steps) == ()
    missing = missing_parts(folder.record(), steps)
    assert len(missing) == 2
    assert all("host1" in part and "host0" not in part for part in missing)
    # what may be left on the silent host is not forgotten
    with refused(TARGET_UNUSABLE):
        remove_data(folder, target)
    assert not folder.closed
    hosts[1].process.start()
    assert remove_data(folder, target).left == ()
    assert folder.closed
    assert list((tmp_path / "target").iterdir()) == []
    for host in hosts:
        host.stop()
    with refused(TARGET_UNUSABLE, subject="far"):
        begin_campaign(site, "hlt2-uncontrolled", "far")


def test_only_listed_files_of_the_run_are_removed(tmp_path: Path, hosts: tuple[SshServer, SshServer]) -> None:
    area = open_target(site_with(tmp_path, hosts[:1]), "far").area("run-1")
    assert isinstance(area, RemoteArea)
    area.create()
    area.create()
    folder = Path(area.folder(area.hosts[0]))
    (folder / "data.0.0").touch()
    (folder / "other").touch()
    (folder / "link").symlink_to(tmp_path / "target")
    assert area.remove_files(["data.0.0", "link", "gone", "../data"]).removed == 1
    assert area.remove().left == ("host0: link", "host0: other")
    (folder / MARKER).write_text("run-2")
    with refused(AREA_FOREIGN):
        area.create()
    assert (folder / "other").exists()
