"""Campaigns: each step once, whatever interrupts them, rounds while the verdict is open, and nothing left after."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from include.benchmarks import errors
from include.benchmarks.campaign import campaigns
from include.benchmarks.campaign.campaigns import (
    OVER_TIME,
    measure,
    new_campaign,
    open_target,
    remove_data,
    run_campaign,
    target_lock,
)
from include.benchmarks.campaign.folder import CampaignFolder, campaigns_in
from include.benchmarks.campaign.plan import CampaignWish
from include.benchmarks.errors import PLAN_REFUSED, RUNNER_FAILED
from include.benchmarks.judge.compare import BenchmarkVerdict, plan_digest
from include.benchmarks.judge.judge import JudgedCampaign, accept_baseline, judge_campaign
from include.benchmarks.measure import osds
from include.benchmarks.measure.loads import LoadAccess, ServerState
from include.benchmarks.measure.osds import open_servers
from include.benchmarks.measure.probes import CpuTicks, MachineNoise
from include.benchmarks.measure.targets import PathBenchmarkTarget, TargetSpace
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.benchmarking import MIB, START, MeasuringRunner, begin_campaign, benchmark_site, campaigns_of, ticking
from tests.fakes.cephprogram import FileCluster
from tests.fakes.refused import refused

STEADY = (1.0, 1.01, 0.99)
Measure = Callable[..., tuple[CampaignFolder, JudgedCampaign]]


@pytest.fixture
def site(tmp_path, measures) -> Site:
    return benchmark_site(tmp_path)


@pytest.fixture(autouse=True)
def _nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the machine takes longer than all else of such a step, and counts for no verdict."""
    nothing = SimpleNamespace(during=lambda: nullcontext(lambda: None))
    monkeypatch.setattr(campaigns, "watched_servers", lambda *_: nothing)


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_without_a_baseline_all_rounds_are_run_and_one_that_was_not_ended_is_missing(
    site: Site, measured: Measure
) -> None:
    folder, judged = measured(*STEADY)
    assert (rounds_of(folder), judged.missing) == (12, ())
    last = max((folder.path / "steps").glob("*.json"))
    last.unlink()
    judged = judge_campaign(site.ledger, folder, site.settings.benchmarks)
    assert judged.missing == ("read, round 12: not run",)


@pytest.mark.slow
def test_what_is_missing_ends_the_rounds(site: Site, measured: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_runner: object, step: object, *_: object) -> None:
        raise RUNNER_FAILED("write", "killed")

    monkeypatch.setattr(MeasuringRunner, "run", failing)
    folder, judged = measured(*STEADY)
    assert (rounds_of(folder), len(judged.missing)) == (5, 10)


@pytest.mark.slow
def test_no_round_is_begun_that_would_not_end_in_time(site: Site, measures, monkeypatch: pytest.MonkeyPatch) -> None:
    measures()
    folder = begin_campaign(site, rounds=2, most_rounds=12, minutes=1)
    seconds = iter(range(0, 10_000, 5))
    # each step takes 5 s
    monkeypatch.setattr(campaigns.time, "monotonic", lambda: float(next(seconds)))
    run_campaign(folder, open_target(site, "scratch"), clock=ticking())
    steps = list(folder.steps())
    # a round is planned with 23 s, and may take them
    assert folder.record().plan.seconds == 2 * 23
    assert rounds_of(folder) == 4
    assert sum(ended.seconds for ended in steps) == 40
    assert judge_campaign(site.ledger, folder, site.settings.benchmarks).missing == ()


@pytest.mark.slow
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


@pytest.mark.slow
def test_each_phase_has_its_own_rounds(tmp_path, measures) -> None:
    measures()
    site = benchmark_site(tmp_path, fill="allowed")
    both = in_two_phases(begin_campaign(site, rounds=1, most_rounds=3), seconds=1)
    run_campaign(both, open_target(site, "scratch"), clock=ticking(), more=lambda steps: steps[0].step.phase == 0)
    assert {phase: max(e.step.round for e in both.steps() if e.step.phase == phase) for phase in (0, 1)} == {0: 3, 1: 1}


