"""Whole campaigns of a small deployment, on targets whose speed is known; all of it but the presets is production's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from judging.link import limited

from include.benchmarks.campaign.execute import utc_now
from include.benchmarks.campaigns import begin_campaign, clean_up, measure
from include.benchmarks.loads import LoadAccess, LoadStep, RunnerKind
from include.benchmarks.results import RunnerResult
from include.benchmarks.runners.base import Runner
from include.benchmarks.runners.choose import RUNNERS
from include.benchmarks.runners.fio import FioRunner
from include.benchmarks.scenarios.plan import CampaignWish
from include.benchmarks.scenarios.preset import Preset, PresetLoad, PresetPhase, PresetStep
from include.benchmarks.scenarios.presets import PRESETS
from include.benchmarks.targets.path import FolderArea
from include.benchmarks.verdict.judge import JudgedCampaign
from include.benchmarks.verdict.record import accept_baseline, judge_campaign
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.buckets import ensure_bucket
from include.storage.options import Credentials
from lab.servers.weed import WeedServer

LINK_SPEED, FIO_SPEED = 4e6, 40e6
"""Bytes per second of the unchanged targets: far below what the machine can do."""
OBJECT = 64 << 10
STREAMS, LINK_STREAMS = 4, 16
"""A link is the limit only while requests wait for it: more of them than one has on its way through a busy server."""
CREDENTIALS = Credentials("benchkey", "benchsecret")
_KEPT = PresetLoad(LoadAccess.WRITE, "kept", LINK_STREAMS, OBJECT, OBJECT, files=2)
# more than a step has time for
_NEW = replace(_KEPT, dataset="new", files=round(2 * LINK_SPEED / LINK_STREAMS / OBJECT))
_FILE = PresetLoad(LoadAccess.WRITE, "data", STREAMS, round(FIO_SPEED / STREAMS) // OBJECT * OBJECT, OBJECT)
_STEPS = {
    "s3": PresetPhase(
        (PresetStep("write", (_NEW,), 1), PresetStep("read", (_KEPT.reading(),), 1)),
        prepare=(PresetStep("prepare", (_KEPT,), 60),),
    ),
    # what is written is written to its end: as much as takes a second
    "path": PresetPhase((PresetStep("write", (_FILE,), 60), PresetStep("read", (_FILE.reading(),), 1))),
}


@dataclass(frozen=True, slots=True)
class Trials:
    """Campaigns on one target, at a share of its speed that is set before each."""

    site: Site
    target: str
    set_speed: Callable[[float], None]

    def campaign(self, speed: float) -> JudgedCampaign:
        """Run one at a share of the target's speed, and judge it."""
        self.set_speed(speed)
        settings = self.site.settings.benchmarks
        wish = CampaignWish(self.target, self.target, rounds=settings.rounds, most_rounds=settings.most_rounds)
        folder = begin_campaign(self.site, wish, now=utc_now())
        try:
            measure(self.site, folder)
        finally:
            clean_up(self.site, folder)
        return judge_campaign(self.site.ledger, folder, settings)

    def accept(self, judged: JudgedCampaign) -> None:
        """Compare later campaigns with this one."""
        accept_baseline(self.site.ledger, judged.id, by="bench", now=utc_now())


class LimitedFio(FioRunner):
    """fio on a disk that is no faster than this, as its campaign does not know."""

    rate = round(FIO_SPEED / STREAMS)

    def run(self, step: LoadStep, area: FolderArea, scratch: Path) -> RunnerResult:
        limited_step = replace(step, loads=tuple(replace(load, rate=self.rate) for load in step.loads))
        return super().run(limited_step, area, scratch)

    def set_speed(self, share: float) -> None:
        """From now on the disk has this share of its speed."""
        self.rate = round(FIO_SPEED * share / STREAMS)


@contextmanager
def s3_trials(folder: Path, *, rounds: int, most: int) -> Iterator[Trials]:
    """The embedded SeaweedFS behind a link of limited speed."""
    with WeedServer(folder / "weed", credentials=CREDENTIALS) as server:
        ensure_bucket("s3://bench", CREDENTIALS, server.options())
        with limited(server.ports.s3, LINK_SPEED) as link:

            def set_speed(share: float) -> None:
                link.bytes_per_s = LINK_SPEED * share

            store = {"url": "s3://bench", "endpoint": f"http://127.0.0.1:{link.port}", "connection": "bench"}
            target = {"kind": "bucket", "store": "bench"}
            yield _trials(folder, "s3", target, set_speed, rounds=rounds, most=most, stores={"bench": store})


@contextmanager
def path_trials(folder: Path, *, rounds: int, most: int) -> Iterator[Trials]:
    """A folder that fio reaches at a limited rate."""
    (folder / "files").mkdir()
    runner = LimitedFio()
    runners = cast("dict[RunnerKind, Runner[Any]]", RUNNERS)
    before = runners[RunnerKind.FIO]
    runners[RunnerKind.FIO] = runner
    try:
        target = {"kind": "path", "path": f"{folder / 'files'}"}
        yield _trials(folder, "path", target, runner.set_speed, rounds=rounds, most=most)
    finally:
        runners[RunnerKind.FIO] = before


def noise_of(campaign: JudgedCampaign) -> float:
    """By how much the rounds of a judged figure differ: half their range, as a share of their median, at its worst."""
    return max((one.figure.spread / 2 for one in campaign.figures if one.figure.judged), default=0.0)


def rounds_of(campaign: JudgedCampaign) -> int:
    """How many rounds were run."""
    return max((len(one.figure.values) for one in campaign.figures if one.figure.judged), default=0)


def worst_ratio(campaign: JudgedCampaign) -> float | None:
    """The smallest ratio to the baseline."""
    ratios = [one.comparison.ratio for one in campaign.figures if one.figure.judged and one.comparison]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _trials(
    folder: Path,
    name: str,
    target: dict[str, Any],
    set_speed: Callable[[float], None],
    *,
    rounds: int,
    most: int,
    **blocks: Any,
) -> Trials:
    limits = {"fill_percent": 95, "bytes": "100GiB"}
    targets = {name: {**target, "benchmark": "allowed", "limits": limits}}
    settings = SiteSettings.model_validate({
        "ledger": f"sqlite:///{folder}/{name}.db",
        "paths": {"var": f"{folder}/{name}"},
        "benchmarks": {"targets": targets, "rounds": rounds, "most_rounds": most},
        **blocks,
    })  # fmt: skip
    key = json.dumps({"conn_type": "aws", "login": CREDENTIALS.access_key, "password": CREDENTIALS.secret_key})
    cast("dict[str, Preset]", PRESETS)[name] = Preset(name, "Two steps of a second", (_STEPS[name],))
    return Trials(Site(settings, EnvSecrets({"AIRFLOW_CONN_BENCH": key})), name, set_speed)
