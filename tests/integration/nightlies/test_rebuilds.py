"""Rebuilds that cross each other: what the index lists now is what stands in the end, whoever is slower."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from include.gateway.errors import PathBusy
from include.nightlies.records import builds
from include.nightlies.rules.states import State
from include.nightlies.steps.values import Batch
from tests.fakes.together import together
from tests.nights import Nights, night_of

DAY = 9
FOLDER = "/nightlies/main/b20261109"


def planned(nights: Nights, run: str, **more: Any) -> Batch | None:
    batches = nights.plan_of(night_of(DAY, run, **more)).batches
    return batches[0] if batches else None


def install(nights: Nights, run: str, **more: Any) -> dict[str, State]:
    batch = planned(nights, run, **more)
    if batch is not None:
        assert not nights.prepare(batch).failures
        assert not nights.publish(batch).failures
    return nights.states(run)


def stands(nights: Nights, project: str) -> bytes:
    return nights.head().revision.read(f"{FOLDER}/{project}/x86_64/file")


@pytest.mark.parametrize("tries", [1, 3])
def test_a_run_that_is_overtaken_by_a_rebuild_does_not_put_the_earlier_bytes_back(nights: Nights, tries: int) -> None:
    nights.drop(DAY, {"A": b"first", "B": b"same"})
    slow = planned(nights, "night/slow")
    assert slow is not None
    assert not nights.prepare(slow).failures
    nights.drop(DAY, {"A": b"rebuilt", "B": b"same"})
    assert install(nights, "night/quick") == {"A": State.PUBLISHED, "B": State.PUBLISHED}
    before = nights.revision
    for number in range(1, tries + 1):
        assert not nights.publish(slow, try_number=number).failures
    assert stands(nights, "A") == b"rebuilt"
    assert nights.revision == before
    found = {one.project: one for one in nights.publications("night/slow")}
    assert {name: one.state for name, one in found.items()} == {"A": State.SKIPPED, "B": State.UNCHANGED}
    assert "superseded: build b20261109 lists it with another sum now" in found["A"].reason
    nights.assert_whole()


def test_a_rebuild_that_comes_while_the_earlier_one_goes_in_replaces_it(nights: Nights) -> None:
    nights.drop(DAY, {"A": b"first"})
    first = planned(nights, "night/1")
    assert first is not None
    assert not nights.prepare(first).failures
    nights.drop(DAY, {"A": b"rebuilt"})
    second = planned(nights, "night/2")
    assert second is not None
    assert not nights.prepare(second).failures
    moved, tries = threading.Condition(), [0, 0]
    ended: dict[int, object] = {}

    def work(which: int, batch: Batch) -> None:
        other = 1 - which
        while which not in ended:
            seen = tries[other]
            try:
                outcome = nights.publish(batch, try_number=tries[which] + 1)
                again = bool(outcome.busy or outcome.failures)
            except PathBusy:  # by the reservation of the other one
                again = True
            with moved:
                tries[which] += 1
                moved.notify_all()
                # whatever is in the way is a try of the other one, which ends
                if not again or not moved.wait_for(lambda seen=seen: tries[other] > seen, 60):
                    ended[which] = "in the way of nobody" if again else outcome

    together([lambda: work(0, first), lambda: work(1, second)])
    assert stands(nights, "A") == b"rebuilt", ended
    (last,) = nights.publications("night/2")
    assert last.state is State.PUBLISHED
    nights.assert_whole()


def test_rebuilds_in_one_index_go_in_once_each_and_a_rebuild_back_is_one_too(nights: Nights) -> None:
    runs: list[str] = []
    for number, (a, b, c) in enumerate([(b"a1", b"b1", b"c"), (b"a2", b"b2", b"c"), (b"a1", b"b2", b"c")], start=1):
        nights.drop(DAY, {"A": a, "B": b, "C": c}, complete=False)
        before, run = nights.revision, f"night/{number}"
        states = install(nights, run, last=False, number=number, earlier=tuple(runs))
        assert states == dict.fromkeys({1: "ABC", 2: "AB", 3: "A"}[number], State.PUBLISHED)
        assert nights.revision - before == len(states) + (number == 1)
        assert (stands(nights, "A"), stands(nights, "B"), stands(nights, "C")) == (a, b, c)
        runs.append(run)
    nights.drop(DAY, {"A": b"a1", "B": b"b2", "C": b"c"})
    before = nights.revision
    assert set(install(nights, "night/4", number=4, earlier=tuple(runs)).values()) == {State.UNCHANGED}
    assert nights.revision == before
    nights.assert_whole()


def test_a_plan_that_read_its_index_before_a_rebuild_was_recorded_reads_it_again(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.drop(DAY, {"A": b"first"})
    head, meanwhile = nights.site.head, ["night/quick"]

    def slowly(fqrn: str) -> object:
        """Between an index that is read and its build that is recorded, another run does both of a later one."""
        if meanwhile:
            run = meanwhile.pop()
            nights.drop(DAY, {"A": b"rebuilt"})
            planned(nights, run)
        return head(fqrn)

    monkeypatch.setattr(nights.site, "head", slowly)
    batch = planned(nights, "night/slow")
    assert batch is not None
    recorded = builds.build(nights.site.ledger, "main", "b20261109")
    assert recorded is not None
    artifact = recorded.artifact("A", "x86_64")
    assert artifact is not None
    assert artifact.artifact.sha256 == batch.items[0].sha256
    assert not nights.prepare(batch).failures
    assert not nights.publish(batch).failures
    assert stands(nights, "A") == b"rebuilt"
