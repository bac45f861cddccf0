"""The pure parts of the steps: what crosses XCom, what the gate lets pass, what is taken away, what is sampled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from include.nightlies.rules.build import BuildRecord
from include.nightlies.rules.index import BuildIndex, RejectedArtifact
from include.nightlies.rules.publication import State
from include.nightlies.steps.gate import missing_line, missing_of_build, optional_of_build
from include.nightlies.steps.plan import cut, nested_directories
from include.nightlies.steps.values import Batch, Item, Night
from include.publishers.required_objects import topmost
from tests.fakes.builds import publication
from tests.fakes.plainsite import slot

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.mark.parametrize(("cores", "count", "first"), [(2, 6, "P0/x and 74 more"), (64, 16, "P0/x and 28 more")])
def test_batches_keep_the_order_and_go_by_the_cores_of_the_machine(
    cores: int, count: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    items = [Item(f"P{number}/x", f"/{number}", "s3://b/x") for number in range(450)]
    batches = cut(Batch("run", "r.example.org", ()), items, 200)
    assert len(batches) == count
    assert [item for batch in batches for item in batch.items] == items
    assert batches[0].name == first


def test_slot_and_build_directories_get_catalogs_of_their_own() -> None:
    index = BuildIndex("main", "b42", date(2026, 11, 21), complete=True, artifacts=())
    assert nested_directories(slot(), index) == ("/nightlies/main", "/nightlies/main/b42")
    other = slot(destination="/cvmfs/{platform}/{project}-{date}")
    assert nested_directories(other, index) == ()
    dated = slot(destination="/builds/{date}/of/{slot}/{project}/{platform}")
    assert nested_directories(dated, index) == (
        "/builds/2026-11-21",
        "/builds/2026-11-21/of",
        "/builds/2026-11-21/of/main",
    )


def test_what_is_published_and_read_back_passes_and_nothing_else_does() -> None:
    assert missing_line(publication(State.PUBLISHED, verified_at=NOW), dry_run=False) == []
    assert missing_line(publication(State.UNCHANGED, verified_at=NOW), dry_run=False) == []
    assert "not read back" in missing_line(publication(State.PUBLISHED), dry_run=False)[0]
    for state in State:
        if not state.good:
            (line,) = missing_line(publication(state), dry_run=False)
            what = "why" if state.ended else "Clear task plan with *Downstream*"
            assert line.startswith(f"A/x: {state.value}")
            assert what in line
    assert missing_line(publication(State.SKIPPED), dry_run=True) == []
    assert missing_line(publication(State.FAILED), dry_run=True) != []


def _build(**changes: object) -> BuildRecord:
    record = BuildRecord(1, "main", "b1", date(2026, 11, 21), True, "url", (), NOW, NOW, ())
    return replace(record, **changes)  # type: ignore[arg-type]


NIGHT = Night("run", "main", date(2026, 11, 21), "why")


def test_the_gate_wants_what_the_slot_requires_what_the_index_lists_and_a_complete_index() -> None:
    done = [publication(State.PUBLISHED, verified_at=NOW)]
    assert missing_of_build(slot(), NIGHT, _build(), done) == []
    required = slot(projects=["A", "B"], platforms=["x"])
    assert missing_of_build(required, NIGHT, _build(), done) == ["B/x: not in the index of build b1"]
    assert missing_of_build(required, replace(NIGHT, projects=("A",)), _build(), done) == []
    bad = _build(rejected=(RejectedArtifact("B/x", "`sha256` is missing.", 1, "B", "x"),))
    assert missing_of_build(required, NIGHT, bad, done) == ["B/x: rejected: `sha256` is missing."]
    assert "not complete" in missing_of_build(slot(), NIGHT, _build(complete=False), done)[0]
    assert "no build for 2026-11-21" in missing_of_build(slot(), NIGHT, None, [])[0]


def test_what_is_optional_and_missing_is_reported_and_closes_no_gate() -> None:
    done = [publication(State.PUBLISHED, verified_at=NOW)]
    optional = slot(projects=["A", "B"], platforms=["x", "dbg"], optional={"platforms": ["dbg"], "projects": ["B"]})
    assert missing_of_build(optional, NIGHT, _build(), done) == []
    spoilt = _build(
        rejected=(RejectedArtifact("A/dbg", "why", 1, "A", "dbg"), RejectedArtifact("artifacts[2]", "no name", 2))
    )
    assert missing_of_build(optional, NIGHT, spoilt, done) == ["artifacts[2]: rejected: no name"]
    assert optional_of_build(optional, NIGHT, spoilt, done) == ["A/dbg: rejected: why"]
    only = slot(required={"projects": ["A", "C"], "platforms": ["x"]})
    assert missing_of_build(only, NIGHT, _build(), done) == ["C/x: not in the index of build b1"]
    alone = slot(required={"platforms": ["x", "arm"]})
    assert missing_of_build(alone, NIGHT, _build(), done) == ["platform arm: nothing of it is in the index of build b1"]
    assert missing_of_build(alone, replace(NIGHT, platforms=("x",)), _build(), done) == []


def test_directories_that_would_be_empty_go_with_their_last_child() -> None:
    tree = {"/b": ["A", "B", ".cvmfscatalog"], "/b/A": ["x", "y"], "/b/B": ["x", "y"]}
    failed = {"/b/A/x", "/b/A/y", "/b/B/x"}
    assert topmost(failed, "/b", tree.__getitem__) == ("/b/A", "/b/B/x")
    assert topmost(failed, None, tree.__getitem__) == tuple(sorted(failed))
    everything = {"/b/A/x", "/b/A/y", "/b/B/x", "/b/B/y"}
    assert topmost(everything, "/b", tree.__getitem__) == ("/b/A", "/b/B")
    assert topmost(everything, "/b", tree.__getitem__, ["/b"]) == ("/b",)
    assert topmost(failed, None, tree.__getitem__, ["/b", "/b/A"]) == ("/b/A", "/b/B/x")
