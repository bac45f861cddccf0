"""Preparing sends each object once and nothing that is known, keeps its budget, and stops at the first error."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import random
import stat
import tarfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from include.cvmfs.coordination.generation import CollectionProgress
from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, DestinationError, SourceError
from include.cvmfs.format.hashes import DigestSet, ObjectHash, hash_bytes, hash_of_key, identity
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.objects import Compression
from include.cvmfs.format.schema import Counts
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import Base, PrepareOptions, PrepareProgress, prepare
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.ingest.upload import Budget, Uploader
from include.cvmfs.sources.artifact import DirectorySource
from include.cvmfs.sources.source import Entry, EntryKind, Opener, SourceLimits
from include.cvmfs.sources.tarball import TarSource
from include.storage.errors import STORE_FULL, Forbidden
from tests.fakes.archives import Member, archive, file
from tests.fakes.farstore import FarStore
from tests.fakes.memorystore import MemoryStore
from tests.fakes.recount import read_back
from tests.fakes.refused import refused
from tests.fakes.trees import a_file, a_folder, a_hard_link, prepared

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


def test_progress_is_reported_a_few_times_a_second_and_ends_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[float] = []
    reports: list[PrepareProgress] = []
    now_s = 0.0

    def note(report: PrepareProgress) -> None:
        steps.append(now_s)
        reports.append(report)

    class Slow(TarSource):
        def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
            nonlocal now_s
            for one in super().entries():
                now_s += 0.001
                yield one

    monkeypatch.setattr("include.cvmfs.ingest.prepare.time", SimpleNamespace(monotonic=lambda: now_s))
    tree = Slow(iter([MANY]), "x.tar")
    made = prepare(tree, store=MemoryStore(), fqrn="r", destination="/a", now=NOW, progress=note)
    assert 7 <= len(steps) <= 9, "2 s passed"
    assert all(later - sooner > 0.2 for sooner, later in itertools.pairwise(steps[:-1]))
    whole = PrepareProgress(2000, made.bytes, made.objects_new, made.objects_reused, made.bytes_uploaded)
    assert reports[-1] == whole


def test_an_error_of_the_progress_stops_it() -> None:
    with pytest.raises(ZeroDivisionError):
        run(progress=lambda _: 1 // 0)
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
        for number in range(32):
            given_out.append(1 << 20)
            yield file(f"f{number}", rng.randbytes((1 << 20) - 512)).to_bytes()
        yield bytes(1024)

    stopped_at: list[int] = []

    def let_go_when_reading_stops() -> None:
        before = -1
        while before != len(given_out) or not given_out:
            before = len(given_out)
            go.wait(0.1)
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


@pytest.mark.parametrize(("count", "enough"), [(1, 25), (25, 25), (60, 60)])
def test_who_waits_for_a_budget_goes_on_when_a_quarter_is_free_or_as_much_as_it_needs(
    count: int, enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, begun = Budget(100), threading.Event()
    budget.take(100)
    wait = budget._changed.wait
    monkeypatch.setattr(budget._changed, "wait", lambda: (begun.set(), wait()))
    waiting = threading.Thread(target=budget.take, args=(count,))
    waiting.start()
    assert begun.wait(10)
    budget.give(enough - 1)
    waiting.join(0.05)
    assert waiting.is_alive()
    budget.give(1)
    waiting.join(10)
    assert not waiting.is_alive()
    budget.take(enough - count)  # the rest is free, and is had at once


def test_uploader_threads_start_as_they_are_needed() -> None:
    store = MemoryStore()
    with Uploader(store, connections=64, budget=Budget(1 << 20)) as uploader:
        uploader.put("data/aa/a", b"1")
        assert len(preparing_threads()) == 1
    assert store.objects == {"data/aa/a": b"1"}
    assert preparing_threads() == []


def test_a_file_stream_is_read_to_its_end() -> None:
    stream = io.BytesIO(MANY + bytes(10240))
    prepare(TarSource(stream, "x.tar"), store=MemoryStore(), fqrn="r", destination="/a", now=NOW)
    assert stream.read() == b""


# -- special files, nanoseconds and external files


KEPT = PrepareOptions(specials=Specials.KEEP)


def a_special(path: str, kind: EntryKind = EntryKind.FIFO, device: int = 0) -> tuple[Entry, None]:
    return Entry(path, kind, 0o640, 1000, device=device), None


def test_special_files_are_kept_with_their_numbers() -> None:
    number = os.makedev(8, 1)
    changeset, found, _ = prepared(
        [
            a_special("pipe"),
            a_special("socket", EntryKind.SOCKET),
            a_special("tty", EntryKind.CHARACTER_DEVICE, os.makedev(5, 0)),
            a_special("d/disk", EntryKind.BLOCK_DEVICE, number),
            a_hard_link("also", "pipe"),
        ],
        KEPT,
    )
    disk = found["/d/disk"].entry
    assert (disk.mode, disk.size, disk.flags, disk.linkcount) == (stat.S_IFBLK | 0o640, number, 20, 1)
    assert (found["/pipe"].entry.mode, found["/pipe"].entry.size) == (stat.S_IFIFO | 0o640, 0)
    assert (found["/also"].entry.mode, found["/also"].entry.linkcount) == (stat.S_IFIFO | 0o640, 1)
    assert changeset.statistics.total == Counts(regular=1, special=5, dir=2)


def test_special_files_can_be_left_out() -> None:
    members = [a_special("pipe"), a_hard_link("also", "pipe"), a_file("f", b"1")]
    changeset, found, _ = prepared(members, PrepareOptions(specials=Specials.SKIP))
    assert sorted(found) == ["", "/.cvmfscatalog", "/f"]
    assert changeset.notes == ("2 special files left out",)


def test_special_files_are_refused_unless_they_are_asked_for() -> None:
    with refused(SourceError, member="pipe"):
        prepared([a_special("pipe")], PrepareOptions())


def test_device_numbers_that_cannot_be_are_refused() -> None:
    data = archive([Member(b"dev", type=b"3", device=(1 << 13, 0))])
    with refused(SourceError, member="dev"):
        prepared(data, KEPT)


def test_nanoseconds_are_kept_if_this_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    (tmp_path / "l").symlink_to("f")
    os.utime(tmp_path / "f", ns=(1, 7_000_000_009))
    os.utime(tmp_path / "l", ns=(1, -1), follow_symlinks=False)
    os.utime(tmp_path, ns=(1, 8_500_000_000))
    changeset, found, _ = prepared(DirectorySource(tmp_path), PrepareOptions(layout=Layout.MTIME_NS, mtime_ns=True))
    times = {path: (one.entry.mtime, one.entry.mtime_ns) for path, one in found.items()}
    assert times == {"": (8, 500_000_000), "/f": (7, 9), "/l": (-1, 999_999_999), "/.cvmfscatalog": (8, 0)}
    assert changeset.root_entry.mtime_ns == 500_000_000
    _, found, _ = prepared(DirectorySource(tmp_path), PrepareOptions())
    assert {one.entry.mtime_ns for one in found.values()} == {None}
    _, found, _ = prepared(DirectorySource(tmp_path), PrepareOptions(layout=Layout.MTIME_NS, mtime_ns=True, mtime=77))
    assert {(one.entry.mtime, one.entry.mtime_ns) for one in found.values()} == {(77, 0)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", (12, 0)), ("12.5", (12, 500_000_000)), ("12.0000000019", (12, 1)), ("-1.25", (-2, 750_000_000)),
        ("-1.0", (-1, 0)), ("-0.5", (-1, 500_000_000)), ("-0.0000000001", (-1, 999_999_999)),
        ("-3.9999999999", (-4, 0)),
    ],
)  # fmt: skip
def test_fractions_of_seconds_in_archives(text: str, expected: tuple[int, int]) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("f")
        member.pax_headers = {"mtime": text}
        tar.addfile(member)
    [(entry, _)] = list(TarSource(iter([out.getvalue()]), "x.tar").entries())
    assert (entry.mtime, entry.mtime_ns) == expected


def test_external_files_are_listed_but_not_stored() -> None:
    big = random.Random(1).randbytes(700_000)
    members = [
        a_folder("d"),
        a_file("d/.cvmfscatalog"),
        a_file("d/small", b"content"),
        a_hard_link("d/other", "d/small"),
        a_file("big", big),
        a_file("empty"),
    ]
    changeset, found, store = prepared(members, PrepareOptions(external=True, chunking=CHUNKS))
    small, large = found["/d/small"].entry, found["/big"]
    assert (small.external, small.compression, small.size) == (True, Compression.NONE, 7)
    assert small.hash == hash_bytes(b"content")
    assert found["/d/other"].entry.changed(name="small") == small
    assert large.entry.external
    assert [one.hash.digest for one in large.chunks] == [
        hash_bytes(big[one.offset : one.offset + one.size]).digest for one in large.chunks
    ]
    assert sum(one.size for one in large.chunks) == len(big)
    total = changeset.statistics.total
    assert (total.regular, total.external) == (6, 4)
    assert (total.external_file_size, total.file_size) == (len(big) + 14, len(big) + 14)
    assert not found["/d/.cvmfscatalog"].entry.external
    # Nothing but the markers' empty file and two catalogs.
    assert len(store.objects) == 3
    assert changeset.root == prepared(members, PrepareOptions(external=True, chunking=CHUNKS))[0].root


def test_a_marker_that_is_an_external_file_by_another_name_is_refused() -> None:
    with refused(SourceError, member="d/.cvmfscatalog"):
        prepared([a_file("f"), a_hard_link("d/.cvmfscatalog", "f")], PrepareOptions(external=True))
