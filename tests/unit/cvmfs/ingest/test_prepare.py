"""Preparing sends each object once and nothing that is known, keeps its budget, and stops at the first error."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.cvmfs.coordination.generation import CollectionProgress
from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, DestinationError, SourceError
from include.cvmfs.format.hashes import DigestSet, ObjectHash, hash_of_key, identity
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import Base, PrepareOptions, PrepareProgress, prepare
from include.cvmfs.ingest.upload import Budget, Uploader
from include.cvmfs.sources.source import Entry, Opener, SourceLimits
from include.cvmfs.sources.tarball import TarSource
from include.storage.errors import STORE_FULL, Forbidden
from tests.fakes.archives import Member, archive, file, folder
from tests.fakes.farstore import FarStore
from tests.fakes.memorystore import MemoryStore
from tests.fakes.recount import read_back
from tests.fakes.refused import refused

NOW = datetime(2026, 7, 1, tzinfo=UTC)
CHUNKS = ChunkLimits(1 << 16, 1 << 17, 1 << 18)
MANY = archive([file(f"d{number % 5}/f{number}", b"%d" % number * 50) for number in range(2000)])


def run(data: bytes | Iterator[bytes] = MANY, store: MemoryStore | None = None, **fields: object) -> Changeset:
    source = TarSource(iter([data]) if isinstance(data, bytes) else data, "x.tar")
    arguments: dict[str, object] = {"fqrn": "sw.example.org", "destination": "/a/b", "now": NOW} | fields
    return prepare(source, store=store or MemoryStore(), **arguments)  # type: ignore[arg-type]


def preparing_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("upload", "pack"))]


def test_the_changeset_says_where_it_comes_from() -> None:
    base = Base(ObjectHash(bytes(20), suffix="C"), revision=41, moment=CollectionProgress(7, 9))
    changeset = run(base=base)
    assert (changeset.repository, changeset.destination, changeset.source) == ("sw.example.org", "/a/b", "x.tar")
    assert (changeset.base_root, changeset.base_revision, changeset.moment) == (base.root, 41, CollectionProgress(7, 9))
    assert changeset.created == NOW
    assert changeset.source_sha256 is not None
    assert changeset.stored
    assert Changeset.parse(changeset.format()) == changeset


def test_every_object_is_sent_once() -> None:
    same = archive([file(f"f{number}", b"same") for number in range(500)])
    store = MemoryStore()
    changeset = run(same, store)
    assert (changeset.objects_new, changeset.objects_reused) == (3, 499)
    assert store.counters.puts == len(store.objects) == 3
    assert store.counters.heads == store.counters.gets == 0
    assert changeset.bytes_uploaded == sum(map(len, store.objects.values()))


def test_known_objects_are_not_sent() -> None:
    store = MemoryStore()
    first = run(store=store)
    known = DigestSet(identity(hash_of_key(key)) for key in store.objects)
    again = MemoryStore()
    second = run(store=again, known=known)
    assert second.root == first.root
    assert (second.objects_new, second.objects_reused, second.bytes_uploaded) == (0, first.objects_new, 0)
    assert not again.objects
    part = MemoryStore()
    run(store=part, known={hash_of_key(key).digest for key in store.objects})
    assert [key for key in part.objects if not key.endswith("C")] == []
    assert len(part.objects) == 1  # a plain digest makes a file known, not a catalog of that digest


def test_a_piece_that_is_known_as_a_file_is_sent_nevertheless() -> None:
    data = random.Random(1).randbytes(500_000)
    options = PrepareOptions(chunking=CHUNKS)
    store = MemoryStore()
    changeset = run(archive([file("big", data)]), store, options=options)
    plain = {hash_of_key(key).digest for key in store.objects}
    again = MemoryStore()
    run(archive([file("big", data)]), again, options=options, known=plain)
    assert {key for key in again.objects if key.endswith("P")} == {key for key in store.objects if key.endswith("P")}
    read_back(store, changeset.reference)


def test_a_dry_run_sends_nothing_and_says_the_same() -> None:
    store = MemoryStore()
    dry = run(store=store, dry_run=True)
    assert not store.objects
    real = run(store=store)
    assert not dry.stored
    assert (dry.root, dry.objects_new, dry.bytes_uploaded) == (real.root, real.objects_new, real.bytes_uploaded)


def test_one_connection_gives_the_same_as_many() -> None:
    assert run(options=PrepareOptions(connections=1)) == run(options=PrepareOptions(connections=64))


def test_uploads_go_on_beside_each_other() -> None:
    together = threading.Barrier(8, timeout=30)
    waited = threading.Event()

    def wait_for_others(verb: str, key: str) -> None:
        if not waited.is_set():
            together.wait()
            waited.set()

    run(store=FarStore(wait_for_others), options=PrepareOptions(connections=8))
    assert waited.is_set()


def test_progress_is_reported_and_ends_with_the_whole() -> None:
    steps: list[PrepareProgress] = []
    changeset = run(progress=steps.append)
    assert steps[-1].files == 2000
    assert steps[-1].objects_new == changeset.objects_new
    assert steps[-1].bytes_uploaded == changeset.bytes_uploaded
    assert steps[-1].bytes == changeset.bytes


def test_progress_is_reported_a_few_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[float] = []
    now_s = 0.0

    class Slow(TarSource):
        def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
            nonlocal now_s
            for one in super().entries():
                now_s += 0.001
                yield one

    monkeypatch.setattr("include.cvmfs.ingest.prepare.time", SimpleNamespace(monotonic=lambda: now_s))
    tree = Slow(iter([MANY]), "x.tar")
    prepare(tree, store=MemoryStore(), fqrn="r", destination="/a", now=NOW, progress=lambda _: steps.append(now_s))
    assert 7 <= len(steps) <= 9, "2 s passed"
    assert all(later - sooner > 0.2 for sooner, later in itertools.pairwise(steps[:-1]))


def test_an_error_of_the_progress_stops_it() -> None:
    class Stop(Exception):
        pass

    def stop(_: PrepareProgress) -> None:
        raise Stop

    with pytest.raises(Stop):
        run(progress=stop)
    assert preparing_threads() == []


@pytest.mark.parametrize("connections", [1, 16])
@pytest.mark.parametrize("size", [100, 300_000])
def test_the_first_error_of_the_store_stops_everything(connections: int, size: int) -> None:
    sent = []

    def fail(verb: str, key: str) -> None:
        sent.append(key)
        if len(sent) > 20:
            raise STORE_FULL(f"{key}: no space left", key=key)

    rng = random.Random(7)
    read = 0

    def blocks() -> Iterator[bytes]:
        nonlocal read
        for number in range(2000):
            read += 1
            yield file(f"f{number}", rng.randbytes(size)).to_bytes()

    options = PrepareOptions(connections=connections, memory_mb=1, chunking=CHUNKS)
    with refused(STORE_FULL) as failure:
        run(blocks(), MemoryStore(fail), options=options)
    assert failure.value.key.startswith("data/")
    assert read < 1000
    assert len(sent) <= 21 + connections
    assert preparing_threads() == []


def test_an_error_in_the_last_upload_is_not_lost() -> None:
    def fail(verb: str, key: str) -> None:
        if key.endswith("C"):
            raise Forbidden(f"{key}: not allowed", key=key)

    with pytest.raises(Forbidden):
        run(archive([file("a")]), MemoryStore(fail))
    assert preparing_threads() == []


@pytest.mark.parametrize("damage", ["truncated", "other"])
def test_a_bad_artifact_gives_no_changeset_and_leaves_no_threads(damage: str) -> None:
    data = gzip.compress(MANY)
    source = TarSource(iter([data[:-9] if damage == "truncated" else data]), "x.tar.gz", sha256="0" * 64)
    store = MemoryStore()
    with refused(SourceError, member="x.tar.gz"):
        prepare(source, store=store, fqrn="r", destination="/a", now=NOW)
    assert preparing_threads() == []
    assert not any(key.endswith("C") for key in store.objects)


@pytest.mark.parametrize(
    ("limits", "member"),
    [(SourceLimits(members=2), "c"), (SourceLimits(bytes=10), "b"), (SourceLimits(file_bytes=5), "b")],
)
def test_limits_stop_before_the_member_is_read(limits: SourceLimits, member: str) -> None:
    data = archive([file("a", b"12345"), file("b", b"123456"), file("c", b"")])
    with refused(SOURCE_LIMIT_EXCEEDED, member=member):
        run(data, options=PrepareOptions(limits=limits))


def test_a_member_that_claims_to_be_enormous_is_stopped_by_its_claim() -> None:
    with refused(SOURCE_LIMIT_EXCEEDED):
        run(archive([Member(b"huge", size=1 << 60)]))


@pytest.mark.parametrize("destination", ["", "/", "a", "/a/../b", "/.cvmfs/x"])
def test_a_bad_destination_is_refused_before_anything_is_read(destination: str) -> None:
    store = MemoryStore()
    with pytest.raises(DestinationError):
        run(b"not even an archive", store, destination=destination)
    assert store.counters.puts == 0


def test_contents_in_flight_are_bounded() -> None:
    go = threading.Event()
    rng = random.Random(3)
    given_out: list[int] = []

    def blocks() -> Iterator[bytes]:
        for number in range(64):
            given_out.append(1 << 20)
            yield file(f"f{number}", rng.randbytes((1 << 20) - 512)).to_bytes()
        yield bytes(1024)

    stopped_at: list[int] = []

    def let_go_when_reading_stops() -> None:
        before = -1
        while before != len(given_out) or not given_out:
            before = len(given_out)
            go.wait(0.3)
        stopped_at.append(sum(given_out))
        go.set()

    watcher = threading.Thread(target=let_go_when_reading_stops)
    watcher.start()
    run(blocks(), MemoryStore(lambda verb, key: go.wait(30) and None), options=PrepareOptions(memory_mb=8))
    watcher.join()
    assert stopped_at[0] <= 12 << 20


def test_a_budget_lets_one_that_is_too_large_go_alone() -> None:
    budget = Budget(10)
    budget.take(100)
    waiting = threading.Thread(target=budget.take, args=(1,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    budget.give(100)
    waiting.join(10)
    assert not waiting.is_alive()


def test_uploader_threads_start_as_they_are_needed() -> None:
    store = MemoryStore()
    with Uploader(store, connections=64, budget=Budget(1 << 20)) as uploader:
        uploader.put("data/aa/a", b"1")
        assert len(preparing_threads()) == 1
    assert store.objects == {"data/aa/a": b"1"}
    assert preparing_threads() == []


@given(st.lists(st.binary(min_size=20, max_size=21), max_size=60))
def test_a_digest_set_is_a_set(identities: list[bytes]) -> None:
    ours, theirs = DigestSet(), set()
    for one in identities:
        assert ours.add(one) == (one not in theirs)
        theirs.add(one)
        assert one in ours
    assert len(ours) == len(theirs)
    assert b"short" not in ours
    assert bytes(22) not in ours


def test_a_digest_set_is_not_misled_by_digests_that_overlap() -> None:
    ours = DigestSet([b"ab" + b"x" * 17 + b"y", b"ab" + b"z" * 18])
    assert b"ab" + b"x" * 16 + b"yz" not in ours
    assert b"ab" + b"z" * 18 in ours


def test_a_directory_without_entries_of_its_own_still_hangs() -> None:
    changeset = run(archive([folder("only")]))
    assert changeset.root_entry.linkcount == 3


def test_a_file_stream_is_read_to_its_end() -> None:
    stream = io.BytesIO(MANY + bytes(10240))
    prepare(TarSource(stream, "x.tar"), store=MemoryStore(), fqrn="r", destination="/a", now=NOW)
    assert stream.read() == b""
