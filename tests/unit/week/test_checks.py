"""Each rule of the simulated week passes what is right, and catches a defect that is planted."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from tests.week import checks
from tests.week.checks import Row
from tests.week.expected import Outcome, expected
from tests.week.plan import MONDAY, PAIRS, week
from tests.week.reader import Led, Sample

LATEST = "/nightlies/main/latest"
OLD, NEW = "/nightlies/main/b99", "/nightlies/main/b100"
ORDER = {OLD: (date(2026, 11, 2), 99), NEW: (date(2026, 11, 3), 100)}


def sample(revision: int, target: str | None, *lacking: str, at: float = 0.0) -> Sample:
    return Sample(revision, {LATEST: Led(target, lacking)} if target else {}, at, at)


GOOD = [sample(1, None), sample(2, OLD), sample(3, OLD), sample(4, NEW)]


def test_links_that_move_forward_to_whole_builds_are_right_and_others_are_seen() -> None:
    assert checks.links_lead_to_whole_builds(GOOD) == []
    assert checks.links_never_go_back(GOOD, ORDER) == []
    assert checks.revisions_never_go_back(GOOD) == []
    (line,) = checks.links_never_go_back([sample(1, NEW), sample(2, OLD), sample(3, NEW)], ORDER)
    assert line == f"revision 2: {LATEST} went back from {NEW} to {OLD}"
    (line,) = checks.links_never_go_back([sample(1, NEW), sample(2, None), sample(3, NEW)], ORDER)
    assert "is gone" in line
    (line,) = checks.links_lead_to_whole_builds([sample(1, OLD), sample(7, NEW, "a is not there", "b is not there")])
    assert line == f"revision 7, at 0.0 s: {LATEST} led to {NEW}: a is not there and 1 more"
    assert checks.revisions_never_go_back([sample(4, OLD), sample(3, OLD)]) == ["revision 3 came after 4"]


def test_a_reader_that_hardly_looked_and_a_revision_that_was_made_while_frozen_are_seen() -> None:
    assert checks.looked_often_enough(1.0, 600, 300) == []
    assert len(checks.looked_often_enough(31.0, 20, 300)) == 2
    just_before = sample(5, OLD, at=10.2)
    assert checks.nothing_moves_while_frozen([sample(4, OLD, at=3), just_before, sample(6, OLD, at=31)], 10, 30) == []
    (line,) = checks.nothing_moves_while_frozen([just_before, sample(6, NEW, at=20)], 10, 30)
    assert "revision 6" in line
    assert checks.nothing_moves_while_frozen([sample(6, NEW, at=20)], 10, 30)


def test_links_paths_and_tags_are_compared_both_ways() -> None:
    there = {LATEST: Led(NEW)}
    assert checks.links_in_the_end(there, {LATEST: NEW}) == []
    assert checks.links_in_the_end(there, {LATEST: OLD}) == [f"{LATEST} leads to {NEW}, not to {OLD}"]
    assert checks.links_in_the_end(there, {}) == [f"{LATEST} leads to {NEW}, not to nothing"]
    assert checks.links_in_the_end({}, {LATEST: OLD}) == [f"{LATEST} leads to nothing, not to {OLD}"]
    paths = {"/a": "directory", "/a/b": "hash", "/a/c": "../b"}
    assert checks.paths_are_there_once(dict(paths), paths) == []
    wrong = checks.paths_are_there_once({"/a": "directory", "/a/b": "other", "/a/d": "hash"}, paths)
    assert wrong == ["/a/c is missing", "/a/d is there, and should not be", "/a/b is other, not hash"]
    wrong = checks.paths_are_there_once({}, {f"/{number}": "directory" for number in range(100)})
    assert (len(wrong), wrong[-1]) == (checks.SHOWN + 1, f"and {100 - checks.SHOWN} more of that kind")
    assert checks.tags_are(["a", "trunk", "trunk-previous"], ["a"]) == []
    assert len(checks.tags_are(["a", "c"], ["a", "b"])) == 2


def test_what_was_published_twice_is_seen() -> None:
    one = Row(("Gaudi", "opt"), "/n/Gaudi/opt", "sum", "published", "run1")
    rebuilt, looked = replace(one, sha256="other"), replace(one, state="unchanged", run="run2")
    assert checks.published_once([one, rebuilt, looked]) == []
    assert len(checks.published_once([one, replace(one, run="run2")])) == 1


# -- summaries


@pytest.fixture
def whole() -> tuple[dict[str, Any], Outcome, list[Row]]:
    """A night in which all was published, as summary, plan and rows have it."""
    outcome = expected(week(1, 1)).outcomes["sim", MONDAY]
    rows = [Row(pair, f"/n/{pair[0]}/{pair[1]}", "sum", "published", "run", files=3, revision=5) for pair in PAIRS]
    lines = [
        {"project": project, "platform": platform, "fate": "published", "reason": "new", "files": 3, "revision": 5,
         "run": "run"}
        for project, platform in PAIRS
    ]  # fmt: skip
    links = ["link /nightlies/sim/latest: moved: new"]
    return {"lines": lines, "counts": {"published": 16}, "builds": ["b99"], "links": links}, outcome, rows


def test_a_summary_that_says_what_the_rows_say_is_right(whole: Any) -> None:
    summary, outcome, rows = whole
    assert checks.summary_matches(summary, outcome, rows, PAIRS) == []
    rows[0] = replace(rows[0], state="failed")
    (line,) = checks.summary_matches(summary, outcome, rows, PAIRS)
    assert "failed by the ledger's rows" in line
    assert checks.nothing_is_left() == []
    assert len(checks.nothing_is_left(leases=["a"], frozen=["b"], runs=["c"], import_errors=["d"])) == 4


@pytest.mark.parametrize(
    ("defect", "said"),
    [
        (lambda summary: summary["lines"].pop(), "not named in the summary"),
        (lambda summary: summary["lines"].append(summary["lines"][0]), "names an artifact twice"),
        (lambda summary: summary["lines"][0].update(fate="failed"), "is failed in the summary, published by"),
        (lambda summary: summary["lines"][0].update(reason=""), "has no reason"),
        (lambda summary: summary["lines"][0].update(files=4), "has 4 files"),
        (lambda summary: summary["lines"][0].update(run="another"), "and run another"),
        (lambda summary: summary["counts"].update(published=15), "counts 15 published, and names 16"),
        (lambda summary: summary["builds"].append("b98"), "is of builds"),
        (lambda summary: summary["links"].clear(), "says nothing of links"),
        (lambda summary: summary["links"].append("link /x: stayed: late"), "the build is whole, and yet"),
    ],
)
def test_each_defect_of_a_summary_is_seen(whole: Any, defect: Any, said: str) -> None:
    summary, outcome, rows = deepcopy(whole[0]), *whole[1:]
    defect(summary)
    wrong = checks.summary_matches(summary, outcome, rows, PAIRS)
    assert wrong
    assert any(said in line for line in wrong), wrong


def test_a_build_that_is_not_whole_moves_no_link_and_says_why(whole: Any) -> None:
    summary, outcome, rows = whole
    lost = PAIRS[0]
    broken = replace(outcome, fates={**outcome.fates, lost: "failed"}, whole=False)
    summary["lines"][0]["fate"], rows[0] = "failed", replace(rows[0], state="failed")
    summary["counts"] = {"published": 15, "failed": 1}
    assert any("not whole, and yet" in line for line in checks.summary_matches(summary, broken, rows, PAIRS))
    summary["links"] = ["link /nightlies/sim/latest: stayed: something is wrong"]
    assert any("names none of" in line for line in checks.summary_matches(summary, broken, rows, PAIRS))
    summary["links"] = [f"link /nightlies/sim/latest: stayed: {'/'.join(lost)}: failed"]
    assert checks.summary_matches(summary, broken, rows, PAIRS) == []


def test_a_build_that_is_rebuilt_late_may_leave_its_link_where_it_is_and_no_other(whole: Any) -> None:
    summary, outcome, rows = whole
    late = "link /nightlies/sim/latest: stayed: it leads to build b100 of 2026-11-03 already, which is later"
    summary["links"].append(late)
    assert len(checks.summary_matches(summary, outcome, rows, PAIRS)) == 1
    assert checks.summary_matches(summary, replace(outcome, overtaken=True), rows, PAIRS) == []


def test_fates_follow_from_the_newest_row_of_the_present_sum() -> None:
    pair = PAIRS[0]
    done = Row(pair, "/n", "sum", "published", "first")
    looked = replace(done, state="unchanged", run="later")
    older = replace(done, sha256="before", listed=False)
    assert checks.fates_of([looked, done], [pair]) == {pair: "published"}
    assert checks.fates_of([older], [pair]) == {pair: "open"}
    assert checks.fates_of([replace(done, state="skipped"), done], [pair]) == {pair: "blocked"}
