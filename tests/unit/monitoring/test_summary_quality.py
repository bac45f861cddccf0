"""One verdict of a night for all who tell of it, and what a blocked build makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from include.monitoring.alerts import Runs, Tick, alerts_of
from include.monitoring.render import to_html, to_text
from include.monitoring.summary import NightState, Summary, summary
from include.nightlies.records.quality import QualityRecord, QualityVerdict
from include.nightlies.rules.states import State
from include.settings.prepare import Suite
from tests.unit.monitoring.test_summary import DAY, NOW, SLOT, built, published

ROWS = ("A/x86: 1 empty libraries: <b>.so", "B/x86: its tree holds no file")


def blocked_by(suite: Suite) -> QualityRecord:
    return QualityRecord(
        "night/run", suite, "main", "b1", QualityVerdict.BLOCKED, ROWS[0], "", 3, NOW, DAY, ROWS
    )  # fmt: skip


def of(*builds: Any, blocked: tuple[QualityRecord, ...] = (), before: Any = None, **rows: Any) -> Summary:
    found = {build.id: rows.get(build.build_id, []) for build in builds}
    return summary(
        SLOT, DAY, builds=builds, publications=found, before=before, links=(), now=NOW, blocked=blocked
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "state", "kind"),
    [
        (of(), NightState.NO_BUILD, "bad"),
        (of(built("A/x86"), b1=[published(100, State.PUBLISHED)]), NightState.WHOLE, "good"),
        (of(built("A/x86"), b1=[published(100, State.FAILED)]), NightState.INCOMPLETE, "bad"),
        (of(built("A/x86")), NightState.OPEN, "wait"),
        (of(built("A/x86", complete=False), b1=[published(100, State.PUBLISHED)]), NightState.OPEN, "wait"),
    ],
)
def test_the_state_follows_from_what_is_required(seen: Summary, state: NightState, kind: str) -> None:
    assert (seen.verdict.state, seen.verdict.state.kind, seen.good) == (state, kind, kind == "good")


def test_a_published_build_that_the_gate_blocks_is_not_good_and_says_each_row() -> None:
    seen = of(built("A/x86"), b1=[published(100, State.PUBLISHED)], blocked=(blocked_by(Suite.PUBLISHED),))
    assert (seen.good, seen.verdict.state) == (False, NightState.BLOCKED)
    assert seen.headline == "main 2026-11-21: blocked by quality, 1 published"
    assert "All that is required is there" not in to_text(seen) + to_html(seen)
    assert [line for line in to_text(seen).splitlines() if line.startswith("suite ")] == [
        *(f"suite published: {row}" for row in ROWS),
        "suite published: … and 1 more; see the Data Docs",
    ]
    assert "<b>" not in to_html(seen)
    assert seen.to_json()["verdict"]["state"] == "blocked by quality"
    assert seen.to_json()["quality"][0]["rows"] == list(ROWS)


def test_a_blocked_index_is_no_build_that_never_arrived_and_is_told_once() -> None:
    seen = of(before=built("A/x86", "B/x86"), blocked=(blocked_by(Suite.INDEX),))
    assert seen.verdict.state is NightState.BLOCKED
    text = to_text(seen)
    assert "never arrived" not in text
    assert "No build of this date" not in text
    assert {line.reason for line in seen.lines} == {
        "the quality gate blocks the index of build b1; nothing of it is taken"
    }
    tick = Tick("main", NOW, DAY, NOW)
    (alert,) = alerts_of(tick, seen, Runs(failed=("run",)), NOW, late=NOW - NOW)
    assert alert.key == "run-failed:nightly_install_main/run"
