"""A benchmark site with a folder and a store as targets, and a runner that measures what a test says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

from include.benchmarks.campaign import plan
from include.benchmarks.campaign.campaigns import new_campaign, open_target, run_campaign
from include.benchmarks.campaign.folder import FOLDER, CampaignFolder
from include.benchmarks.campaign.plan import CampaignWish
from include.benchmarks.judge.judge import JudgedCampaign, judge_campaign
from include.benchmarks.measure.loads import (
    LatencyHistogram,
    LoadAccess,
    LoadStep,
    MeasuredLoad,
    RunnerKind,
    RunnerResult,
    SeriesPoint,
)
from include.benchmarks.measure.targets import FolderArea, Runner, RunnerAbilities
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site

START = datetime(2026, 11, 23, 3, 0, tzinfo=UTC)
MIB = 1 << 20


def benchmark_site(folder: Path, *, requirements: tuple[dict[str, Any], ...] = (), **target: Any) -> Site:
    """Its targets are `scratch`, a folder, and `objects`, a store; both take these keys."""
    (folder / "target").mkdir(exist_ok=True)
    shared = {"benchmark": "allowed", "limits": {"bytes": "20GiB", "fill_percent": 95}, **target}
    settings = {
        "ledger": f"sqlite:///{folder}/ledger.db",
        "paths": {"var": f"{folder}/var"},
        "stores": {"s": {"url": f"file://{folder}/store"}},
        "benchmarks": {
            "targets": {
                "scratch": {"kind": "path", "path": f"{folder}/target", **shared},
                "objects": {"kind": "bucket", "store": "s", **shared},
            },
            "requirements": requirements,
        },
    }
    return Site(SiteSettings.model_validate(settings), EnvSecrets({}))


def campaigns_of(site: Site) -> Path:
    """The folder of all campaigns of a site."""
    return site.settings.paths.var / FOLDER


def begin_campaign(
    site: Site, preset: str = "hlt2-uncontrolled", target: str = "scratch", *, now: datetime = START, **wish: Any
) -> CampaignFolder:
    """A small campaign that is planned and not run."""
    asked = CampaignWish(target, preset, **{"scale": 0.001, "rounds": 2, "minutes": 10, **wish})
    return new_campaign(campaigns_of(site), open_target(site, target), asked, now=now)


def measured(
    site: Site, preset: str = "hlt2-uncontrolled", *, hours: int = 0, **wish: Any
) -> tuple[CampaignFolder, JudgedCampaign]:
    """A small campaign that was run, and what it comes to."""
    folder = begin_campaign(site, preset, now=START + timedelta(hours=hours), **wish)
    run_campaign(folder, open_target(site, "scratch"), clock=ticking())
    return folder, judge_campaign(site.ledger, folder, site.settings.benchmarks)


def ticking(start: datetime = START) -> Callable[[], datetime]:
    """A clock that goes on by a second at each look."""
    numbers = count()
    return lambda: start + timedelta(seconds=next(numbers))


class MeasuringRunner(Runner[FolderArea]):
    """Writes its files, empty, and reports a speed in bytes per second by the name of the step and its turn."""

    abilities = RunnerAbilities(frozenset(LoadAccess), limits_rates=True, takes_ramp=True)

    def __init__(self, speed: Callable[[str, int], float] = lambda _name, _turn: 100.0 * MIB) -> None:
        self.speed = speed
        self.steps: list[str] = []

    def run(self, step: LoadStep, area: FolderArea, scratch: Path) -> RunnerResult:
        self.steps.append(step.name)
        speed = self.speed(step.name, self.steps.count(step.name))
        for load in step.loads:
            for name in load.names() if load.access is LoadAccess.WRITE else ():
                (area.folder / name).touch()
        loads = tuple(self._measured(load.access, speed) for load in step.loads)
        (scratch / "output").write_text(step.name)
        return RunnerResult("fake 1", (("fake", step.name),), loads)

    def put(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Into the place of fio, which does not have to be installed."""
        monkeypatch.delitem(plan.PROGRAMS, RunnerKind.FIO, raising=False)
        monkeypatch.setitem(plan.RUNNERS, RunnerKind.FIO, self)
        return self

    def _measured(self, access: LoadAccess, speed: float) -> MeasuredLoad:
        slow_ns = round(1e15 / speed)
        latencies = LatencyHistogram.of([slow_ns] * 90 + [slow_ns * 4] * 10)
        series = tuple(SeriesPoint(second, speed, slow_ns * 4 / 1e6) for second in range(3))
        return MeasuredLoad(access, round(speed * 3), 100, 0, 3.0, 2.5, latencies, latencies.mean_ms(), series)
