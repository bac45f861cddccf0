"""The rule of comparisons: right in 19 of 20 trials for a slowdown of a fifth, and for none."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from include.benchmarks.judge.compare import BenchmarkVerdict, compare, overall

PASS, IMPROVED, REGRESSED, INCONCLUSIVE = (
    BenchmarkVerdict.PASS, BenchmarkVerdict.IMPROVED, BenchmarkVerdict.REGRESSED, BenchmarkVerdict.INCONCLUSIVE,
)  # fmt: skip
TRIALS = 400


def share(verdict, speed, *, noise, rounds, more_is_better=True):
    """Of seeded trials: how many end with this verdict, at a speed beside the baseline's."""
    draw = random.Random(15)

    def campaign(mean):
        return [mean * draw.lognormvariate(0, noise) for _ in range(rounds)]

    found = [
        compare(campaign(100), campaign(100 * speed), margin=0.1, more_is_better=more_is_better).verdict
        for _ in range(TRIALS)
    ]
    return found.count(verdict) / TRIALS


@pytest.mark.parametrize(("noise", "rounds"), [(0.03, 5), (0.04, 8), (0.06, 16)])
@pytest.mark.parametrize(("speed", "verdict"), [(0.8, REGRESSED), (1.0, PASS), (1.3, IMPROVED)])
def test_trials_are_right_where_there_are_enough_rounds_for_the_noise(speed, verdict, noise, rounds):
    assert share(verdict, speed, noise=noise, rounds=rounds) >= 0.95


@pytest.mark.parametrize(("noise", "rounds"), [(0.025, 5), (0.035, 8), (0.055, 16)])
@pytest.mark.parametrize(("speed", "verdict"), [(0.8, REGRESSED), (1.0, PASS)])
def test_campaigns_of_two_figures_are_right_in_19_of_20_trials(speed, verdict, noise, rounds):
    draw = random.Random(20)

    def figure(mean):
        return [mean * draw.lognormvariate(0, noise) for _ in range(rounds)]

    def trial():
        return overall([compare(figure(100), figure(100 * speed), margin=0.1).verdict for _ in range(2)])

    assert sum(trial() is verdict for _ in range(TRIALS)) / TRIALS >= 0.95


def test_latencies_are_better_where_they_are_less():
    assert share(REGRESSED, 1.25, noise=0.03, rounds=5, more_is_better=False) >= 0.95
    assert share(PASS, 1.0, noise=0.03, rounds=5, more_is_better=False) >= 0.95


@pytest.mark.parametrize(
    ("factor", "more_is_better", "words"),
    [
        (0.5, True, "50.0 % lower than in the baseline (50.0 % lower to 50.0 % lower): worse, by more than"),
        (2.0, False, "100.0 % higher than in the baseline (100.0 % higher to 100.0 % higher): worse, by more than"),
        (0.5, False, "50.0 % lower than in the baseline (50.0 % lower to 50.0 % lower): better, by more than"),
    ],
)
def test_a_comparison_says_in_words_by_how_much_the_figure_itself_changed(factor, more_is_better, words):
    found = compare([80.0] * 5, [factor * 80.0] * 5, margin=0.1, more_is_better=more_is_better)
    assert found.reason == f"{words} the margin of 10 %"


def test_noise_makes_a_comparison_inconclusive_and_hardly_ever_wrong():
    assert share(REGRESSED, 1.0, noise=0.3, rounds=5) <= 0.025
    assert share(PASS, 0.8, noise=0.3, rounds=5) <= 0.025
    assert share(INCONCLUSIVE, 1.0, noise=0.3, rounds=5) > 0.5


def test_the_interval_of_five_rounds_leaves_two_pairs_outside_at_each_end():
    found = compare([100, 101, 102, 103, 104], [100, 101, 102, 103, 104], margin=0.1)
    ratios = sorted(new / old for new in range(100, 105) for old in range(100, 105))
    assert (found.verdict, round(found.low, 9), round(found.high, 9)) == (
        PASS, round(ratios[2], 9), round(ratios[-3], 9),
    )  # fmt: skip


def test_too_few_rounds_and_a_round_that_measured_nothing_are_inconclusive():
    for old, new in (([1] * 3, [1] * 3), ([], [1]), ([1] * 5, []), ([1], [1] * 20)):
        assert (compare(old, new, margin=0.1).verdict, compare(old, new, margin=0.1).ratio) == (INCONCLUSIVE, None)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        assert compare([1.0] * 5, [1.0] * 4 + [bad], margin=0.1).verdict is INCONCLUSIVE


@given(st.lists(st.floats(1, 1e12), min_size=4, max_size=9), st.floats(0.01, 0.5))
def test_a_figure_compared_with_itself_is_never_worse_or_better(values, margin):
    found = compare(values, values, margin=margin)
    assert found.verdict in {PASS, INCONCLUSIVE}
    assert found.low <= found.ratio <= found.high


def test_the_worst_verdict_counts():
    order = [[IMPROVED], [PASS, IMPROVED], [INCONCLUSIVE, PASS], [REGRESSED, INCONCLUSIVE, PASS]]
    assert [overall(verdicts) for verdicts in order] == [IMPROVED, PASS, INCONCLUSIVE, REGRESSED]
    assert all(overall(one) is not overall(other) for one, other in pairwise(order))
    assert overall([]) is INCONCLUSIVE
