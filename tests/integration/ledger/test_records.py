"""What the ledger keeps of builds and publications, on every kind of database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from threading import Barrier

import pytest

from include.cvmfs.ingest.prepare import PrepareProgress
from include.nightlies.errors import BuildMoved, IllegalMove, PublicationUnknown, StaleAttempt
from include.nightlies.records import builds, progress, publications as records, undos as created
from include.nightlies.rules.build import BuildKey
from include.nightlies.rules.index import Artifact, BuildIndex, RejectedArtifact
from include.nightlies.rules.publication import Figures, Move, Phase, Planned, PublicationKey, State, Wait
from include.nightlies.steps.prepare import PROGRESS_EVERY, _ProgressRecorder
from include.nightlies.steps.values import Attempt
from include.settings.model import StoreSettings
from include.settings.traits import record_traits, recorded_traits
from include.storage.kinds import Traits
from tests.fakes.refused import refused

NOW = datetime(2026, 11, 21, 2, 30, 1, 123456, tzinfo=UTC)
SHA, SHA_B = "ab" * 32, "cd" * 32
KEY = PublicationKey("n.example.org", "/nightlies/main/b42/Gaudi/opt", "nightly_install_main/scheduled__1")
ARTIFACT = Artifact("Gaudi", "opt", "a/Gaudi.tar", 1 << 35, SHA, ("LCG", "zlib"), 7)
INDEX = BuildIndex(
    "main", "b42", date(2026, 11, 21), False, (ARTIFACT,), (RejectedArtifact("X/opt", "no", 3, "X", "opt"),)
)


def later(minutes: int) -> datetime:
    return NOW + timedelta(minutes=minutes)


def go(ledger, to, phase, try_number=1, key=KEY, **more):
    return records.move(
        ledger, key, Move(to, phase, more.pop("reason", to.value), **more), try_number=try_number, now=later(1)
    )


def publish(ledger, key=KEY, sha256=SHA, nested="f" * 40, try_number=1):
    go(ledger, State.PREPARING, Phase.PREPARE, try_number, key)
    go(ledger, State.PREPARED, Phase.PREPARE, try_number, key)
    go(ledger, State.PUBLISHING, Phase.PUBLISH, try_number, key)
    figures = Figures(
        artifact_sha256=sha256, nested_hash=nested, revision_before=6, revision_after=7, root_hash="e" * 40
    )
    return go(ledger, State.PUBLISHED, Phase.PUBLISH, try_number, key, figures=figures)


def test_a_build_comes_back_as_it_was_recorded(ledger):
    written = builds.record_build(ledger, INDEX, index_url="s3://builds/i.json", now=NOW)
    assert builds.build(ledger, "main", "b42") == written
    assert builds.builds_of(ledger, "main", INDEX.date) == (written,)
    assert written.artifact("Gaudi", "opt").artifact == ARTIFACT
    assert written.rejected == INDEX.rejected
    assert (written.first_seen_at, written.complete) == (NOW, False)
    assert builds.build(ledger, "main", "B42") is None


def test_an_index_that_grew_updates_its_build(ledger):
    first = builds.record_build(ledger, INDEX, index_url="u", now=NOW)
    grown = replace(
        INDEX,
        complete=True,
        rejected=(),
        artifacts=(replace(ARTIFACT, sha256=SHA_B), replace(ARTIFACT, platform="dbg")),
    )
    second = builds.record_build(ledger, grown, index_url="u", now=later(5))
    assert (second.id, second.first_seen_at, second.updated_at, second.complete) == (first.id, NOW, later(5), True)
    assert second.artifact("Gaudi", "opt").artifact.sha256 == SHA_B
    assert second.artifact("Gaudi", "opt").id == first.artifact("Gaudi", "opt").id
    assert len(second.artifacts) == 2


def test_names_that_differ_in_case_only_are_two(ledger):
    both = replace(INDEX, artifacts=(ARTIFACT, replace(ARTIFACT, project="gaudi")))
    assert len(builds.record_build(ledger, both, index_url="u", now=NOW).artifacts) == 2


def test_a_build_id_belongs_to_one_date(ledger):
    builds.record_build(ledger, INDEX, index_url="u", now=NOW)
    moved = replace(INDEX, date=date(2026, 11, 22), complete=True)
    with refused(BuildMoved, slot="main", build_id="b42"):
        builds.record_build(ledger, moved, index_url="u", now=NOW)
    assert not builds.build(ledger, "main", "b42").complete


def test_a_publication_keeps_its_figures_and_knows_its_build(ledger):
    build = builds.record_build(ledger, INDEX, index_url="u", now=NOW)
    planned = records.plan(ledger, KEY, Planned(build.artifact("Gaudi", "opt").id, SHA), try_number=1, now=NOW)
    assert (planned.state, planned.created_at) == (State.PLANNED, NOW)
    assert (planned.slot, planned.build_id, planned.project, planned.platform) == ("main", "b42", "Gaudi", "opt")
    prepared = Figures(
        files=3, bytes=1 << 40, objects_new=2, objects_reused=1, bytes_uploaded=9, seconds={"prepare": 1.5}
    )
    go(ledger, State.PREPARING, Phase.PREPARE)
    go(ledger, State.PREPARED, Phase.PREPARE, figures=prepared)
    go(ledger, State.PUBLISHING, Phase.PUBLISH)
    done = go(
        ledger,
        State.PUBLISHED,
        Phase.PUBLISH,
        reason="first of its place — ✓ 😀",
        figures=Figures(revision_after=7, lease_held_s=0.25, seconds={"publish": 0.5}),
    )
    assert (done.files, done.bytes, done.revision_after, done.lease_held_s) == (3, 1 << 40, 7, 0.25)
    assert done.seconds == {"prepare": 1.5, "publish": 0.5}
    assert done.reason == "first of its place — ✓ 😀"
    assert done.ended_at == later(1)
    assert records.publication(ledger, KEY) == done
    assert records.publications_of_run(ledger, KEY.run_id) == (done,)


def test_a_process_that_outlived_its_try_cannot_turn_back_what_is_published(ledger):
    records.plan(ledger, KEY, Planned(), try_number=1, now=NOW)
    go(ledger, State.PREPARING, Phase.PREPARE)
    go(ledger, State.PREPARED, Phase.PREPARE)
    go(ledger, State.PUBLISHING, Phase.PUBLISH, 1)
    go(ledger, State.PUBLISHING, Phase.PUBLISH, 2)
    done = go(ledger, State.PUBLISHED, Phase.PUBLISH, 2, figures=Figures(revision_after=7))
    for late in (State.FAILED, State.PUBLISHED, State.UNCHANGED, State.PUBLISHING):
        with refused(StaleAttempt, try_number=1, recorded=2):
            go(ledger, late, Phase.PUBLISH, 1)
    for late in (State.FAILED, State.PREPARING, State.PREPARED):
        with pytest.raises(IllegalMove):
            go(ledger, late, Phase.PREPARE, 1)
    with refused(IllegalMove, current="published", to="failed"):
        go(ledger, State.FAILED, Phase.PUBLISH, 3)
    assert records.publication(ledger, KEY) == done


def test_an_old_prepare_beside_its_retry_records_nothing(ledger):
    records.plan(ledger, KEY, Planned(), try_number=1, now=NOW)
    go(ledger, State.PREPARING, Phase.PREPARE, 1)
    go(ledger, State.PREPARING, Phase.PREPARE, 2)
    with pytest.raises(StaleAttempt):
        go(ledger, State.PREPARED, Phase.PREPARE, 1)
    go(ledger, State.PREPARED, Phase.PREPARE, 2)
    # publish counts its own tries: its first is not older than prepare's second
    go(ledger, State.PUBLISHING, Phase.PUBLISH, 1)


def test_a_move_whose_answer_was_lost_changes_nothing_the_second_time(ledger):
    records.plan(ledger, KEY, Planned(), try_number=1, now=NOW)
    done = publish(ledger)
    again = go(ledger, State.PUBLISHED, Phase.PUBLISH, figures=Figures(revision_after=99), reason="again")
    assert again == done


def test_planning_again_in_the_same_try_changes_nothing(ledger):
    records.plan(ledger, KEY, Planned(), try_number=1, now=NOW)
    done = publish(ledger)
    assert records.plan(ledger, KEY, Planned(), try_number=1, now=later(9)) == done


def test_a_cleared_run_begins_anew_and_still_finds_what_it_published(ledger):
    records.plan(ledger, KEY, Planned(sha256=SHA), try_number=1, now=NOW)
    publish(ledger, nested="a" * 40)
    anew = records.plan(ledger, KEY, Planned(sha256=SHA), try_number=2, now=later(9))
    assert (anew.state, anew.revision_after, anew.created_at) == (State.PLANNED, None, NOW)
    assert "published at revision 7" in anew.reason
    assert records.recorded_nested_hash(ledger, KEY.repository, KEY.destination, SHA) == "a" * 40
    with pytest.raises(StaleAttempt):
        records.plan(ledger, KEY, Planned(), try_number=1, now=later(9))
    assert go(ledger, State.UNCHANGED, Phase.PREPARE, 2).state is State.UNCHANGED


def test_the_hash_of_an_artifact_is_found_over_all_runs_and_only_when_published(ledger):
    other_run = replace(KEY, run_id="another")
    for key, sha256, nested in ((KEY, SHA, "a" * 40), (other_run, SHA_B, "b" * 40)):
        records.plan(ledger, key, Planned(sha256=sha256), try_number=1, now=NOW)
        assert records.recorded_nested_hash(ledger, key.repository, key.destination, sha256) is None
        publish(ledger, key, sha256, nested)
    find = records.recorded_nested_hash
    assert find(ledger, KEY.repository, KEY.destination, SHA) == "a" * 40
    assert find(ledger, KEY.repository, KEY.destination, SHA_B) == "b" * 40
    assert find(ledger, KEY.repository, KEY.destination + "x", SHA) is None
    assert find(ledger, "other.example.org", KEY.destination, SHA) is None
    assert len(records.history(ledger, KEY.repository, KEY.destination)) == 2


def test_what_was_never_planned_cannot_move(ledger):
    with refused(PublicationUnknown, publication=str(KEY)):
        go(ledger, State.PREPARING, Phase.PREPARE)


def test_the_longest_keys_fit(ledger):
    key = PublicationKey("r" * 128, "/" + "d" * 1023, "r" * 512)
    planned = records.plan(ledger, key, Planned(), try_number=1, now=NOW)
    assert planned.key == key
    assert (
        records.plan(ledger, replace(key, destination="/" + "D" * 1023), Planned(), try_number=1, now=NOW).id
        != planned.id
    )


def test_many_workers_record_at_once_and_nothing_is_lost(ledger):
    workers = 8
    barrier = Barrier(workers)
    same = replace(KEY, run_id="raced")

    def work(number):
        barrier.wait()
        records.plan(ledger, same, Planned(), try_number=1, now=NOW)
        builds.record_build(ledger, INDEX, index_url=f"u{number}", now=NOW)
        for place in range(5):
            key = replace(KEY, destination=f"/{number}/{place}")
            records.plan(ledger, key, Planned(sha256=SHA), try_number=1, now=NOW)
            publish(ledger, key)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    done = records.publications_of_run(ledger, KEY.run_id)
    assert [one.state for one in done] == [State.PUBLISHED] * (workers * 5)
    assert [one.state for one in records.publications_of_run(ledger, "raced")] == [State.PLANNED]


def test_one_of_two_racing_retries_wins_and_the_other_is_told(ledger):
    records.plan(ledger, KEY, Planned(), try_number=1, now=NOW)
    go(ledger, State.PREPARING, Phase.PREPARE)
    go(ledger, State.PREPARED, Phase.PREPARE)
    barrier = Barrier(2)

    def work(try_number):
        barrier.wait()
        try:
            go(ledger, State.PUBLISHING, Phase.PUBLISH, try_number)
            go(ledger, State.PUBLISHED, Phase.PUBLISH, try_number, figures=Figures(revision_after=try_number))
        except (StaleAttempt, IllegalMove) as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(work, (1, 2)))
    found = records.publication(ledger, KEY)
    assert found.state is State.PUBLISHED
    assert answers[found.revision_after - 1] is None
    assert sum(answer is None for answer in answers) == 1


def test_a_function_on_a_connection_joins_its_transaction(ledger):
    with ledger.connect() as connection, connection.begin() as transaction:
        records.plan(connection, KEY, Planned(), try_number=1, now=NOW)
        transaction.rollback()
    assert records.publication(ledger, KEY) is None


def test_a_changeset_is_kept_once_and_found_by_its_digest(ledger):
    body = '{"files": 3, "name": "✓"}' * 10_000
    first = builds.ChangesetRecord("1" * 64, KEY.repository, KEY.destination, SHA, "a" * 40, 0, 6, body, NOW)
    second = replace(first, digest="2" * 64, generation=1, base_revision=None, created_at=later(1))
    for record in (first, first, second):
        builds.save_changeset(ledger, record)
    assert builds.changeset(ledger, first.digest) == first
    assert builds.changeset(ledger, "3" * 64) is None
    assert builds.changeset(ledger, second.digest) == second


def test_directories_are_remembered_for_the_run_that_created_them(ledger):
    for paths in (["/a", "/a/b"], ["/a/b", "/c"]):
        created.note(ledger, KEY.run_id, KEY.repository, paths, now=NOW)
    created.note(ledger, "another", KEY.repository, ["/a"], now=NOW)
    assert created.of_run(ledger, KEY.run_id, KEY.repository) == ("/a", "/a/b", "/c")
    assert created.of_run(ledger, KEY.run_id, "other.example.org") == ()
    created.forget(ledger, KEY.run_id, KEY.repository)
    assert created.of_run(ledger, KEY.run_id, KEY.repository) == ()
    assert created.of_run(ledger, "another", KEY.repository) == ("/a",)


def test_what_a_store_keeps_is_remembered_for_that_address_only(ledger):
    store = StoreSettings(name="main", url="s3://bucket/prefix", endpoint="http://127.0.0.1:1")
    assert recorded_traits(ledger, store) is None
    for traits in (Traits(True, True, True, None, True), Traits(True, False, True, False, False)):
        record_traits(ledger, store, traits, now=NOW)
        assert recorded_traits(ledger, store) == traits
    assert recorded_traits(ledger, store.model_copy(update={"endpoint": "http://127.0.0.1:2"})) is None


def test_trees_that_were_rewritten_are_known_by_their_new_hashes(ledger):
    records.plan(ledger, KEY, Planned(sha256=SHA), try_number=1, now=NOW)
    go(ledger, State.PREPARING, Phase.PREPARE)
    go(ledger, State.PREPARED, Phase.PREPARE, figures=Figures(changeset="c" * 64, nested_hash="a" * 40))
    assert [one.key for one in records.waiting_changesets(ledger, KEY.repository)] == [KEY]
    assert records.waiting_changesets(ledger, "other.example.org") == ()
    go(ledger, State.PUBLISHING, Phase.PUBLISH)
    go(ledger, State.PUBLISHED, Phase.PUBLISH, figures=Figures(revision_after=7))
    assert records.waiting_changesets(ledger, KEY.repository) == ()
    assert records.recorded_nested_hash(ledger, KEY.repository, KEY.destination, SHA) == "a" * 40
    assert records.rehash(ledger, {"a" * 40: "b" * 40, "d" * 40: "e" * 40}) == 1
    assert records.recorded_nested_hash(ledger, KEY.repository, KEY.destination, SHA) == "b" * 40
    assert records.publication(ledger, KEY).nested_hash == "b" * 40
    assert records.rehash(ledger, {"a" * 40: "b" * 40}) == 0


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


def test_a_wait_keeps_its_beginning_whatever_it_is_for_and_is_that_of_the_try_that_waits_now(ledger):
    records.plan(ledger, KEY, Planned(), try_number=1, now=NOW)
    go(ledger, State.PREPARING, Phase.PREPARE)
    go(ledger, State.PREPARED, Phase.PREPARE)

    def noted(what, minutes, *, read=None, try_number=1):
        records.note_wait(ledger, {KEY: read}, what, try_number=try_number, now=later(minutes))
        return records.publication(ledger, KEY)

    first = Wait(later(2).replace(microsecond=0), "a lease of A")
    assert noted(first.what, 2).reason == str(first)
    long = noted("B" * 5000, 3)
    assert Wait.of_reason(long.reason).since == first.since
    assert noted("B" * 5000, 4) == long
    # the move of the next try replaces the reason; what it read before has the beginning
    go(ledger, State.PUBLISHING, Phase.PUBLISH, 2, reason="try 2")
    waiting = noted(first.what, 5, read=first, try_number=2)
    assert waiting.reason == str(first)
    assert noted("what a replaced try waits for", 6, read=first) == noted(None, 6) == waiting
    busy = noted(None, 7, try_number=2)
    assert (busy.reason, busy.updated_at) == ("try 2", later(7))
    assert noted(None, 8, try_number=2) == busy
    go(ledger, State.PUBLISHED, Phase.PUBLISH, 2)
    assert noted("nothing", 9, try_number=2).reason == State.PUBLISHED.value
