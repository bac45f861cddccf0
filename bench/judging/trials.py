"""Whole campaigns on targets whose speed is known: planned, run, judged against the first one, and removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from judging.link import LimitedLink, limited

from include.benchmarks.campaign.execute import remove_data, run_campaign, utc_now
from include.benchmarks.campaign.folder import CampaignFolder, CampaignRecord
from include.benchmarks.loads import LoadAccess, LoadStep, RunnerKind, StreamLoad
from include.benchmarks.results import RunnerResult
from include.benchmarks.runners.base import Runner
from include.benchmarks.runners.choose import RUNNERS
from include.benchmarks.runners.fio import FioRunner
from include.benchmarks.scenarios.plan import CampaignPlan, CampaignWish, PlannedStep
from include.benchmarks.targets.base import BenchmarkTarget
from include.benchmarks.targets.bucket import BucketBenchmarkTarget
from include.benchmarks.targets.path import FolderArea, PathBenchmarkTarget
from include.benchmarks.verdict.judge import JudgedCampaign, judge
from include.lab.servers.weed import WeedServer
from include.settings.storage_benchmark.blocks import BenchmarkSettings, BucketTarget, PathTarget
from include.storage.buckets import ensure_bucket
from include.storage.open import open_store
from include.storage.options import Credentials
from include.storage.store import Store

LINK_SPEED, FIO_SPEED = 8e6, 40e6
"""Bytes per second of the unchanged targets: far below what the machine can do."""
OBJECT = 64 << 10
BUCKET = "bench"
STREAMS = 4


@dataclass(frozen=True, slots=True)
class Trials:
    """Campaigns on one target, which is slowed at will."""

    target: BenchmarkTarget
    loads: tuple[LoadStep, ...]
    prepare: tuple[LoadStep, ...]
    root: Path
    speed: Speed

    def campaign(self, number: int, *, rounds: int, speed: float, baseline: JudgedCampaign | None) -> JudgedCampaign:
        """Run one at a share of the target's speed, and judge it."""
        self.speed.share(speed)
        counted = [(number, load) for number in range(1, rounds + 1) for load in self.loads]
        steps = enumerate([*((0, load) for load in self.prepare), *counted], start=1)
        planned = tuple(PlannedStep(at, turn, load) for at, (turn, load) in steps)
        wish = CampaignWish(self.target.name, "verdict", rounds=rounds)
        folder = CampaignFolder(self.root, f"{self.target.name}-{number}")
        plan = CampaignPlan(wish, self.target.kind, planned)
        folder.create(CampaignRecord(folder.id, plan, utc_now(), "bench", self.target.space()))
        try:
            run_campaign(folder, self.target, clock=utc_now)
        finally:
            remove_data(folder, self.target)
        return judge(folder.record(), list(folder.steps()), baseline, BenchmarkSettings())


class Speed:
    """Of a target: its link, or what fio is limited to."""

    def __init__(self, link: LimitedLink | None = None, runner: LimitedFio | None = None) -> None:
        self._link, self._runner = link, runner

    def share(self, of_all: float) -> None:
        """From now on the target has this share of its speed."""
        if self._link is not None:
            self._link.bytes_per_s = LINK_SPEED * of_all
        if self._runner is not None:
            self._runner.rate = round(FIO_SPEED * of_all / STREAMS)


class LimitedFio(FioRunner):
    """fio on a disk that is no faster than this, as its campaign does not know."""

    rate = round(FIO_SPEED / STREAMS)

    def run(self, step: LoadStep, area: FolderArea, scratch: Path) -> RunnerResult:
        limited_step = replace(step, loads=tuple(replace(load, rate=self.rate) for load in step.loads))
        return super().run(limited_step, area, scratch)


@contextmanager
def s3_trials(folder: Path, *, seconds: int) -> Iterator[Trials]:
    """The embedded SeaweedFS behind a link of limited speed."""
    credentials = Credentials("benchkey", "benchsecret")
    with WeedServer(folder / "weed", credentials=credentials) as server:
        ensure_bucket(f"s3://{BUCKET}", credentials, server.options())
        with limited(server.ports.s3, LINK_SPEED) as link:

            def opened(connections: int) -> Store:
                endpoint = f"http://127.0.0.1:{link.port}"
                options = replace(server.options(retries=0, connections=connections), endpoint=endpoint)
                return open_store(f"s3://{BUCKET}", credentials=credentials, options=options)

            settings = BucketTarget.model_validate({"kind": "bucket", "name": "s3", "store": "s"})
            kept = StreamLoad(LoadAccess.WRITE, "kept", STREAMS, OBJECT, OBJECT, files=10)
            new = replace(kept, dataset="new", files=round(2 * LINK_SPEED * seconds / STREAMS / OBJECT))
            loads = (_step("write", new, seconds), _step("read", replace(kept, access=LoadAccess.READ), seconds))
            target = BucketBenchmarkTarget(settings, opened)
            yield Trials(target, loads, (_step("prepare", kept, 60),), folder / "s3", Speed(link=link))


@contextmanager
def path_trials(folder: Path, *, seconds: int) -> Iterator[Trials]:
    """A folder that fio reaches at a limited rate."""
    (folder / "files").mkdir()
    runner = LimitedFio()
    with _in_place_of_fio(runner):
        settings = PathTarget.model_validate(
            {"kind": "path", "name": "path", "path": folder / "files", "limits": {"fill_percent": 95}}
        )
        size = round(FIO_SPEED * seconds / STREAMS) // (OBJECT) * OBJECT
        load = StreamLoad(LoadAccess.WRITE, "data", STREAMS, size, OBJECT)
        reading = replace(load, access=LoadAccess.READ)
        loads = (_step("write", load, 60, RunnerKind.FIO), _step("read", reading, seconds, RunnerKind.FIO))
        yield Trials(PathBenchmarkTarget(settings), loads, (), folder / "path", Speed(runner=runner))


@contextmanager
def _in_place_of_fio(runner: LimitedFio) -> Iterator[None]:
    runners = cast("dict[RunnerKind, Runner[Any]]", RUNNERS)
    before = runners[RunnerKind.FIO]
    runners[RunnerKind.FIO] = runner
    try:
        yield
    finally:
        runners[RunnerKind.FIO] = before


def noise_of(campaign: JudgedCampaign) -> float:
    """By how much the rounds of a judged figure differ: half their range, as a share of their median, at its worst."""
    return max((one.figure.spread / 2 for one in campaign.figures if one.figure.judged), default=0.0)


def worst_ratio(campaign: JudgedCampaign) -> float | None:
    """The smallest ratio to the baseline."""
    ratios = [one.comparison.ratio for one in campaign.figures if one.figure.judged and one.comparison]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _step(name: str, load: StreamLoad, seconds: int, runner: RunnerKind = RunnerKind.OBJECTS) -> LoadStep:
    return LoadStep(name, runner, (load,), seconds)
