"""Tables and histories of transfers, made of counts and moves."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from include.pages import transfers_view
from include.pages.transfers_rows import EndedFiles, LinkRate
from include.stageout.archive import MoveRecord
from include.stageout.findings import FindingKind
from include.stageout.retry import TransferFailureClass
from include.stageout.states import TransferState
from include.stageout.status import TransferCount

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def count(owner: str, source: str, destination: str, state: TransferState, files: int) -> TransferCount:
    return TransferCount(owner, source, destination, state, files)


COUNTS = (
    count("ann", "pisa", "bari", TransferState.NEW, 3),
    count("ann", "pisa", "bari", TransferState.CLAIMED, 1),
    count("bob", "bari", "rome", TransferState.CLEANED, 50),
    count("bob", "bari", "rome", TransferState.FAILED, 2),
)


def test_every_state_is_in_one_phase_and_every_failure_class_says_what_is_done() -> None:
    assert all(transfers_view.retries_of(kind.value) for kind in TransferFailureClass)
    assert [transfers_view.retries_of(name) for name in (None, "of-another-version")] == ["", ""]
    assert all(transfers_view.help_of_finding(kind.value) for kind in FindingKind)
    assert transfers_view.help_of_finding("of-another-version") == ""
    states = Counter(state for phase in transfers_view.PHASES for state in phase.states)
    assert states == Counter(TransferState)


def test_groups_are_in_the_order_of_what_is_not_complete_and_lead_to_their_rows() -> None:
    ann, bob = transfers_view.groups(COUNTS)["user"]
    assert (ann.name, ann.query, dict(ann.files), ann.open) == ("ann", {"user": "ann"}, {"waiting": 4}, 4)
    assert (dict(bob.files), bob.open) == ({"complete": 50, "failed": 2}, 2)
    links = transfers_view.groups(COUNTS)["link"]
    assert [(one.name, one.query) for one in links] == [
        ("pisa to bari", {"source": "pisa", "destination": "bari"}),
        ("bari to rome", {"source": "bari", "destination": "rome"}),
    ]


def test_a_site_has_what_comes_and_what_goes() -> None:
    sites = {one.name: one.open for one in transfers_view.groups(COUNTS)["site"]}
    assert sites == {"bari": 6, "pisa": 4, "rome": 2}
    inside = [count("ann", "pisa", "pisa", TransferState.NEW, 5)]
    assert [one.open for one in transfers_view.groups(inside)["site"]] == [5]


def test_a_history_says_how_long_each_state_lasted() -> None:
    moves = [
        MoveRecord("new", "claimed", "submitter", "a", NOW + timedelta(seconds=30)),
        MoveRecord("claimed", "failed", "submitter", "b", NOW + timedelta(seconds=90)),
    ]
    shown = transfers_view.shown_moves(NOW, moves)
    assert [(one.move.state, one.kind, one.after_s) for one in shown] == [
        ("claimed", "wait", 30),
        ("failed", "bad", 60),
    ]
    assert transfers_view.shown_moves(NOW, []) == []


def test_figures_have_complete_and_failed() -> None:
    hours = [EndedFiles(NOW + timedelta(hours=number), 10 * number, number) for number in range(3)]
    figure = transfers_view.ended_figure(hours, daily=False)
    assert [(trace["name"], trace["y"]) for trace in figure["data"]] == [
        ("complete", [0, 10, 20]),
        ("failed", [0, 1, 2]),
    ]
    assert transfers_view.ended_figure(hours, daily=True)["data"][0]["x"][0] == "2026-11-23"


def test_throughput_is_by_the_minute_and_the_last_minute_as_long_as_it_has_lasted() -> None:
    now = NOW + timedelta(seconds=90)
    rate = LinkRate("pisa", "bari", 3, 900, {NOW: (2, 600), NOW + timedelta(minutes=1): (1, 300)})
    small = [LinkRate("bari", str(number), 1, 1, {NOW: (1, 60)}) for number in range(transfers_view.LINKS_DRAWN + 1)]
    figure = transfers_view.rate_figure([*small, rate], NOW, now)
    assert figure["data"][0]["name"] == "pisa to bari"
    assert figure["data"][0]["y"] == [10.0, 10.0]
    assert (figure["data"][-1]["name"], figure["data"][-1]["y"]) == ("2 others", [2.0, 0.0])
    unsized = LinkRate("pisa", "bari", 3, 0, {NOW: (3, 0)})
    assert transfers_view.rate_figure([unsized], NOW, now)["data"][0]["y"] == [3, 0]
