"""Verdicts on campaigns: figures, requirements, missing parts and cost; and baselines, which only people move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.benchmarks.errors import BASELINE_REFUSED, CAMPAIGN_UNKNOWN, RUNNER_FAILED
from include.benchmarks.judge.compare import BenchmarkVerdict, FigureName
from include.benchmarks.judge.judge import accept_baseline, fails, judged_campaign, judged_campaigns
from include.benchmarks.measure.loads import LoadAccess
from tests.fakes.benchmarking import MIB, START, MeasuringRunner, benchmark_site, measured
from tests.fakes.refused import refused


@pytest.fixture
def site(tmp_path):
    line = {"target": "scratch", "step": "*", "throughput": f"{90 * MIB}", "p95_ms": 100}
    other = {"target": "objects", "step": "*", "p95_ms": 1}
    return benchmark_site(tmp_path, requirements=(line, other), usable_bytes="500GB", price=22.5)


@pytest.fixture
def campaign(site, measures):
    """Runs a campaign on a target of a speed, and judges it."""

    def measure(speed=1.0, *, hours=0, runner=None, **wish):
        measures(runner or MeasuringRunner(lambda _step, turn: 100 * MIB * speed * (1 + 0.01 * (turn % 3))))
        return measured(site, hours=hours, **{"rounds": 5, **wish})[1]

    return measure


class FailingRunner(MeasuringRunner):
    def run(self, step, area, scratch):
        if step.name == "read":
            raise RUNNER_FAILED(step.name, "killed")
        return super().run(step, area, scratch)


class LosingRunner(MeasuringRunner):
    """As fast as the other, but some of its operations fail."""

    def _measured(self, access, speed):
        return replace(super()._measured(access, speed), failed=3)


def accept(site, judged):
    accept_baseline(site.ledger, judged.id, by="shift", now=START)


@pytest.mark.parametrize(
    ("speed", "verdict"),
    [(1.0, BenchmarkVerdict.PASS), (0.8, BenchmarkVerdict.REGRESSED), (1.3, BenchmarkVerdict.IMPROVED)],
)
def test_a_campaign_is_compared_with_the_accepted_one(site, campaign, speed, verdict):
    baseline = campaign()
    assert (baseline.verdict, baseline.baseline) == (BenchmarkVerdict.INCONCLUSIVE, None)
    assert "no baseline" in baseline.reason
    accept(site, baseline)
    judged = campaign(speed, hours=1)
    assert (judged.verdict, judged.baseline, fails(judged)) == (verdict, baseline.id, speed == 0.8)
    words = {
        BenchmarkVerdict.PASS: "no figure of 2 is worse than in the baseline by more than 10 %",
        BenchmarkVerdict.REGRESSED: "write throughput: 20.0 % lower than in the baseline (20.8 % lower to 19.2",
        BenchmarkVerdict.IMPROVED: "write throughput: 30.0 % higher than in the baseline",
    }
    assert judged.reason.startswith(words[verdict])


def test_only_campaigns_with_the_same_plan_are_compared(site, campaign):
    accept(site, campaign())
    assert campaign(hours=1, scale=0.01).baseline is None
    assert campaign(hours=2).baseline is not None


def test_a_baseline_is_moved_by_people_only(site, campaign):
    first, better = campaign(), campaign(1.3, hours=1)
    accept(site, first)
    assert campaign(1.3, hours=2).verdict is BenchmarkVerdict.IMPROVED
    assert campaign(1.3, hours=3).verdict is BenchmarkVerdict.IMPROVED
    accept(site, better)
    assert campaign(1.3, hours=4).verdict is BenchmarkVerdict.PASS
    assert judged_campaign(site.ledger, first.id).verdict is BenchmarkVerdict.INCONCLUSIVE


def test_a_campaign_with_missing_parts_names_them_and_has_no_verdict_on_them(site, campaign):
    accept(site, campaign())
    judged = campaign(hours=1, runner=FailingRunner())
    assert [part.partition(":")[0] for part in judged.missing] == [f"read, round {number}" for number in range(1, 6)]
    assert (judged.verdict, judged.requirements_met) == (BenchmarkVerdict.INCONCLUSIVE, False)
    assert {one.figure.step for one in judged.figures} == {"write"}
    with refused(BASELINE_REFUSED, subject=judged.id):
        accept(site, judged)
    slower = campaign(hours=2, runner=FailingRunner(lambda _step, _turn: 50.0 * MIB))
    assert slower.verdict is BenchmarkVerdict.REGRESSED, "whatever is missing"


def test_requirements_are_checked_whatever_the_baseline_and_figures_have_their_rounds_and_cost(campaign):
    judged = campaign()
    assert [(check.step, check.met) for check in judged.requirements] == [
        ("read", True), ("read", True), ("write", True), ("write", True),
    ]  # fmt: skip
    slow = campaign(0.8, hours=1)
    assert (slow.requirements_met, fails(slow)) == (False, True)
    write = judged.figures[0].figure
    assert write.key == ("write", LoadAccess.WRITE, FigureName.THROUGHPUT)
    assert (len(write.values), round(write.median / MIB), round(write.spread, 3), write.judged) == (5, 101, 0.02, True)
    assert [one.figure.judged for one in judged.figures if one.figure.name is FigureName.P95_MS] == [False, False]
    assert (judged.cost.per_usable_tb, judged.cost.currency) == (45, "USD")
    limited = campaign(hours=2, preset="hlt2-controlled", minutes=1)
    assert {row.figure.name for row in limited.figures if row.figure.judged} == {FigureName.P95_MS}


def test_campaigns_are_listed_with_the_newest_first(site, campaign):
    made = [campaign(hours=hour).id for hour in range(3)]
    assert [one.id for one in judged_campaigns(site.ledger, target="scratch", limit=2)] == made[:0:-1]
    assert judged_campaigns(site.ledger, target="objects") == []
    assert judged_campaigns(site.ledger, preset="objects") == []
    with refused(CAMPAIGN_UNKNOWN, subject="other"):
        judged_campaign(site.ledger, "other")


def test_a_figure_of_which_more_operations_fail_than_in_the_baseline_does_not_pass(site, campaign):
    accept(site, campaign())
    judged = campaign(hours=1, runner=LosingRunner(lambda _step, _turn: 100 * MIB))
    assert judged.verdict is BenchmarkVerdict.INCONCLUSIVE
    assert all(
        "15 operations failed in 5 rounds" in one.comparison.reason for one in judged.figures if one.figure.judged
    )
    slow = campaign(hours=2, runner=LosingRunner(lambda _step, _turn: 50 * MIB))
    assert slow.verdict is BenchmarkVerdict.REGRESSED
    accept(site, campaign(hours=3, runner=LosingRunner(lambda _step, _turn: 100 * MIB), rounds=10))
    again = campaign(hours=4, runner=LosingRunner(lambda _step, _turn: 100 * MIB), rounds=10)
    assert again.verdict is BenchmarkVerdict.PASS, "as many failed in each round"
