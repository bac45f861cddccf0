"""A journal of what was sent: believed only where it is whole, of this generation, and young."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from include.cvmfs.format.hashes import ObjectHash, hash_bytes, identity
from include.cvmfs.ingest.upload import JournaledStore, UploadJournal
from include.storage.errors import Unavailable
from tests.fakes.memorystore import MemoryStore

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
ABOUT = ("s3://b/r.example.org", "/nightlies/a", "s3://b/a.tar", "f" * 64)
HASHES = [hash_bytes(bytes([number]), suffix=suffix) for number in range(100) for suffix in ("", "P", "C")]


def journal(folder: Path, *, generation: int = 3, now: datetime = NOW) -> UploadJournal:
    return UploadJournal(folder, about=ABOUT, generation=generation, now=now)


def written(folder: Path, hashes: list[ObjectHash] = HASHES) -> Path:
    with journal(folder) as begun:
        for one in hashes:
            begun.note(one.key)
    return begun.path


def test_a_try_that_was_killed_leaves_what_was_written_by_then(tmp_path: Path) -> None:
    dying = journal(tmp_path)
    for one in HASHES:
        dying.note(one.key)
    known = set(journal(tmp_path).known)
    assert len(HASHES) - 16 <= len(known) <= len(HASHES)
    assert known <= {identity(one) for one in HASHES}


def test_what_is_done_leaves_no_journal(tmp_path: Path) -> None:
    begun = journal(tmp_path)
    begun.note(HASHES[0].key)
    begun.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("generation", "age"),
    [(4, timedelta()), (2, timedelta()), (3, timedelta(hours=24)), (3, timedelta(hours=-2))],
    ids=["a collection ended", "another count", "too old", "from the future"],
)
def test_a_journal_of_before_a_collection_is_void(tmp_path: Path, generation: int, age: timedelta) -> None:
    written(tmp_path)
    assert journal(tmp_path, generation=generation, now=NOW + age).known == ()
    assert journal(tmp_path, generation=generation, now=NOW + age).known == ()


def test_journals_of_different_trees_are_apart(tmp_path: Path) -> None:
    written(tmp_path)
    for place, other in enumerate(ABOUT):
        about = [*ABOUT[:place], f"{other}2", *ABOUT[place + 1 :]]
        assert UploadJournal(tmp_path, about=about, generation=3, now=NOW).known == ()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 20 * 25 + 100), st.binary(max_size=60))
def test_whatever_a_crash_of_the_machine_leaves_only_whole_entries_count(tmp_path: Path, cut: int, tail: bytes) -> None:
    hashes = HASHES[:20]
    path = written(tmp_path, hashes)
    path.write_bytes(path.read_bytes()[:cut] + tail)
    assert set(journal(tmp_path).known) <= {identity(one) for one in hashes}
    path.unlink()


@pytest.mark.parametrize("torn", [1, 13, 24])
def test_what_is_noted_after_a_torn_entry_counts(tmp_path: Path, torn: int) -> None:
    path = written(tmp_path, HASHES[:3])
    path.write_bytes(path.read_bytes()[:-torn])
    written(tmp_path, HASHES[10:20])
    assert set(journal(tmp_path).known) == {identity(one) for one in HASHES[:2] + HASHES[10:20]}


@pytest.mark.parametrize("data", [b"", b"\n", b"[]\n", b"{}\n", b'{"format":1}\n', b'{"started":1}\n', b"\0" * 5000])
def test_a_file_that_is_no_journal_is_begun_again(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path)
    path.write_bytes(data)
    assert journal(tmp_path).known == ()
    written(tmp_path)
    assert len(journal(tmp_path).known) == len(HASHES)


def test_two_processes_may_write_at_once(tmp_path: Path) -> None:
    both = journal(tmp_path), journal(tmp_path)

    def write(which: int) -> None:
        for one in HASHES[which::2]:
            both[which].note(one.key)
        both[which].close()

    threads = [threading.Thread(target=write, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(journal(tmp_path).known) == {identity(one) for one in HASHES}


def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with journal(tmp_path / "file" / "folder") as nowhere:
        nowhere.note(HASHES[0].key)
    assert nowhere.known == ()


def test_old_journals_of_others_are_removed(tmp_path: Path) -> None:
    old = tmp_path / f"{'0' * 40}.sent"
    old.write_bytes(b"")
    os.utime(old, (0, 0))
    journal(tmp_path)
    assert not old.exists()


def test_only_what_the_store_acknowledged_is_noted(tmp_path: Path) -> None:
    def fail_the_second(verb: str, key: str) -> None:
        if verb == "put" and key == HASHES[1].key:
            raise Unavailable("503", key=key, cause="503")

    with journal(tmp_path) as begun:
        store = JournaledStore(MemoryStore(fail_the_second), begun)
        store.put(HASHES[0].key, b"")
        with pytest.raises(Unavailable):
            store.put(HASHES[1].key, b"")
        store.put(".cvmfspublished", b"")
    assert journal(tmp_path).known == (identity(HASHES[0]),)
