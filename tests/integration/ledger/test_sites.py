"""Health of sites in the ledger: rounds, holds, history, and what readers report, on every kind of database."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from include.federation.records import (
    BAD_READING,
    HOLD_REFUSED,
    KEPT,
    changes_of,
    conclude_round,
    health_of,
    hold,
    last_round,
    note_results,
    obstacles,
    release,
    results_of_readings,
    results_since,
)
from include.federation.states import EvidenceSource, HealthRound, SiteObservation, SiteState, judge_site
from tests.fakes.refused import refused

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
EVERY = timedelta(minutes=15)
SITES = ("bari", "pisa")


def observed(site: str, good: bool) -> SiteObservation:
    kind = "" if good else "connection"
    return SiteObservation(site, EvidenceSource.PROBE, "first byte", kind, int(good), int(not good), seconds=0.25)


def rounds(ledger: Engine, *good: bool, begin: datetime = NOW) -> HealthRound:
    """Rounds in which *pisa* is well or not, and *bari* is; the last of them."""
    for number, well in enumerate(good):
        now = begin + number * EVERY
        note_results(ledger, [observed("pisa", well), observed("bari", True)], now=now)
        result = conclude_round(
            ledger, SITES, lambda seen: {name: judge_site(theirs) for name, theirs in seen.items()},
            since=now - EVERY, now=now,
        )  # fmt: skip
    return result


def test_a_site_fails_and_is_taken_back(ledger: Engine) -> None:
    assert last_round(ledger) is None
    assert health_of(ledger, SITES)["pisa"].state is SiteState.OK
    assert rounds(ledger, True, False, False).changed == {"pisa": SiteState.FAILED}
    assert obstacles(ledger) == {"pisa": "it has failed: first byte: connection"}
    assert last_round(ledger) == NOW + 2 * EVERY
    back = rounds(ledger, True, True, True, True, begin=NOW + 3 * EVERY)
    assert (back.changed, obstacles(ledger)) == ({"pisa": SiteState.OK}, {})
    history = [(one.change, one.reason) for one in changes_of(ledger, NOW)["pisa"]]
    assert history == [
        ("ok", "4 good rounds in a row"), ("failed", "first byte: connection"), ("degraded", "first byte: connection")
    ]  # fmt: skip
    assert len(results_since(ledger, NOW)["pisa"]) == 7


def test_a_round_counts_what_came_since_the_last_one(ledger: Engine) -> None:
    rounds(ledger, True)
    transfers = [SiteObservation("pisa", EvidenceSource.TRANSFER, kind="timeout", failed=4) for _ in range(3)]
    note_results(ledger, transfers, now=NOW + EVERY / 2)
    assert "12 of 12 transfers failed" in rounds(ledger, True, begin=NOW + EVERY).health["pisa"].reason
    assert rounds(ledger, True, begin=NOW + 2 * EVERY).changed == {}
    note_results(ledger, [SiteObservation("pisa", EvidenceSource.READER)], now=NOW)
    assert len(results_since(ledger, NOW - EVERY)["pisa"]) == 6  # without the empty one
    rounds(ledger, True, begin=NOW + KEPT + 3 * EVERY)
    assert len(results_since(ledger, NOW - EVERY)["pisa"]) == 1


def test_a_person_holds_and_releases_a_site(ledger: Engine) -> None:
    with refused(HOLD_REFUSED):
        hold(ledger, "pisa", by="ann", reason=" ", now=NOW)
    with refused(HOLD_REFUSED):
        release(ledger, "pisa", by="ann", reason="", now=NOW)
    hold(ledger, "pisa", by="ann", reason="it moves", now=NOW)
    assert obstacles(ledger) == {"pisa": "it is held by ann: it moves"}
    rounds(ledger, True, True, begin=NOW + EVERY)  # good probes end no hold
    assert list(obstacles(ledger)) == ["pisa"]
    release(ledger, "pisa", by="bob", reason="done", now=NOW + 3 * EVERY)
    assert obstacles(ledger) == {}
    assert [one.change for one in changes_of(ledger, NOW)["pisa"]] == ["released", "held"]


def test_a_release_of_a_site_that_has_failed_lets_it_be_judged_afresh(ledger: Engine) -> None:
    rounds(ledger, False, False)
    assert release(ledger, "pisa", by="ann", reason="", now=NOW + 2 * EVERY).state is SiteState.DEGRADED
    assert obstacles(ledger) == {}
    assert rounds(ledger, False, begin=NOW + 2 * EVERY).changed == {}
    assert rounds(ledger, False, begin=NOW + 3 * EVERY).changed == {"pisa": SiteState.FAILED}


def line(sites: list[str], failures: dict[str, int], *, failed: bool = False, **fields: object) -> str:
    report = {"received": 10, "waited_s": 0.5, "requests": 3, "retries": 1, "sites": sites, "failures": failures}
    return f"2026-11-02 12:00:00 INFO read {json.dumps(report | {'failed': failed} | fields)}\n"


def test_lines_of_readers_become_results() -> None:
    lines = [
        "something else\n",
        line(["pisa"], {"pisa cut": 3}),  # ended well there
        line(["pisa", "bari"], {"pisa silent": 6, "pisa missing": 1}),
        line([], {"pisa unreachable": 6, "bari refused": 1}, failed=True),
        line(["elsewhere"], {}),
    ]
    results = results_of_readings(lines, SITES)
    assert [(one.site, one.kind, one.good, one.failed) for one in results] == [
        ("pisa", "", 1, 0), ("pisa", "silent", 0, 1), ("bari", "", 1, 0), ("pisa", "unreachable", 0, 1)
    ]  # fmt: skip
    assert (results[0].bytes, results[0].seconds, results[0].requests, results[0].retries) == (10, 0.5, 3, 1)


@pytest.mark.parametrize(
    "text",
    [
        "read {", "read {}", line([], {}), line(["pisa"], {}, requests=-1), line(["pisa"], {}, received="many"),
        line(["pisa"], {}, waited_s=float("nan")), line(["pisa"], {}, retries=True), "read {" * 2000,
    ],
)  # fmt: skip
def test_a_line_that_is_no_report_is_refused(text: str) -> None:
    with refused(BAD_READING) as error:
        results_of_readings(["", text], SITES)
    assert "line 2" in str(error.value)
