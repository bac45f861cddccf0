"""The content index spares work and can do no harm: whatever becomes of it, the same tree comes out."""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.format.hashes import Algorithm, DigestSet, hash_of_key, identity
from include.cvmfs.format.objects import Compression, Compressor, compress
from include.cvmfs.ingest import packing
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.packing import ContentIndex
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.sources.tarball import TarSource
from tests.fakes.archives import archive, file
from tests.fakes.memorystore import MemoryStore

CHUNKS = ChunkLimits(1 << 16, 1 << 17, 1 << 18)
FILES = [file(f"d/f{number}", b"%d" % number * 50) for number in range(300)]
BIG = file("big", random.Random(1).randbytes(500_000))


def run(
    path: Path | None,
    *,
    store: MemoryStore | None = None,
    known: DigestSet | None = None,
    compressor: Compressor = Compressor.STOCK,
) -> Changeset:
    return prepare(
        TarSource(iter([archive([*FILES, BIG])]), "x.tar"), store=store or MemoryStore(), fqrn="sw.example.org",
        destination="/a/b", now=datetime(2026, 7, 1, tzinfo=UTC), known=known or DigestSet(),
        options=PrepareOptions(chunking=CHUNKS, index=path, compressor=compressor),
    )  # fmt: skip


def known_of(store: MemoryStore) -> DigestSet:
    return DigestSet(identity(hash_of_key(key)) for key in store.objects)


def index(path: Path, **settings: object) -> ContentIndex:
    arguments: dict[str, object] = {"algorithm": Algorithm.SHA1, "compression": Compression.ZLIB} | settings
    return ContentIndex(path, **arguments)  # type: ignore[arg-type]


def found(there: ContentIndex, content: bytes) -> bytes | None:
    key = there.key(content)
    return there.find([key]).get(key)


@pytest.fixture
def compressed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what was compressed."""
    sizes: list[int] = []
    lock = threading.Lock()

    def counted(data: bytes, how: Compressor) -> bytes:
        with lock:
            sizes.append(len(data))
        return compress(data, how)

    monkeypatch.setattr(packing, "compress", counted)
    return sizes


def test_known_contents_are_not_compressed_again(tmp_path: Path, compressed: list[int]) -> None:
    store = MemoryStore()
    first = run(tmp_path / "index.db", store=store)
    compressed.clear()
    again = MemoryStore()
    second = run(tmp_path / "index.db", store=again, known=known_of(store))
    assert second.root == first.root
    assert (second.objects_new, second.objects_reused) == (0, first.objects_new + first.objects_reused)
    assert not again.objects
    assert compressed == [0]  # the marker of the root, which is never looked up


def test_a_change_of_the_compressor_sends_nothing_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    first = run(tmp_path / "index.db", store=store)
    for compressor in (Compressor.FAST, Compressor.BALANCED):
        second = run(tmp_path / "index.db", known=known_of(store), compressor=compressor)
        assert (second.root, second.objects_new) == (first.root, 0)
    assert not caplog.records
    again = run(tmp_path / "other.db", known=known_of(store), compressor=Compressor.FAST)
    assert again.objects_new > 0
    assert ["may be sent again" in record.getMessage() for record in caplog.records] == [True]


def test_what_the_store_does_not_have_is_sent_whatever_the_index_says(tmp_path: Path) -> None:
    first = MemoryStore()
    run(tmp_path / "index.db", store=first)
    other = MemoryStore()
    run(tmp_path / "index.db", store=other)
    assert other.objects == first.objects
    gone = next(key for key in first.objects if not key.endswith(("C", "P")))
    lacking = DigestSet(identity(hash_of_key(key)) for key in first.objects if key != gone)
    assert len(lacking) == len(known_of(first)) - 1
    third = MemoryStore()
    run(tmp_path / "index.db", store=third, known=lacking)
    assert set(third.objects) == {gone}


def test_an_entry_that_is_damaged_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    store = MemoryStore()
    first = run(path, store=store)
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT key, object FROM young").fetchall()
        assert len(rows) > 300
        swapped = zip(rows, rows[1:] + rows[:1], strict=True)
        database.executemany("UPDATE young SET object = ? WHERE key = ?", [(b[1], a[0]) for a, b in swapped])
    database.close()
    assert run(path, store=MemoryStore(), known=known_of(store)).root == first.root


@pytest.mark.parametrize("damage", [b"", b"not a database" * 1000, None])
def test_a_file_that_is_no_index_is_replaced(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path, store = tmp_path / "index.db", MemoryStore()
    first = run(path, store=store)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(4096) if damage is None else damage)
    with caplog.at_level(logging.WARNING):
        assert run(path, store=MemoryStore(), known=known_of(store)).root == first.root
    run(path, store=MemoryStore())
    assert run(path, store=MemoryStore(), known=known_of(store)).root == first.root
    with index(path) as mended:
        assert found(mended, b"7" * 50) is not None


def test_cells_and_a_schema_of_the_wrong_kind_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    with index(path) as begun:
        begun.remember(begun.key(b"a"), bytes(20))
    sound = path.read_bytes()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE young SET object = ?", (1 << 60,))
        db.execute("UPDATE filled SET entries = 'x'")
    db.close()
    with index(path) as there:
        assert found(there, b"a") is None
        there.remember(there.key(b"b"), bytes(20))
    path.write_bytes(sound.replace(b"CREATE TABLE old", b"CREATE TABLE \xff\xc0d"))
    with index(path) as unreadable:
        assert found(unreadable, b"a") is None
    with index(path) as fresh:
        fresh.remember(fresh.key(b"b"), bytes(20))
    with index(path) as there:
        assert found(there, b"b") == bytes(20)


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert run(tmp_path / "file" / "index.db").root == run(None).root


def test_algorithms_and_compressions_are_kept_apart(tmp_path: Path) -> None:
    with index(tmp_path / "i.db") as ours:
        ours.remember(ours.key(b"x"), bytes(20))
    with index(tmp_path / "i.db", algorithm=Algorithm.SHAKE128) as other:
        assert found(other, b"x") is None
    with index(tmp_path / "i.db", compression=Compression.NONE) as other:
        assert found(other, b"x") is None
    with index(tmp_path / "i.db") as same:
        assert found(same, b"x") == bytes(20)


def test_its_size_is_bounded_and_what_is_used_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.cvmfs.ingest.packing._BATCH", 10)
    path = tmp_path / "i.db"
    with index(path, entries=50) as ours:
        loved = ours.key(b"loved")
        ours.remember(loved, bytes(20))
        for number in range(1000):
            ours.remember(ours.key(b"%d" % number), bytes(20))
            assert ours.find([loved]) == {loved: bytes(20)}
        assert found(ours, b"1") is None
    database = sqlite3.connect(path)
    counts = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("young", "old")]
    database.close()
    assert sum(counts) <= 2 * 60


def test_several_publishers_open_a_new_one_at_the_same_moment(tmp_path: Path) -> None:
    def work(number: int) -> None:
        together.wait()
        with index(path) as ours:
            for key in range(number, 600, 3):
                ours.remember(ours.key(b"%d" % key), key.to_bytes(20, "big"))

    for round_ in range(30):
        path, together = tmp_path / f"{round_}.db", threading.Barrier(3)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with index(path) as ours:
            keys = range(600 if round_ == 0 else 3)
            assert all(found(ours, b"%d" % key) == key.to_bytes(20, "big") for key in keys), f"round {round_}"
