"""Packing in processes of their own gives the same as packing at once, fails as loudly, and leaves nothing running."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.errors import SourceError
from include.cvmfs.format.hashes import Algorithm, DigestSet, hash_of_key, identity
from include.cvmfs.format.objects import Compressor
from include.cvmfs.ingest import packing, processes
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.sources.tarball import TarSource
from include.storage.errors import RequestRejected, Unavailable
from include.storage.file import FileStore
from tests.fakes.archives import archive, file, hardlink
from tests.fakes.recount import read_back
from tests.fakes.refused import refused

MEMBERS = [file(f"d{number % 5}/f{number:04d}", b"%d" % (number % 900) * 50) for number in range(1000)]
MEMBERS += [hardlink("d4/link", "d4/f0999"), file("large", b"l" * 300_000), file("last", b"last")]
MANY = archive(MEMBERS)


def run(store: FileStore, data: bytes = MANY, **fields: object) -> Changeset:
    arguments: dict[str, object] = {"fqrn": "sw.example.org", "destination": "/a/b"} | fields
    now = datetime(2026, 7, 1, tzinfo=UTC)
    return prepare(TarSource(iter([data]), "x.tar"), store=store, now=now, **arguments)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two processes after ten files; none is left at the end."""
    monkeypatch.setattr(packing, "PROCESSES_AFTER_FILES", 10)
    monkeypatch.setattr(processes, "useful", lambda: 2)
    others = _children()
    yield
    assert _children() <= others


def _children() -> set[str]:
    """The processes that this one started, ended ones that were not waited for included."""
    found: set[str] = set()
    for thread in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that ends just now
            found |= set((thread / "children").read_text().split())
    return found


def test_the_same_objects_and_numbers_come_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, alone = FileStore(tmp_path / "apart"), FileStore(tmp_path / "alone")
    first = run(apart)
    monkeypatch.setattr(processes, "useful", lambda: 0)
    assert run(alone) == first
    assert {meta.key: apart.get(meta.key) for meta in apart.list()} == {m.key: alone.get(m.key) for m in alone.list()}
    assert (apart.counters.puts, apart.counters.bytes_put) == (alone.counters.puts, alone.counters.bytes_put)
    assert apart.counters.puts == first.objects_new
    read_back(apart, first.reference)


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("compressor", Compressor)
def test_known_objects_are_not_written(tmp_path: Path, algorithm: Algorithm, compressor: Compressor) -> None:
    options = PrepareOptions(algorithm=algorithm, compressor=compressor, index=tmp_path / "index.db")
    store = FileStore(tmp_path / "store")
    first = run(store, options=options)
    known = DigestSet(identity(hash_of_key(meta.key)) for meta in store.list())
    again = FileStore(tmp_path / "again")
    second = run(again, options=options, known=known)
    assert (second.root, second.objects_new) == (first.root, 0)
    assert not list(again.list())


def test_a_full_disk_stops_the_preparation_with_the_stores_own_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    run(store, archive(MEMBERS[:5]))
    for place in (tmp_path / "store" / "data").iterdir():
        if not any(place.iterdir()):
            place.rmdir()
            place.write_bytes(b"in the way")
    with refused(RequestRejected):
        run(store)


def test_a_process_that_dies_is_an_error_that_may_be_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = processes.Processes.pack
    count = 0

    def pack(self: processes.Processes, ticket: object, content: bytes) -> None:
        nonlocal count
        count += 1
        if count == 300:
            self._all[0]._process.kill()
        original(self, ticket, content)

    monkeypatch.setattr(processes.Processes, "pack", pack)
    with refused(Unavailable, cause="process"):
        run(FileStore(tmp_path / "store"))


def test_a_bad_source_stops_the_processes(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        run(FileStore(tmp_path / "store"), archive([*MEMBERS, file("last", b"twice")]))
    with pytest.raises(SourceError):
        run(FileStore(tmp_path / "store"), MANY[: len(MANY) // 2])


def test_processes_are_started_only_where_they_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PROCESSES_AFTER_FILES", 1000)
    started: list[object] = []
    monkeypatch.setattr(processes, "Processes", lambda *a, **k: started.append(a))
    run(FileStore(tmp_path / "store"), archive(MEMBERS[:100]))
    assert not started
