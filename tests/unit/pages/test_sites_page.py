"""The figures of the page *Sites*."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from include.federation.records import SiteChange
from include.federation.states import EvidenceSource, SiteHealth, SiteObservation, SiteState
from include.pages.sites_page import HISTORY, latencies, periods, site_row, strip

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def change(hours: float, what: str) -> SiteChange:
    return SiteChange("pisa", NOW - timedelta(hours=hours), what, "why")


def test_periods_follow_each_other_and_a_hold_hides_the_state() -> None:
    changes = [change(1, "released"), change(2, "ok"), change(3, "held"), change(4, "failed")]
    assert [(state, (end - begin) / timedelta(hours=1)) for state, begin, end in periods(changes, NOW)] == [
        ("ok", HISTORY / timedelta(hours=1) - 4), ("failed", 1), ("held", 1), ("held", 1), ("ok", 1)
    ]  # fmt: skip
    data = strip({"pisa": SiteHealth("pisa", SiteState.FAILED)}, {"pisa": changes}, NOW)["data"]
    assert {trace["name"]: len(trace["x"]) for trace in data} == {"ok": 2, "failed": 1, "held": 2}
    assert data[1]["x"] == [3_600_000]


def test_a_site_begins_the_week_as_it_was_before() -> None:
    before = [change(24 * 10, "failed"), change(24 * 9, "held")]
    assert [state for state, _, _ in periods(before, NOW)] == ["held"]
    assert [state for state, _, _ in periods([*before, change(1, "released")], NOW)] == ["held", "failed"]


def test_the_newest_probe_counts_and_the_rest_is_summed() -> None:
    def probe(hours: float, seconds: float, *, good: bool = True) -> tuple[datetime, SiteObservation]:
        kind = "" if good else "timeout"
        result = SiteObservation(
            "pisa", EvidenceSource.PROBE, "first byte", kind, int(good), int(not good), seconds=seconds
        )
        return NOW - timedelta(hours=hours), result

    reports = [
        SiteObservation("pisa", EvidenceSource.TRANSFER, good=3, failed=2),
        SiteObservation("pisa", EvidenceSource.READER, good=1, bytes=7),
        SiteObservation("bari", EvidenceSource.TRANSFER, good=9),
    ]
    probes = [probe(1, 0.5), probe(2, 9, good=False), probe(3, 0.25)]
    row = site_row(SiteHealth("pisa", held_by="ann"), probes, reports)
    assert (row.shown, row.transfers, [one.seconds for one in row.probes]) == ("held", (3, 2), [0.5])
    assert (row.readers["good"], row.readers["bytes"]) == (1, 7)
    figure = latencies(probes)
    assert figure is not None
    assert [trace["y"] for trace in figure["data"]] == [[0.25, 0.5]]
    assert latencies([]) is None
