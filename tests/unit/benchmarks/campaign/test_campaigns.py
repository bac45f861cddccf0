"""Rounds that are run while the verdict is open: how many, when they end, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest

from include.benchmarks.campaign import campaigns, execute
from include.benchmarks.campaign.campaigns import measure, open_target
from include.benchmarks.campaign.execute import run_campaign
from include.benchmarks.campaign.folder import CampaignFolder
from include.benchmarks.errors import PLAN_REFUSED, RUNNER_FAILED
from include.benchmarks.judge.compare import BenchmarkVerdict, plan_digest
from include.benchmarks.judge.judge import JudgedCampaign, accept_baseline, judge_campaign
from include.site.site import Site
from tests.fakes.benchmarking import MIB, START, MeasuringRunner, begin_campaign, benchmark_site, ticking
from tests.fakes.refused import refused

pytestmark = pytest.mark.slow
STEADY = (1.0, 1.01, 0.99)
Measure = Callable[..., tuple[CampaignFolder, JudgedCampaign]]


@pytest.fixture
def site(tmp_path, measures) -> Site:
    return benchmark_site(tmp_path)


@pytest.fixture
def measured(site: Site, measures) -> Measure:
    """Runs a campaign whose rounds have these speeds, one after the other, and judges it."""

    def run(*speeds: float, hours: int = 0, **wish: object) -> tuple[CampaignFolder, JudgedCampaign]:
        measures(MeasuringRunner(speed_of(speeds)))
        asked = {"rounds": 5, "most_rounds": 12, "minutes": 10, **wish}
        folder = begin_campaign(site, now=START + timedelta(hours=hours), **asked)
        measure(site, folder)
        return folder, judge_campaign(site.ledger, folder, site.settings.benchmarks)

    return run


def speed_of(speeds: tuple[float, ...]) -> Callable[[str, int], float]:
    """Of each step in its turn."""
    of_step: dict[str, Iterator[float]] = {}
    return lambda name, _turn: 100 * MIB * next(of_step.setdefault(name, cycle(speeds)))


def rounds_of(folder: CampaignFolder) -> int:
    return max(ended.step.round for ended in folder.steps())


def accepted(site: Site, campaign: tuple[CampaignFolder, JudgedCampaign]) -> None:
    accept_baseline(site.ledger, campaign[1].id, by="shift", now=START)


@pytest.mark.parametrize(
    ("speeds", "rounds", "verdict"),
    [
        (STEADY, range(5, 6), BenchmarkVerdict.PASS),
        ([0.8 * speed for speed in STEADY], range(5, 6), BenchmarkVerdict.REGRESSED),
        ((0.85, 1.0, 0.86, 1.01, 0.99, *STEADY, *STEADY, 1.0), range(6, 13), BenchmarkVerdict.PASS),
        ([0.9 * speed for speed in (1.0, 1.15, 0.9)], range(12, 13), BenchmarkVerdict.INCONCLUSIVE),
    ],
    ids=["clear", "clear and slower", "decided by further rounds", "never decided"],
)
def test_rounds_end_with_a_clear_verdict_or_at_the_most_that_was_asked_for(
    site: Site, measured: Measure, speeds: Sequence[float], rounds: range, verdict: BenchmarkVerdict
) -> None:
    accepted(site, measured(*STEADY))
    folder, judged = measured(*speeds, hours=1)
    assert (judged.verdict, judged.missing) == (verdict, ())
    assert rounds_of(folder) in rounds


def test_a_killed_campaign_ends_with_the_rounds_that_it_would_have_had(site: Site, measured: Measure, measures) -> None:
    accepted(site, measured(*STEADY))
    folder = begin_campaign(site, now=START + timedelta(hours=1), rounds=5, most_rounds=12)
    measures(MeasuringRunner(speed_of(STEADY)))

    def killed(_ended: object) -> None:
        raise KeyboardInterrupt

    while not folder.closed and sum(1 for _ in folder.steps()) < 10:
        with pytest.raises(KeyboardInterrupt):
            measure(site, folder, each=killed)
    measure(site, folder, each=killed)
    assert rounds_of(folder) == 5


def test_without_a_baseline_all_rounds_are_run_and_one_that_was_not_ended_is_missing(
    site: Site, measured: Measure
) -> None:
    folder, judged = measured(*STEADY)
    assert (rounds_of(folder), judged.missing) == (12, ())
    last = max((folder.path / "steps").glob("*.json"))
    last.unlink()
    judged = judge_campaign(site.ledger, folder, site.settings.benchmarks)
    assert judged.missing == ("read, round 12: not run",)


def test_what_is_missing_ends_the_rounds(site: Site, measured: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_runner: object, step: object, *_: object) -> None:
        raise RUNNER_FAILED("write", "killed")

    monkeypatch.setattr(MeasuringRunner, "run", failing)
    folder, judged = measured(*STEADY)
    assert (rounds_of(folder), len(judged.missing)) == (5, 10)


def test_no_round_is_begun_that_would_not_end_in_time(site: Site, measures, monkeypatch: pytest.MonkeyPatch) -> None:
    measures()
    folder = begin_campaign(site, rounds=2, most_rounds=12, minutes=1)
    seconds = iter(range(0, 10_000, 5))
    # each step takes 5 s
    monkeypatch.setattr(execute.time, "monotonic", lambda: float(next(seconds)))
    run_campaign(folder, open_target(site, "scratch"), clock=ticking())
    steps = list(folder.steps())
    # a round is planned with 23 s, and may take them
    assert folder.record().plan.seconds == 2 * 23
    assert rounds_of(folder) == 4
    assert sum(ended.seconds for ended in steps) == 40
    assert judge_campaign(site.ledger, folder, site.settings.benchmarks).missing == ()


def test_only_rounds_within_the_limits_are_planned(tmp_path) -> None:
    site = benchmark_site(tmp_path, limits={"bytes": "1GiB", "fill_percent": 95})
    one = begin_campaign(site, rounds=1).record().plan.bytes
    rounds = (1 << 30) // one
    plan = begin_campaign(site, rounds=2, most_rounds=50).record().plan
    assert plan.steps[-1].round == rounds
    for wrong in ({"rounds": 2, "most_rounds": 1}, {"rounds": rounds + 1}):
        with refused(PLAN_REFUSED):
            begin_campaign(site, **wrong)


def in_two_phases(folder: CampaignFolder, **load: Any) -> CampaignFolder:
    """The steps of a campaign, with another load, as two phases of a further one."""
    plan = folder.record().plan
    first = [replace(step, load=replace(step.load, ramp_s=0, **load)) for step in plan.steps]
    second = [replace(step, number=step.number + 100, phase=1) for step in first]
    both = CampaignFolder(folder.path.parent, "both")
    both.create(replace(folder.record(), plan=replace(plan, steps=(*first, *second))))
    return both


def test_each_phase_has_its_own_rounds(tmp_path, measures) -> None:
    measures()
    site = benchmark_site(tmp_path, fill="allowed")
    both = in_two_phases(begin_campaign(site, rounds=1, most_rounds=3), seconds=1)
    run_campaign(both, open_target(site, "scratch"), clock=ticking(), more=lambda steps: steps[0].step.phase == 0)
    assert {phase: max(e.step.round for e in both.steps() if e.step.phase == phase) for phase in (0, 1)} == {0: 3, 1: 1}


def test_further_rounds_leave_the_time_of_later_phases(site: Site, measures, monkeypatch: pytest.MonkeyPatch) -> None:
    measures()
    alone = begin_campaign(site, rounds=1, most_rounds=20, minutes=2)
    both = in_two_phases(alone, seconds=alone.record().plan.steps[0].load.seconds // 2)
    seconds = iter(range(0, 100_000, 20))
    # each step takes 20 s
    monkeypatch.setattr(execute.time, "monotonic", lambda: float(next(seconds)))
    run_campaign(both, open_target(site, "scratch"), clock=ticking())
    found = [(ended.step.phase, ended.step.round, ended.error) for ended in both.steps()]
    assert found == [(0, 1, None)] * 2 + [(1, 1, None)] * 2


def test_campaigns_with_different_numbers_of_rounds_are_compared(site: Site, measured: Measure) -> None:
    assert begin_campaign(site, rounds=5, most_rounds=20).record().plan.looks == (5, 7, 10, 14, 20)
    assert begin_campaign(site, rounds=3).record().plan.looks == (3,)
    for preset in ("hlt2-uncontrolled", "hlt2-controlled"):
        alone = begin_campaign(site, preset, rounds=5, minutes=2).record().plan
        further = begin_campaign(site, preset, rounds=5, most_rounds=12, minutes=2).record().plan
        assert further.looks[-1] > alone.looks[-1]
        assert plan_digest(further) == plan_digest(alone)
    first = measured(*STEADY, most_rounds=12)
    accepted(site, first)
    assert measured(*STEADY, hours=1)[1].baseline == first[1].id
    assert campaigns.find_campaign(site, first[0].id).record().plan.wish.most_rounds == 12
