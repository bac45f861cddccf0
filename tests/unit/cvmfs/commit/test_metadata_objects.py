"""After each switch stock tools find the hash of the reflog, and clients the names that they ask for."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from include.cvmfs.commit import metadata_objects
from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY, fence, publish, read_head
from include.cvmfs.commit.metadata_objects import NAME, alternative_key, keep_checksum, stale_checksum, store_all
from include.cvmfs.commit.repair import adopt_reflog, repair_metadata, repair_reflog
from include.cvmfs.commit.tags import add_tag, plan_rollback, remove_tags, rollback
from include.cvmfs.errors import ObjectDamaged
from include.cvmfs.format.hashes import Algorithm, hash_bytes
from include.cvmfs.format.keys import Signer
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.repository import Repository
from tests.fakes.edits import change, commit as commit_
from tests.fakes.local import DIRECTORY, LocalRepository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, opened, signer
from tests.fakes.refused import refused

NOW = 2_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / NAME


@pytest.fixture
def keeper(file: Path) -> Signer:
    return replace(signer(), reflog_checksum=file)


def two_revisions(algorithm: Algorithm = Algorithm.SHA1) -> LocalRepository:
    """Two tagged revisions."""
    repository = LocalRepository(algorithm)
    for name in ("one", "two"):
        repository.change(lambda edit, name=name: edit.add(f"/{name}", DIRECTORY), tag=name)
    return repository


def adopt(repository: LocalRepository, keeper: Signer) -> None:
    before = repository.store.objects[MANIFEST_KEY]
    add_tag(repository.store, FQRN, "lost", None, signer=signer(), now=NOW)
    repository.store.objects[MANIFEST_KEY] = before
    assert adopt_reflog(repository.store, FQRN, signer=keeper, now=NOW)


def commit(repository: LocalRepository, keeper: Signer) -> None:
    commit_(repository.store, *change(repository.store, "/new"), "/new", signer=keeper, now=NOW)


def call(action: Callable[..., object], *args: object) -> Callable[[LocalRepository, Signer], object]:
    return lambda repository, keeper: action(repository.store, FQRN, *args, signer=keeper, now=NOW)


SWITCHES: dict[str, Callable[[LocalRepository, Signer], object]] = {
    "commit": commit,
    "tag": call(add_tag, "again", "one"),
    "tag removed": call(remove_tags, ["one"]),
    "rollback": lambda repository, keeper: rollback(
        repository.store, plan_rollback(repository.store, FQRN, "one"), signer=keeper, now=NOW
    ),
    "reflog repaired": call(repair_reflog),
    "reflog adopted": adopt,
    "fence": call(fence),
}
UNCHANGED = {"metadata repaired": call(repair_metadata), "nothing to adopt": call(adopt_reflog)}


@pytest.mark.parametrize("switch", SWITCHES | UNCHANGED)
@pytest.mark.parametrize("algorithm", [Algorithm.SHA1, Algorithm.SHAKE128])
def test_each_switch_keeps_the_hash_of_the_reflog(
    file: Path, keeper: Signer, switch: str, algorithm: Algorithm
) -> None:
    repository = two_revisions(algorithm)
    file.write_text("0" * 40)
    (SWITCHES | UNCHANGED)[switch](repository, keeper)
    named = repository.opened().manifest.reflog
    assert file.read_bytes() == str(named).encode()
    assert named.digest == hash_bytes(repository.store.objects[REFLOG_KEY], algorithm).digest
    assert [path.name for path in file.parent.iterdir()] == [NAME]


def test_mode_and_owner_of_the_file_stay(file: Path) -> None:
    file.write_text("0" * 40)
    file.chmod(0o664)
    if os.geteuid() == 0:
        os.chown(file, 12345, 12346)
    before = file.stat()
    assert keep_checksum(file, hash_bytes(b"reflog"))
    after = file.stat()
    assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (before.st_uid, before.st_gid, 0o664)
    assert keep_checksum(file, hash_bytes(b"reflog"))
    assert file.stat().st_mtime_ns == after.st_mtime_ns


def test_a_checksum_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    repository, nowhere = LocalRepository(), tmp_path / "absent" / NAME
    with caplog.at_level(logging.WARNING):
        commit(repository, replace(signer(), reflog_checksum=nowhere))
    manifest = repository.opened().manifest
    assert manifest.revision == 1
    assert f"write {manifest.reflog} into it" in caplog.text
    assert str(nowhere) in caplog.text


def test_stock_tools_with_another_reflog_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reflog = hash_bytes(b"reflog")
    monkeypatch.setattr(metadata_objects, "STOCK_SPOOL", tmp_path)
    assert stale_checksum(FQRN, reflog) is None  # no stock tools work on it here
    file = tmp_path / FQRN / NAME
    file.parent.mkdir()
    file.write_text("0" * 40)
    warning = stale_checksum(FQRN, reflog)
    assert warning is not None
    assert f"write {reflog} into {file}" in warning
    assert f"`reflog_checksum: {file}`" in warning
    file.write_text(f"{reflog}\n")
    assert stale_checksum(FQRN, reflog) is None


# -- alternative names, which clients of a repository with `A yes` ask for


@pytest.fixture
def repository() -> LocalRepository:
    """Two tagged revisions, then the flag."""
    repository = two_revisions()
    head = read_head(repository.store, FQRN)
    publish(repository.store, head, replace(head.manifest, alt_paths=True), signer=signer(), now=NOW)
    return repository


def read_by_alternative_names(store: MemoryStore) -> Repository:
    """The repository, where each object that the manifest names is found under its alternative name only."""
    manifest = Manifest.parse(store.get(MANIFEST_KEY)).manifest
    renamed = MemoryStore()
    renamed.objects = dict(store.objects)
    for name in manifest.named:
        del renamed.objects[name.key]
    for name in manifest.named:
        renamed.objects[name.key] = store.objects[alternative_key(name)]
    return opened(renamed)


@pytest.mark.parametrize("switch", SWITCHES)
def test_after_every_switch_a_client_reads_by_alternative_names(repository: LocalRepository, switch: str) -> None:
    before = repository.opened().manifest
    SWITCHES[switch](repository, signer())
    seen = read_by_alternative_names(repository.store)
    assert seen.manifest.alt_paths
    assert seen.manifest != before
    assert seen.revision.lookup("/one") is not None
    assert seen.tags()
    assert seen.meta() is not None
    assert repository.problems() == []


def test_alternative_names_are_there_before_the_manifest_that_needs_them(repository: LocalRepository) -> None:
    written: list[str] = []

    def note(verb: str, key: str) -> None:
        if verb in ("put", "replace") and key.startswith(".cvmfs"):
            written.append(key)

    repository.store.before = note
    commit(repository, signer())
    manifest = repository.opened().manifest
    fresh = {alternative_key(manifest.root), alternative_key(manifest.history)}
    assert set(written[:-2]) == fresh  # the certificate's and the meta info's are there
    assert written[-2:] == [REFLOG_KEY, MANIFEST_KEY]


def test_what_cannot_be_copied_is_not_switched_to(repository: LocalRepository) -> None:
    meta = repository.opened().manifest.meta
    repository.store.objects[meta.key] += b"?"
    before = repository.store.objects[MANIFEST_KEY]
    with refused(ObjectDamaged, key=meta.key):
        commit(repository, signer())
    assert repository.store.objects[MANIFEST_KEY] == before


def test_a_repository_without_the_flag_gets_no_alternative_names() -> None:
    repository = LocalRepository()
    commit(repository, signer())
    assert not [key for key in repository.store.objects if key.startswith(".cvmfsalt-")]


@pytest.mark.parametrize(("slow_s", "threads"), [(60.0, 1), (0.0, 4)])
def test_objects_are_stored_at_once_where_the_store_is_slow(
    monkeypatch: pytest.MonkeyPatch, slow_s: float, threads: int
) -> None:
    monkeypatch.setattr(metadata_objects, "_SLOW_S", slow_s)
    others = threading.Barrier(threads, timeout=30)
    begun: list[str] = []

    def put(verb: str, key: str) -> None:
        begun.append(key)
        if len(begun) > 1:  # the first is timed
            others.wait()

    store = MemoryStore(put)
    store_all(store, [(f"data/{number}", b"x") for number in range(5)])
    assert len(store.objects) == 5
