"""The collection generation: its document, its moves, what a changeset has missed, and what a commit may pass."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.commit.commit import NewTag, fence, read_head
from include.cvmfs.coordination.generation import (
    KEY,
    MOVES,
    ORPHAN_GRACE,
    SHARDS,
    STATUS_KEY,
    AffectedShards,
    CollectionPhase,
    CollectionProgress,
    CollectionStep,
    EndedCollection,
    Generation,
    Look,
    look,
    require_unmoved,
    write,
)
from include.cvmfs.errors import FormatError, GenerationMoved
from include.storage.errors import Conflict
from tests.fakes.edits import LATER, change, commit, founded
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, signer
from tests.fakes.refused import refused

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
LIST, OTHER_LIST = "a" * 64, "b" * 64
BEGIN, CONDEMN, SWEEP, RENEW, END, ABANDON = (
    CollectionStep[name] for name in ("BEGIN", "CONDEMN", "SWEEP", "RENEW", "END", "ABANDON")
)
LISTED = {CONDEMN, SWEEP}
TIMES = st.integers(0, 1 << 32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
NUMBERS = st.integers(0, 1 << 40)
LISTS = st.text("0123456789abcdef", min_size=64, max_size=64)
PASTS = st.lists(st.builds(EndedCollection, NUMBERS, st.none() | LISTS, TIMES), max_size=4).map(tuple)
QUIET = st.sampled_from([CollectionPhase.IDLE, CollectionPhase.MARKING])
LOUD = st.sampled_from([CollectionPhase.CONDEMNED, CollectionPhase.SWEEPING])
DOCUMENTS = (
    st.builds(Generation, NUMBERS, QUIET, TIMES, st.none(), PASTS)
    | st.builds(Generation, NUMBERS, LOUD, TIMES, LISTS, PASTS)
    | st.builds(
        Generation, NUMBERS, st.just(CollectionPhase.SWEEPING), TIMES, LISTS, PASTS, swept=st.integers(0, SHARDS)
    )
)


def whole(name: str) -> AffectedShards:
    return AffectedShards(name, range(256))


def idle(number: int, *past: EndedCollection) -> Generation:
    return Generation(number, CollectionPhase.IDLE, NOW, past=past)


def moved(document: Generation, *steps: CollectionStep, now: datetime = NOW, name: str = LIST) -> Generation:
    """The document after these steps, with a list where a step publishes one."""
    for step in steps:
        document = document.after(step, now, condemned=name if step in LISTED else None)
    return document


def collection(document: Generation, now: datetime = NOW, name: str = LIST) -> Generation:
    """The document after a whole collection."""
    return moved(document, BEGIN, CONDEMN, SWEEP, END, now=now, name=name)


# -- the document


@given(DOCUMENTS)
def test_the_document_is_read_as_it_was_written(document: Generation) -> None:
    assert Generation.parse(document.format()) == document


@given(st.binary(max_size=200) | DOCUMENTS.map(Generation.format).flatmap(lambda d: st.just(d[: len(d) // 2])))
def test_anything_else_is_refused_in_our_own_words(data: bytes) -> None:
    with refused(FormatError, what="collection generation"):
        Generation.parse(data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"phase":"idle"', b'"phase":"asleep"'), (b'"phase":"idle"', b'"phase":"sweeping"'),
        (b'"number":3', b'"number":-3'), (b'"number":3', b'"number":true'),
        (b'"condemned":null', b'"condemned":"../../etc"'), (b"+00:00", b""), (b'"format":1', b'"format":2'),
        (b'"number":3', b'"number":"3"'), (b'"past":[]', b'"past":[[1]]'), (b'"past":[]', b'"pst":[]'),
        (b'"condemned":null', b'"cond":null'), (b'"number":3', b'"number":3,"swept":1'),
        (NOW.isoformat().encode(), b"0001-01-01T00:00:00+23:59"),
        (NOW.isoformat().encode(), b"9999-12-31T23:59:59-23:59"),
    ],
)  # fmt: skip
def test_a_document_that_makes_no_sense_is_refused(old: bytes, new: bytes) -> None:
    data = idle(3).format()
    assert old in data
    with pytest.raises(FormatError):
        Generation.parse(data.replace(old, new))


# -- the moves


def test_the_table_of_moves_is_kept_and_nothing_else_is_allowed() -> None:
    for phase, step in itertools.product(CollectionPhase, CollectionStep):
        document = Generation(4, phase, NOW, LIST if phase.has_list else None)
        name = OTHER_LIST if step in LISTED else None
        if (phase, step) in MOVES:
            after = document.after(step, NOW, condemned=name)
            assert after.phase is MOVES[phase, step]
            assert (after.condemned is not None) is after.phase.has_list
            assert Generation.parse(after.format()) == after
        else:
            with refused(ValueError):
                document.after(step, NOW, condemned=name)
        with refused(ValueError):  # a list comes with the steps that publish one, and with no other
            document.after(step, NOW, condemned=None if name else OTHER_LIST)


def test_nothing_leads_out_of_a_sweep_but_its_end() -> None:
    sweeping = CollectionPhase.SWEEPING
    assert {step for (phase, step), after in MOVES.items() if phase is sweeping is not after} == {END}
    entering = {phase for (phase, _), after in MOVES.items() if after is sweeping is not phase}
    assert entering == {CollectionPhase.CONDEMNED}


def test_every_change_of_what_may_be_deleted_changes_the_token_and_renewing_does_not() -> None:
    document, tokens = idle(0), []
    for step in (BEGIN, CONDEMN, SWEEP, END, BEGIN, CollectionStep.BEGIN_ANEW, ABANDON):
        document = moved(document, step)
        tokens.append(document.token)
        if document.phase is not CollectionPhase.IDLE:
            assert document.after(RENEW, NOW).token == document.token
    assert len(set(tokens)) == len(tokens)


@given(st.lists(st.sampled_from(CollectionStep), max_size=40))
def test_a_judgement_holds_until_a_list_is_published(steps: list[CollectionStep]) -> None:
    document, held, lost = idle(3), {idle(3).token}, set[str]()
    for step in steps:
        if (document.phase, step) not in MOVES:
            continue
        unlisted = document.phase is CollectionPhase.MARKING
        before, document = document, moved(document, step)
        assert step is RENEW or not before.upholds(document.token), "judged later than it was written"
        # a number that ends without a list is not told from one with a list: judged again for nothing
        if step is CONDEMN or (unlisted and step is not RENEW):
            lost, held = lost | held, set()
        held.add(document.token)
        assert all(document.upholds(token) for token in held)
        assert not any(document.upholds(token) for token in lost)


def sweeping(swept: int = 0) -> Generation:
    """Collection 1 with its list out, and so many shards of it swept."""
    return moved(idle(0), BEGIN, CONDEMN, SWEEP).after(RENEW, NOW, swept=swept)


def test_what_is_swept_is_counted_in_one_sweep_and_never_goes_down() -> None:
    document = sweeping(17)
    assert document.after(RENEW, NOW).swept == 17
    assert document.after(RENEW, NOW, swept=256).swept == 256
    assert document.after(END, NOW).swept == 0
    assert document.token == sweeping().token, "what was judged free of condemned objects stays so"
    for swept in (16, 257):
        with refused(ValueError):
            document.after(RENEW, NOW, swept=swept)
    with refused(ValueError):
        document.after(END, NOW, swept=256)
    with refused(ValueError):
        moved(idle(0), BEGIN).after(RENEW, NOW, swept=1)
    assert b"swept" not in sweeping().format().replace(b"sweeping", b""), "as before there were shards"
    for written in (b"257", b"-1", b"true", b'"1"'):
        with pytest.raises(FormatError):
            Generation.parse(document.format().replace(b'"swept":17', b'"swept":' + written))


def test_a_collection_that_was_given_up_has_deleted_nothing() -> None:
    document = moved(idle(0), BEGIN, CONDEMN, ABANDON)
    assert document.past == (EndedCollection(1, None, NOW),)
    assert Look(document).lists_since(CollectionProgress(0)) == ()


def test_two_collectors_do_not_begin_at_once() -> None:
    store = MemoryStore()
    write(store, moved(idle(0), BEGIN), expected=None)
    with pytest.raises(Conflict):
        write(store, moved(idle(0), BEGIN), expected=None)


# -- what a changeset has missed


def test_a_changeset_takes_down_the_collection_that_ended_last() -> None:
    document = collection(idle(0))
    assert Look(document).completed == 1
    assert Look(moved(document, BEGIN)).completed == 1
    assert Look().completed == 0


def test_the_lists_of_all_collections_that_ended_since_count() -> None:
    document = collection(collection(idle(0), name=LIST), name=OTHER_LIST)
    assert Look(document).lists_since(CollectionProgress(0)) == (whole(LIST), whole(OTHER_LIST))
    assert Look(document).lists_since(CollectionProgress(1)) == (whole(OTHER_LIST),)
    assert Look(document).lists_since(CollectionProgress(2)) == ()


def test_what_was_sent_after_its_shard_was_swept_is_not_compared() -> None:
    moment = Look(sweeping(17)).moment
    assert moment == CollectionProgress(0, 17)
    assert Look(sweeping(30)).running_since(moment) == AffectedShards(LIST, range(17, 256))
    assert Look(sweeping(256)).running_since(CollectionProgress(0, 256)) is None
    ended = sweeping(256).after(END, NOW)
    assert Look(ended).lists_since(moment) == (AffectedShards(LIST, range(17, 256)),)
    assert Look(ended).running_since(moment) is None
    next_one = moved(ended, BEGIN, CONDEMN, name=OTHER_LIST)
    assert Look(next_one).running_since(moment) == whole(OTHER_LIST), "other shards were swept of another list"
    assert Look(collection(ended, name=OTHER_LIST)).lists_since(moment) == (
        AffectedShards(LIST, range(17, 256)),
        whole(OTHER_LIST),
    )


@given(DOCUMENTS)
def test_a_moment_is_read_from_the_mark_of_its_look(document: Generation) -> None:
    seen = Look(document)
    if document.number:
        assert CollectionProgress.parse(seen.mark) == seen.moment
        assert CollectionProgress.parse(seen.token) == CollectionProgress(seen.completed)


@pytest.mark.parametrize("mark", ["", "gc:", "x:idle", "3", "3:asleep", "3:idle+257", "3:idle+x", "3:idle+-1"])
def test_a_mark_that_names_no_moment_is_refused(mark: str) -> None:
    with refused(FormatError, what="collection generation"):
        CollectionProgress.parse(mark)
    assert CollectionProgress.parse("gc:17") == CollectionProgress(17)


def test_forgotten_and_unknown_collections_have_no_lists() -> None:
    later = NOW + ORPHAN_GRACE
    document = collection(collection(idle(0)), later)
    assert Look(document).lists_since(CollectionProgress(0)) is None
    assert Look(document).lists_since(CollectionProgress(1)) == (whole(LIST),)
    assert Look(document).lists_since(CollectionProgress(7)) is None
    assert Look(last_collection=5).lists_since(CollectionProgress(4)) is None
    many = Generation((1 << 53) - 1, CollectionPhase.IDLE, NOW)
    assert Look(many).lists_since(CollectionProgress(0)) is None, "a number beyond all collections is not counted to"
    later_than_now = idle(5, EndedCollection(5, None, NOW), EndedCollection(9, LIST, NOW))
    assert Look(later_than_now).lists_since(CollectionProgress(4)) == ()


def test_lists_are_remembered_for_longer_than_a_changeset_lives() -> None:
    document, now = idle(0), NOW
    for _ in range(10):
        now += timedelta(hours=6)
        document = collection(document, now)
    assert Look(document).lists_since(CollectionProgress(document.number - 5)) is not None


# -- the store


def test_a_store_without_anything_is_at_generation_zero_in_two_requests() -> None:
    store = MemoryStore()
    assert look(store) == Look()
    assert look(store).token == "gc:0"


def collected(text: str) -> int:
    """The mark of the last collection by a status of the stock tools."""
    store = MemoryStore()
    store.objects[STATUS_KEY] = f'{{"last_snapshot": "x", "last_gc": "{text}"}}'.encode()
    return look(store).completed


def test_the_stock_status_tells_when_the_last_collection_was() -> None:
    for text in ("Sat Nov 21 04:00:00 UTC 2026", "Sat  Nov 21 04:00:00  UTC 2026", "2026-11-21T04:00:00Z"):
        assert collected(text) == int(NOW.timestamp())
    odd = [collected(text) for text in ("\\ud800", "1066-10-14T09:00:00Z", "Samstag", "Sonntag", "")]
    assert len(set(odd)) == 5, "a time that cannot be read still differs from another"
    assert all(0 < mark < 1 << 63 for mark in odd[:2])


@pytest.mark.parametrize("data", [b"", b"[]", b'"x"', b"{" * 10_000])
def test_a_status_that_is_none_is_refused(data: bytes) -> None:
    store = MemoryStore()
    store.objects[STATUS_KEY] = data
    with pytest.raises(FormatError):
        look(store)


def test_the_barrier_lets_pass_what_was_judged_since_the_last_list_was_published() -> None:
    store = MemoryStore()
    require_unmoved(store, "", fqrn=FQRN)
    require_unmoved(store, "gc:17", fqrn=FQRN)
    marking = moved(idle(0), BEGIN)
    version = write(store, marking, expected=None)
    for token in ("1:marking", "0:idle"):
        require_unmoved(store, token, fqrn=FQRN)
    require_unmoved(store, "", fqrn=FQRN)  # a publisher that knows of no generations
    for token in ("gc:0", "0:marking", "1:idle", "2:marking"):
        with pytest.raises(GenerationMoved):
            require_unmoved(store, token, fqrn=FQRN)
    write(store, moved(marking, CONDEMN), expected=version)
    for token in ("", "1:marking", "0:idle"):
        with pytest.raises(GenerationMoved):
            require_unmoved(store, token, fqrn=FQRN)
    store.delete([KEY])
    with refused(GenerationMoved, fqrn=FQRN):
        require_unmoved(store, "1:marking", fqrn=FQRN)


# -- the barrier, with the switch itself


def test_a_commit_that_had_passed_the_barrier_before_the_list_was_out_does_not_switch_after_it() -> None:
    """It looked, and was stopped for any time between that and its switch: the fence makes it begin again."""
    store = founded()
    version = write(store, marking := moved(idle(0), BEGIN), expected=None)
    out = iter([moved(marking, CONDEMN)])
    before = read_head(store, FQRN).manifest.root

    def barrier() -> None:
        require_unmoved(store, "1:marking", fqrn=FQRN)
        for document in out:  # from here on the collector is faster
            write(store, document, expected=version)
            fence(store, FQRN, signer=signer(), now=LATER)

    with refused(GenerationMoved, fqrn=FQRN):
        commit(store, *change(store, "/a"), "/a", tag=NewTag("t"), before_switch=barrier)
    assert read_head(store, FQRN).manifest.root == before