@pytest.mark.slow
def test_further_rounds_leave_the_time_of_later_phases(site: Site, measures, monkeypatch: pytest.MonkeyPatch) -> None:
    measures()
    alone = begin_campaign(site, rounds=1, most_rounds=20, minutes=2)
    both = in_two_phases(alone, seconds=alone.record().plan.steps[0].load.seconds // 2)
    seconds = iter(range(0, 100_000, 20))
    # each step takes 20 s
    monkeypatch.setattr(campaigns.time, "monotonic", lambda: float(next(seconds)))
    run_campaign(both, open_target(site, "scratch"), clock=ticking())
    found = [(ended.step.phase, ended.step.round, ended.error) for ended in both.steps()]
    assert found == [(0, 1, None)] * 2 + [(1, 1, None)] * 2


@pytest.mark.slow
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


@pytest.fixture
def target(site):
    return open_target(site, "scratch")


@pytest.fixture
def runner(measures):
    return measures()


@pytest.fixture
def campaign(site, runner):
    return begin_campaign(site)


def run(campaign, target):
    run_campaign(campaign, target, clock=ticking())


def test_steps_of_one_campaign_at_a_time_run_in_their_order_and_are_kept(campaign, target, runner):
    with target_lock(campaign.path.parent, "scratch"):
        for work in (run, remove_data):
            with refused(errors.TARGET_BUSY, subject="scratch", retryable=True):
                work(campaign, target)
    run(campaign, target)
    assert runner.steps == ["write", "read", "write", "read"]
    steps = list(campaign.steps())
    assert [(ended.step.load.name, ended.step.round) for ended in steps] == [
        ("write", 1), ("read", 1), ("write", 2), ("read", 2),
    ]  # fmt: skip
    assert all(ended.result.loads[0].percentiles() and ended.error is None for ended in steps)
    assert (campaign.scratch(replace(steps[0].step, number=99)).name, campaign.record().began_at) == ("0099", START)


def test_an_interrupted_campaign_goes_on_where_it_was(campaign, target, runner):
    with pytest.MonkeyPatch.context() as patch:
        killed = instead(patch, lambda step: len(runner.steps) == 2, KeyboardInterrupt())
        with pytest.raises(killed):
            run(campaign, target)
    before = list(campaign.steps())
    run(CampaignFolder(campaign.path.parent, campaign.id), target)
    assert runner.steps == ["write", "read", "write", "read"]
    assert list(campaign.steps())[:2] == before
    run(campaign, target)
    assert len(runner.steps) == 4, "all steps have ended"


def instead(patch, when, error):
    """Let steps end in an error."""
    first = MeasuringRunner.run

    def fails(self, step, area, scratch):
        if when(step):
            raise error
        return first(self, step, area, scratch)

    patch.setattr(MeasuringRunner, "run", fails)
    return type(error)


def test_only_what_the_plan_lists_is_removed_and_the_campaign_is_closed_then(campaign, target, tmp_path):
    run(campaign, target)
    area = target.area(campaign.id)
    (area.folder / "of-a-person").touch()
    assert remove_data(campaign, target).left == ("of-a-person",)
    (area.folder / "of-a-person").unlink()
    assert remove_data(campaign, target).left == ()
    assert list((tmp_path / "target").iterdir()) == []
    assert remove_data(campaign, target).removed == 0
    with refused(errors.CAMPAIGN_CLOSED, subject=campaign.id):
        run(campaign, target)


@pytest.mark.parametrize("error", [errors.RESULT_UNREADABLE, errors.RUNNER_FAILED, errors.RUNNER_MISSING])
def test_a_step_that_fails_is_kept_with_its_error_and_the_others_run(campaign, target, monkeypatch, error):
    instead(monkeypatch, lambda step: step.name == "write", error("write", "damaged"))
    run(campaign, target)
    code = error.code
    assert [(e.error_code, e.result is None) for e in campaign.steps()] == [(code, True), (None, False)] * 2


class UnmixedRunner(MeasuringRunner):
    """Its writers end long before its readers."""

    def _measured(self, access, speed):
        seconds = 4.0 if access is LoadAccess.WRITE else 19.0
        return replace(super()._measured(access, speed), seconds=seconds, first_done_s=seconds)


def test_a_mixed_step_whose_loads_did_not_run_together_is_a_missing_part(site, target, measures):
    measures(UnmixedRunner())
    folder = begin_campaign(site, "hlt2-mixed")
    run(folder, target)
    mixed = [ended.result.missing for ended in folder.steps() if ended.step.counted]
    assert all("its loads ran together for 4.0 of 19.0 s only" in missing[0] for missing in mixed)


def test_a_target_that_vanishes_ends_the_campaign_without_a_record(campaign, target, monkeypatch, tmp_path):
    error = errors.RESULT_UNREADABLE("write", "no file")
    instead(monkeypatch, lambda _: shutil.rmtree(tmp_path / "target") is None, error)
    with refused(errors.TARGET_UNUSABLE, subject="scratch"):
        run(campaign, target)
    assert list(campaign.steps()) == []


def test_space_that_is_freed_some_time_after_a_removal_is_waited_for(campaign, target, runner, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PathBenchmarkTarget, "space", lambda _: TargetSpace(1 << 30, 1 << 20))
        patch.setattr(campaigns, "FREED_S", 0.0)
        with refused(errors.LIMIT_REACHED, subject="scratch"):
            run(campaign, target)
    free = iter([1 << 20, 2 << 20, 3 << 20])
    monkeypatch.setattr(PathBenchmarkTarget, "space", lambda _: TargetSpace(1 << 30, next(free, 1 << 30)))
    monkeypatch.setattr(campaigns, "FREED_EVERY_S", 0.001)
    run(campaign, target)
    assert runner.steps == ["write", "read", "write", "read"]


def test_what_was_measured_on_one_level_is_gone_before_the_next_fill(tmp_path, runner, monkeypatch):
    site = benchmark_site(tmp_path, fill="allowed")
    monkeypatch.setattr(PathBenchmarkTarget, "space", lambda _: TargetSpace(1 << 30, 1 << 30))
    campaign = begin_campaign(site, preset="hlt2-occupancy")
    measured = {
        name for step in campaign.record().plan.steps if step.counted
        for load in step.load.loads for name in load.names()
    }  # fmt: skip
    seen = {}
    first = MeasuringRunner.run

    def looking(self, step, area, scratch):
        seen[step.name] = {path.name for path in area.folder.iterdir()}
        return first(self, step, area, scratch)

    monkeypatch.setattr(MeasuringRunner, "run", looking)
    run(campaign, open_target(site, "scratch"))
    fills = [name for name in seen if name.startswith("fill")]
    assert fills == ["fill-to-20", "fill-to-40", "fill-to-60", "fill-to-80"]
    assert not any(seen[name] & measured for name in fills)
    assert len(seen["fill-to-80"]) > len(seen["fill-to-60"]) > len(seen["fill-to-40"]), "what fills stays"


def test_steps_over_the_time_limit_are_named_and_not_run(site, runner, monkeypatch):
    campaign = begin_campaign(site)
    short = open_target(site, "scratch")
    limits = short.settings.limits.model_copy(update={"minutes": 0})
    short.settings = short.settings.model_copy(update={"limits": limits})
    run(campaign, short)
    assert {ended.error_code for ended in campaign.steps()} == {OVER_TIME}
    assert runner.steps == []


def test_damaged_and_missing_campaigns_are_refused_and_nothing_is_kept_of_a_refused_plan(site, campaign):
    wish = CampaignWish("scratch", "hlt2-uncontrolled", scale=1)
    with refused(errors.PLAN_REFUSED):
        new_campaign(campaigns_of(site), open_target(site, "scratch"), wish, now=START)
    assert campaigns_in(campaigns_of(site)) == [campaign.id]
    for text in ("", "{}", "[1", '{"id": 1}'):
        (campaign.path / "campaign.json").write_text(text)
        with refused(errors.CAMPAIGN_UNKNOWN, subject=campaign.id):
            campaign.record()
    for name in ("other", "../x", "", "a/b", ".locks"):
        with refused(errors.CAMPAIGN_UNKNOWN, subject=name):
            CampaignFolder(campaign.path.parent, name).record()


def test_the_machine_says_how_busy_it_was_with_other_things():
    before = CpuTicks.parse("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1\n")
    after = CpuTicks.parse("cpu  150 0 100 720 110 0 0 20 0 0\ncpu0 1\n")
    assert MachineNoise.between(before, after, 1.5) == MachineNoise(20.0, 70.0, 1.5)
    assert MachineNoise.between(after, CpuTicks.parse("damaged"), 0) == MachineNoise(0, 0, 0)


@pytest.fixture
def clustered(tmp_path, runner, monkeypatch):
    """A target on a cluster that reports what a test says, and a small campaign on it."""
    cluster = FileCluster(tmp_path, monkeypatch)
    block = cluster.settings().model_dump(mode="json", exclude_none=True)
    site = benchmark_site(tmp_path, degrade="allowed", fill="allowed", cluster=block)
    return cluster, open_target(site, "scratch"), begin_campaign(site)


def test_a_step_during_which_the_cluster_suffers_has_no_result_and_ends_the_campaign(clustered, monkeypatch):
    cluster, target, campaign = clustered
    assert campaign.record().space == TargetSpace(100_000_000_000, 90_000_000_000), "as full as its fullest OSD"
    monkeypatch.setattr(osds, "HOLD_S", 0.0)

    def suffering(self, step, area, scratch):
        cluster.report(SLOW_OPS="2 slow ops")
        seen = threading.Event()
        with area.stop.ending(seen.set):
            assert seen.wait(60)
        raise errors.RUNNER_FAILED(step.name, "was killed")

    monkeypatch.setattr(MeasuringRunner, "run", suffering)
    with refused(errors.CAMPAIGN_ABORTED, subject="scratch"):
        run(campaign, target)
    assert list(campaign.steps()) == []


def test_an_outage_whose_recovery_was_not_measured_is_measured_again(clustered, runner):
    cluster, target, campaign = clustered
    record = campaign.record()
    states = (ServerState.HEALTHY, ServerState.OSD_DOWN, ServerState.RECOVERING, ServerState.HEALTHY)
    steps = tuple(replace(step, servers=state) for step, state in zip(record.plan.steps, states, strict=True))
    plan = replace(record.plan, steps=steps)
    again = CampaignFolder(campaign.path.parent, "again")
    again.create(replace(record, id="again", plan=plan))
    osds = open_servers(target.settings.cluster, EnvSecrets({}))
    seen = []
    first = MeasuringRunner.run

    def seeing(self, step, area, scratch):
        if len(seen) in {2, 4}:  # the recovery: it is started beside the load
            deadline = time.monotonic() + 60
            while cluster.files("down-"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        seen.append(cluster.files("down-"))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return first(self, step, area, scratch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MeasuringRunner, "run", seeing)
        with pytest.raises(KeyboardInterrupt):
            run_campaign(again, target, clock=ticking(), servers=osds)
        assert (cluster.files(), again.outage()) == ([], None)
        run_campaign(again, target, clock=ticking(), servers=osds)
    assert seen == [[], ["down-0"], [], ["down-0"], [], []]
    assert len(list(again.steps())) == 4
    assert cluster.files() == []
