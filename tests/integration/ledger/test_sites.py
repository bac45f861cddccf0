"""Health of sites in the ledger: rounds, holds, history, and what readers report, on every kind of database."""

from __future__ import annotations

import json
import threading
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
    note_results,
    obstacles,
    probes_since,
    release,
    reports_since,
    results_of_reading,
    results_of_readings,
)
from include.federation.states import EvidenceSource, HealthRound, SiteObservation, SiteState
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
        probes = {"pisa": [observed("pisa", well)], "bari": [observed("bari", True)]}
        result = conclude_round(ledger, SITES, probes, now=begin + number * EVERY)
    return result


def test_a_site_fails_and_is_taken_back(ledger: Engine) -> None:
    assert health_of(ledger, SITES)["pisa"].state is SiteState.OK
    assert rounds(ledger, True, False, False).changed == {"pisa": SiteState.FAILED}
    assert obstacles(ledger) == {"pisa": "it has failed: first byte: connection"}
    back = rounds(ledger, True, True, True, True, begin=NOW + 3 * EVERY)
    assert (back.changed, obstacles(ledger)) == ({"pisa": SiteState.OK}, {})
    history = [(one.change, one.reason) for one in changes_of(ledger, NOW)["pisa"]]
    assert history == [
        ("ok", "4 good rounds in a row"), ("failed", "first byte: connection"), ("degraded", "first byte: connection")
    ]  # fmt: skip
    assert sum(result.site == "pisa" for _, result in probes_since(ledger, NOW, "first byte")) == 7
    assert [one.change for one in changes_of(ledger, NOW + 30 * EVERY)["pisa"]] == ["ok"]  # the last one stays


def test_a_round_counts_each_report_once(ledger: Engine) -> None:
    rounds(ledger, True)
    failed = [SiteObservation("pisa", EvidenceSource.TRANSFER, kind="timeout", failed=4) for _ in range(3)]
    note_results(ledger, failed, now=NOW)  # its time is that of the round before, its row is not
    only = conclude_round(ledger, SITES, {"pisa": [observed("pisa", True)]}, now=NOW + EVERY / 2, only=["pisa"])
    assert only.changed == {}, "a look at some sites counts no report"
    assert "12 of 12 transfers failed" in rounds(ledger, True, begin=NOW + EVERY).health["pisa"].reason
    assert rounds(ledger, True, begin=NOW + 2 * EVERY).changed == {}
    note_results(ledger, [SiteObservation("pisa", EvidenceSource.READER)], now=NOW)
    assert [(one.site, one.failed) for one in reports_since(ledger, NOW - EVERY)] == [("pisa", 12)]
    rounds(ledger, True, begin=NOW + KEPT + 3 * EVERY)
    assert reports_since(ledger, NOW - EVERY) == []


def test_our_own_network_is_known_until_it_is_well_again(ledger: Engine) -> None:
    names = ("a", "b", "c")

    def ended(good: bool, number: int) -> HealthRound:
        probes = {name: [observed(name, good)] for name in names}
        return conclude_round(ledger, names, probes, now=NOW + number * EVERY)

    ended(True, 0)
    bad = [ended(False, number) for number in (1, 2)]
    assert [(one.own_network, one.own_network_since, one.changed) for one in bad] == [(names, NOW + EVERY, {})] * 2
    assert (ended(True, 3).own_network_since, ended(True, 4).changed) == (None, {})
    assert ended(False, 5).own_network_since == NOW + 5 * EVERY


def test_two_who_make_the_first_row_of_a_site_both_succeed(ledger: Engine) -> None:
    def held(name: str) -> None:
        hold(ledger, "pisa", by=name * 200, reason="why", now=NOW)

    threads = [threading.Thread(target=held, args=[name]) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.change for one in changes_of(ledger, NOW)["pisa"]] == ["held", "held"]


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
    assert [one.change for one in changes_of(ledger, NOW)["pisa"]] == ["degraded", "released", "failed", "degraded"]
    assert rounds(ledger, False, begin=NOW + 2 * EVERY).changed == {}
    assert rounds(ledger, False, begin=NOW + 3 * EVERY).changed == {"pisa": SiteState.FAILED}


def line(sites: list[str], failures: dict[str, int], *, failed: bool = False, **fields: object) -> str:
    report = {
        "file": "/store/a",
        "received": 10,
        "waited_s": 0.5,
        "requests": 3,
        "retries": 1,
        "sites": sites,
        "failures": failures,
    }
    return f"2026-11-02 12:00:00 INFO read {json.dumps(report | {'failed': failed} | fields)}\n"


def test_lines_of_readers_become_results() -> None:
    lines = [
        "something else\n",
        "Exception in thread {1}\n",
        line(["pisa"], {"pisa cut": 3}),  # ended well there
        line(["pisa", "bari"], {"pisa silent": 6, "pisa cut": 2, "pisa missing": 1}),
        line([], {"pisa unreachable": 6, "bari refused": 1}, failed=True),
        line(["elsewhere"], {}),
    ]
    results, damaged = results_of_readings([*lines, *lines], SITES)
    assert damaged == 0
    assert [(one.site, one.kind, one.good, one.failed) for one in results] == [
        ("pisa", "", 2, 0), ("pisa", "silent", 0, 2), ("bari", "", 2, 0), ("pisa", "unreachable", 0, 2)
    ]  # fmt: skip
    assert (results[0].bytes, results[0].seconds, results[0].requests, results[0].retries) == (20, 1.0, 6, 2)


@pytest.mark.parametrize(
    "text",
    [
        line([], {}), line(["pisa"], {}, requests=-1), line(["pisa"], {}, received="many"), 'read {"file": "cut',
        line(["pisa"], {}, waited_s=float("nan")), line(["pisa"], {}, retries=True), 'read {"file": ' * 2000,
        line(["pisa"], ["pisa cut"] * 2),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_damaged_line_is_counted_and_hides_no_other(text: str) -> None:
    results, damaged = results_of_readings([text, line(["pisa"], {})], SITES)
    assert ([one.good for one in results], damaged) == ([1], 1)
    with refused(BAD_READING):
        results_of_reading(json.loads("{}"), SITES)
