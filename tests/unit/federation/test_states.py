"""States of sites by the rounds: hysteresis, flapping, our own network."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.federation.states import (
    LINK,
    OWN_NETWORK_ROUNDS,
    EvidenceSource,
    RoundVerdict,
    SiteHealth,
    SiteJudgement,
    SiteObservation,
    SiteState,
    in_reading_order,
    judge_round,
    judge_site,
)

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
EVERY = timedelta(minutes=15)
GOOD, POOR, BAD = RoundVerdict.GOOD, RoundVerdict.POOR, RoundVerdict.BAD
OK, DEGRADED, FAILED = SiteState.OK, SiteState.DEGRADED, SiteState.FAILED


def probe(what: str, kind: str = "") -> SiteObservation:
    return SiteObservation("a", EvidenceSource.PROBE, what, kind, good=int(not kind), failed=int(bool(kind)))


def transfers(good: int, failed: int, kind: str = "connection") -> list[SiteObservation]:
    source = EvidenceSource.TRANSFER
    return [SiteObservation("a", source, good=good), SiteObservation("a", source, kind=kind, failed=failed)]


def states_after(*verdicts: RoundVerdict, agreed: bool = False) -> list[SiteState]:
    """The state after each round."""
    health, worsened, now, result = {"a": SiteHealth("a")}, [], NOW, []
    for verdict in verdicts:
        now += EVERY
        judged = {"a": SiteJudgement(verdict, "why", agreed=agreed)}
        round_ = judge_round(health, judged, {"a": worsened}, now)
        ranks = [OK, DEGRADED, FAILED]
        worsened += [now] if ranks.index(round_.health["a"].state) > ranks.index(health["a"].state) else []
        health = dict(round_.health)
        result.append(health["a"].state)
    return result


@pytest.mark.parametrize(
    ("results", "verdict", "reason"),
    [
        ([], RoundVerdict.SILENT, ""),
        ([probe("first byte"), probe("checksum")], GOOD, ""),
        ([probe("first byte", "timeout")], BAD, "first byte: timeout"),
        ([probe("first byte"), probe("checksum", "other")], BAD, "checksum: other"),
        ([probe("first byte"), probe("write", "no-space")], POOR, "write: no-space"),
        (transfers(9, 0), GOOD, ""),
        (transfers(4, 5), RoundVerdict.SILENT, ""),  # too few to say anything
        ([probe("range"), *transfers(0, 9)], GOOD, ""),
        ([probe("range"), *transfers(0, 20, "other")], POOR, "20 of 20 transfers failed, most of them by: other"),
        (transfers(19, 1), GOOD, ""),
        (transfers(18, 2), POOR, "2 of 20 transfers failed, most of them by: connection"),
        (
            [replace(one, what=LINK) for one in transfers(0, 20)],
            BAD,
            "20 of 20 transfers failed, most of them by: connection",
        ),
        ([probe("first byte"), *(replace(one, what=LINK) for one in transfers(0, 20))], GOOD, ""),
        (
            [probe("range"), *(replace(one, source=EvidenceSource.READER) for one in transfers(0, 20))],
            POOR,
            "20 of 20 files of readers failed, most of them by: connection",
        ),
        (transfers(10, 10, "timeout"), BAD, "10 of 20 transfers failed, most of them by: timeout"),
    ],
)
def test_a_round_is_judged_by_probes_and_by_the_share_of_failures(
    results: list[SiteObservation], verdict: RoundVerdict, reason: str
) -> None:
    assert judge_site(results) == SiteJudgement(verdict, reason)


def test_probe_and_transfers_agree() -> None:
    judged = judge_site([probe("first byte", "connection"), *transfers(0, 30)])
    assert judged.agreed
    assert states_after(BAD, agreed=True) == [FAILED]


@pytest.mark.parametrize(
    ("rounds", "states"),
    [
        ((GOOD, BAD, BAD), [OK, DEGRADED, FAILED]),
        ((POOR, POOR, POOR), [DEGRADED, DEGRADED, DEGRADED]),
        ((POOR, GOOD, GOOD), [DEGRADED, DEGRADED, OK]),
        ((BAD, BAD, RoundVerdict.SILENT), [DEGRADED, FAILED, FAILED]),
        ((BAD, BAD, *[RoundVerdict.SILENT] * 4), [DEGRADED, *[FAILED] * 4, DEGRADED]),  # it is tried again
        ((BAD, BAD, POOR, POOR, POOR, POOR), [DEGRADED, *[FAILED] * 4, DEGRADED]),  # used as before
        ((BAD, BAD, POOR, GOOD, GOOD), [DEGRADED, FAILED, FAILED, FAILED, FAILED]),  # it turned worse twice: four
        ((BAD, BAD, GOOD, GOOD, GOOD, GOOD), [DEGRADED, FAILED, FAILED, FAILED, FAILED, OK]),
    ],
)
def test_the_table_of_states(rounds: tuple[RoundVerdict, ...], states: list[SiteState]) -> None:
    assert states_after(*rounds) == states


@pytest.mark.parametrize("pattern", [(GOOD, BAD), (BAD, GOOD), (GOOD, POOR), (GOOD, BAD, BAD), (GOOD, GOOD, BAD)])
def test_a_site_that_flaps_changes_twice_a_day_at_most(pattern: tuple[RoundVerdict, ...]) -> None:
    states = [OK, *states_after(*(pattern[number % len(pattern)] for number in range(96)))]
    changes = sum(before is not after for before, after in itertools.pairwise(states))
    assert 1 <= changes <= (2 if len(pattern) == 2 else 3)


def test_sites_that_turn_bad_together_are_not_marked() -> None:
    names = "abcde"

    def after(bad: Iterable[str], health: dict[str, SiteHealth]) -> tuple[tuple[str, ...], dict[str, SiteState]]:
        judged = {name: SiteJudgement(BAD if name in bad else GOOD, "why", agreed=True) for name in names}
        round_ = judge_round(health, judged, {}, NOW)
        return round_.own_network, dict(round_.changed)

    well = {name: SiteHealth(name) for name in names}
    assert after("abc", well) == (("a", "b", "c"), {})
    assert after("ab", well) == ((), {"a": FAILED, "b": FAILED})
    # those that were bad before count for nothing
    assert after("abc", well | {"a": SiteHealth("a", FAILED, bad=9)}) == ((), {"b": FAILED, "c": FAILED})
    assert judge_round({"a": SiteHealth("a")}, {"a": SiteJudgement(BAD)}, {}, NOW).own_network == ()
    # sites of which nothing is known are not counted, and after some rounds the sites themselves are the cause
    many = well | {name: SiteHealth(name) for name in "vwxyz"}
    judged = {name: SiteJudgement(BAD, "why") for name in "abcd"}
    assert judge_round(many, judged, {}, NOW).own_network == ("a", "b", "c", "d")
    assert set(judge_round(many, judged, {}, NOW, OWN_NETWORK_ROUNDS).changed) == set("abcd")


def test_rounds_right_after_each_other_count_as_one() -> None:
    health = {"a": SiteHealth("a")}
    for _ in range(5):
        health = dict(judge_round(health, {"a": SiteJudgement(BAD, "why")}, {}, NOW).health)
    assert health["a"].state is DEGRADED


def test_readers_try_failed_and_held_sites_last() -> None:
    health = {
        "held": SiteHealth("held", held_by="ann", held_reason="move"), "failed": SiteHealth("failed", FAILED),
        "poor": SiteHealth("poor", DEGRADED), "well": SiteHealth("well"),
    }  # fmt: skip
    assert in_reading_order(["held", "failed", "poor", "new", "well"], health) == [
        "new", "well", "poor", "failed", "held"
    ]  # fmt: skip
    assert health["held"].obstacle == "it is held by ann: move"
    assert (health["poor"].obstacle, health["well"].obstacle) == (None, None)
