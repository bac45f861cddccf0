"""One figure compared with its baseline, by a rule that is stated with the answer. Pure.

The ratio of the two is estimated by the median of all pairs (Hodges and Lehmann). Its interval is that of the test of
Mann and Whitney, which assumes no distribution, at 95 %. A campaign that is compared several times while it goes on
shares the 5 % among its looks. With a margin of 10 %:

* pass: no part of the interval is below 0.9,
* improved: the whole interval is above 1 / 0.9,
* regressed: the whole interval is below 0.9,
* inconclusive: the interval contains 0.9, or there are too few rounds.

Figures of which less is better are compared by their reciprocals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from statistics import median

CONFIDENCE = 0.95


class BenchmarkVerdict(Enum):
    """What a comparison found."""

    PASS = "pass"  # noqa: S105 - not a password
    IMPROVED = "improved"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure beside its baseline. `ratio` above 1 is better; None where nothing can be estimated.

    `reason` says by how much the figure itself is higher or lower.
    """

    verdict: BenchmarkVerdict
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    undecided: bool = False
    """More rounds may bring another verdict."""


def compare(
    baseline: Sequence[float],
    measured: Sequence[float],
    *,
    margin: float,
    more_is_better: bool = True,
    looks: int = 1,
) -> Comparison:
    """Compare the values of a figure in the rounds of two campaigns.

    Args:
        baseline: Of the campaign that is the baseline.
        measured: Of the campaign that is judged.
        margin: The share by which the figure may be worse and still pass.
        more_is_better: False for latencies.
        looks: How often the campaign may be compared before it ends.
    """
    if any(not math.isfinite(value) or value <= 0 for value in (*baseline, *measured)):
        return Comparison(BenchmarkVerdict.INCONCLUSIVE, "a round measured nothing")
    rank = _rank(len(baseline), len(measured), looks)
    if rank is None:
        rounds = f"{len(baseline)} rounds of the baseline and {len(measured)} of the campaign"
        return Comparison(BenchmarkVerdict.INCONCLUSIVE, f"{rounds} are too few for an interval", undecided=True)
    sign = 1 if more_is_better else -1
    pairs = sorted(sign * (math.log(new) - math.log(old)) for new in measured for old in baseline)
    ratio, low, high = (math.exp(value) for value in (median(pairs), pairs[rank], pairs[-1 - rank]))
    worst, allowed = 1 - margin, f"the margin of {100 * margin:.3g} %"
    if high < worst:
        verdict, why = BenchmarkVerdict.REGRESSED, f"worse, by more than {allowed}"
    elif low > 1 / worst:
        verdict, why = BenchmarkVerdict.IMPROVED, f"better, by more than {allowed}"
    elif low >= worst:
        verdict, why = BenchmarkVerdict.PASS, f"not worse by more than {allowed}"
    else:
        verdict, why = BenchmarkVerdict.INCONCLUSIVE, f"{allowed} is within the interval; more rounds make it narrower"
    middle, *ends = (math.exp(sign * math.log(value)) for value in (ratio, low, high))
    interval = " to ".join(_change(value) for value in sorted(ends))
    reason = f"{_change(middle)} than in the baseline ({interval}): {why}"
    return Comparison(verdict, reason, ratio, low, high, verdict is BenchmarkVerdict.INCONCLUSIVE)


def _change(ratio: float) -> str:
    """A figure beside another, in words; 2 is 100 % higher."""
    return f"{100 * abs(ratio - 1):.1f} % {'lower' if ratio < 1 else 'higher'}"


def overall(verdicts: Sequence[BenchmarkVerdict]) -> BenchmarkVerdict:
    """The verdict on several figures: the worst of them, where one that is inconclusive is worse than a pass."""
    order = (
        BenchmarkVerdict.REGRESSED,
        BenchmarkVerdict.INCONCLUSIVE,
        BenchmarkVerdict.PASS,
        BenchmarkVerdict.IMPROVED,
    )
    return min(verdicts, key=order.index, default=BenchmarkVerdict.INCONCLUSIVE)


@cache
def _rank(first: int, second: int, looks: int) -> int | None:
    """How many of the sorted pairs lie outside of the interval at each end; None if there are too few for one."""
    total, outside, rank = math.comb(first + second, first), 0, None
    for wins, orders in enumerate(_orders(first, second)):
        outside += orders
        if 2 * outside * looks > (1 - CONFIDENCE) * total:
            break
        rank = wins
    return rank


def _orders(first: int, second: int) -> list[int]:
    """In how many orders of two groups 0, 1, 2 … pairs are won by the first: the Gaussian binomial coefficients."""
    counts = [1] + [0] * (first * second)
    for number in range(1, first + 1):
        for wins in range(len(counts) - 1, second + number - 1, -1):
            counts[wins] -= counts[wins - second - number]
        for wins in range(number, len(counts)):
            counts[wins] += counts[wins - number]
    return counts
