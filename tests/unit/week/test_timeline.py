"""The picture of the week shows every run, every move of a link and all that happened."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.week.night import Happening, Ran
from tests.week.plan import MONDAY
from tests.week.reader import Led, Sample
from tests.week.timeline import bars, moves, timeline

RUNS = [
    Ran("main", MONDAY, "night__1", "success", 0, 50),
    Ran("main", MONDAY, "night__1__pass2", "failed", 40, 90),
    Ran("dev", MONDAY, "again__1", "success", 60, 80),
]
SAMPLES = [
    Sample(1, {}, 0, 10),
    Sample(2, {"/nightlies/main/latest": Led("/nightlies/main/b1")}, 11, 20),
    Sample(3, {"/nightlies/main/latest": Led("/nightlies/main/b1")}, 21, 95),
]


def test_runs_that_overlap_are_in_lanes_and_only_moves_are_shown_as_moves() -> None:
    for runs, lanes in ((RUNS[:2], [0, 1]), (RUNS[1:], [0, 1]), ([RUNS[0], RUNS[2]], [0, 0])):
        assert [bar.lane for bar in bars(runs)] == lanes
    assert moves(SAMPLES, "main") == [(11, "revision 2: /nightlies/main/latest to /nightlies/main/b1")]
    assert moves(SAMPLES, "dev") == []


def test_it_is_svg_with_all_of_it() -> None:
    happenings = [Happening("freeze", 5, 20, "frozen <for> 15 s"), Happening("kill", 30, 32, "killed")]
    picture = timeline("a week", RUNS, SAMPLES, happenings, {MONDAY: 0.0})
    root = ET.fromstring(picture)
    assert root.tag.endswith("svg")
    titles = [one.text for one in root.iter() if one.tag.endswith("title")]
    assert len(titles) == len(RUNS) + len(happenings) + 1
    assert "frozen <for> 15 s" in titles
    assert "Mon 02" in [one.text for one in root.iter()]
