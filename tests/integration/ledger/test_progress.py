"""How far preparations are, and the build before another one, on every kind of database."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from include.cvmfs.ingest.prepare import PrepareProgress
from include.nightlies.attempt import Attempt
from include.nightlies.records import builds, progress
from include.nightlies.records import publications as records
from include.nightlies.rules.build import BuildKey
from include.nightlies.rules.index import BuildIndex
from include.nightlies.rules.publication import Planned
from include.nightlies.rules.states import Phase, State
from include.nightlies.steps.prepare import PROGRESS_EVERY, _ProgressRecorder
from tests.integration.ledger.test_records import KEY, NOW, go


def planned(ledger):
    return records.plan(ledger, KEY, Planned(), try_number=1, now=NOW)


def seen(publication, files, *, try_number=1):
    return progress.NotedProgress(publication.id, try_number, NOW, files, files * 10, 5, NOW)


def test_progress_is_that_of_the_try_that_prepares_now(ledger):
    publication = planned(ledger)
    progress.note(ledger, seen(publication, 1))
    assert progress.of_publications(ledger, [publication.id]) == {}
    go(ledger, State.PREPARING, Phase.PREPARE)
    progress.note(ledger, seen(publication, 7))
    assert progress.of_publications(ledger, [publication.id]) == {publication.id: seen(publication, 7)}
    go(ledger, State.PREPARING, Phase.PREPARE, 2)
    assert progress.of_publications(ledger, [publication.id]) == {}
    progress.note(ledger, seen(publication, 2, try_number=2))
    assert progress.of_publications(ledger, [publication.id])[publication.id].files == 2
    progress.forget(ledger, publication.id)
    assert progress.of_publications(ledger, [publication.id]) == {}
    assert progress.of_publications(ledger, []) == {}


def test_a_preparation_is_noted_now_and_then_and_forgotten_at_its_end(ledger):
    publication = planned(ledger)
    go(ledger, State.PREPARING, Phase.PREPARE)
    now, passed_on = [NOW], []

    def clock() -> datetime:
        return now[0]

    recorder = _ProgressRecorder(ledger, publication, Attempt("run", "holder", 1, clock), passed_on.append)
    with recorder:
        recorder(PrepareProgress(1, 10, 1, 0, 5))
        assert progress.of_publications(ledger, [publication.id]) == {}
        now[0] = NOW + PROGRESS_EVERY
        recorder(PrepareProgress(2, 20, 1, 0, 6))
        now[0] += timedelta(seconds=1)
        recorder(PrepareProgress(3, 30, 1, 0, 7))
        noted = progress.of_publications(ledger, [publication.id])[publication.id]
        assert (noted.files, noted.bytes, noted.bytes_uploaded, noted.began_at) == (2, 20, 6, NOW)
    assert progress.of_publications(ledger, [publication.id]) == {}
    assert [one.files for one in passed_on] == [1, 2, 3]


def test_a_move_names_the_try_that_made_it_and_a_new_plan_forgets_it(ledger):
    planned(ledger)
    go(ledger, State.PREPARING, Phase.PREPARE)
    move = records.Move(State.FAILED, Phase.PREPARE, "no")
    assert records.move(ledger, KEY, move, try_number=1, now=NOW, holder="d/r/t[3] try 1").holder == "d/r/t[3] try 1"
    assert records.plan(ledger, KEY, Planned(), try_number=2, now=NOW).holder is None


def test_the_build_before_is_the_next_smaller_in_date_and_id(ledger):
    for build_id, day in (("b9", 20), ("b10", 20), ("b1", 21), ("b2", 21), ("b3", 22)):
        index = BuildIndex("main", build_id, date(2026, 11, day), True, ())
        builds.record_build(ledger, index, index_url="u", now=NOW)
    before = {
        key: None if (found := builds.preceding_build(ledger, "main", key)) is None else found.build_id
        for key in (
            BuildKey(date(2026, 11, 23), ""), BuildKey(date(2026, 11, 22), "b3"), BuildKey(date(2026, 11, 21), "b2"),
            BuildKey(date(2026, 11, 21), "b1"), BuildKey(date(2026, 11, 20), "b10"), BuildKey(date(2026, 11, 20), "b9"),
        )
    }  # fmt: skip
    assert list(before.values()) == ["b3", "b2", "b1", "b10", "b9", None]
    assert builds.preceding_build(ledger, "other", BuildKey(date(2026, 11, 23), "")) is None
    earlier = builds.earlier_builds(ledger, "main", BuildKey(date(2026, 11, 22), "b3"))
    assert builds.preceding_build(ledger, "main", BuildKey(date(2026, 11, 22), "b3")) == earlier[0]


def test_a_build_that_a_backfill_brings_later_is_not_the_build_before(ledger):
    def seen(day: int, hours: int) -> None:
        index = BuildIndex("main", f"b{day}", date(2026, 11, day), True, ())
        builds.record_build(ledger, index, index_url="u", now=NOW + timedelta(hours=hours))

    def before(day: int) -> str | None:
        found = builds.preceding_build(ledger, "main", BuildKey(date(2026, 11, day), f"b{day}"))
        return None if found is None else found.build_id

    seen(20, 0)
    seen(23, 1)
    for hours, day in enumerate((22, 21, 19), 2):
        seen(day, hours)
    assert (before(23), before(22), before(20)) == ("b20", "b20", None)
    seen(24, 9)
    assert before(24) == "b23"
