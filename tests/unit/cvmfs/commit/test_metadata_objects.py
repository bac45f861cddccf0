"""Stock tools of the gateway's machine find the hash of the reflog that the manifest names after each switch."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from include.cvmfs.commit import metadata_objects
from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY, commit_change, read_head, store_all
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.metadata_objects import NAME, keep_checksum, stale_checksum
from include.cvmfs.commit.repair import adopt_reflog, repair_metadata, repair_reflog
from include.cvmfs.commit.rollback import plan_rollback, rollback
from include.cvmfs.commit.tags import add_tag
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import Algorithm, hash_bytes
from include.cvmfs.format.keys import Signer
from tests.fakes.local import DIRECTORY, LocalRepository
from tests.fakes.minirepo import FQRN, signer

NOW = 2_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / NAME


@pytest.fixture
def keeper(file: Path) -> Signer:
    return replace(signer(), reflog_checksum=file)


def commit(repository: LocalRepository, keeper: Signer) -> None:
    old = read_head(repository.store, FQRN).manifest.root
    edit = Edit(CatalogCache(repository.store), old)
    edit.add("/new", DIRECTORY)
    new = edit.finish(NOW)
    store_all(repository.store, [(packed.hash.key, packed.data) for packed in new.catalogs])
    commit_change(
        repository.store, fqrn=FQRN, signer=keeper, lease_path="/new", old_root=old, new_root=new.hash, now=NOW
    )


def adopt(repository: LocalRepository, keeper: Signer) -> None:
    before = repository.store.objects[MANIFEST_KEY]
    add_tag(repository.store, FQRN, "lost", None, signer=signer(), now=NOW)
    repository.store.objects[MANIFEST_KEY] = before
    assert adopt_reflog(repository.store, FQRN, signer=keeper, now=NOW)


SWITCHES: dict[str, Callable[[LocalRepository, Signer], object]] = {
    "commit": commit,
    "tag": lambda repository, keeper: add_tag(repository.store, FQRN, "again", "one", signer=keeper, now=NOW),
    "rollback": lambda repository, keeper: rollback(
        repository.store, plan_rollback(repository.store, FQRN, "one"), signer=keeper, now=NOW
    ),
    "reflog repaired": lambda repository, keeper: repair_reflog(repository.store, FQRN, signer=keeper, now=NOW),
    "metadata repaired": lambda repository, keeper: repair_metadata(repository.store, FQRN, signer=keeper, now=NOW),
    "reflog adopted": adopt,
    "nothing to adopt": lambda repository, keeper: adopt_reflog(repository.store, FQRN, signer=keeper, now=NOW),
}


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("algorithm", [Algorithm.SHA1, Algorithm.SHAKE128])
def test_after_every_switch_the_file_has_the_hash_of_the_reflog(
    file: Path, keeper: Signer, switch: str, algorithm: Algorithm
) -> None:
    repository = LocalRepository(algorithm)
    for name in ("one", "two"):
        repository.change(lambda edit, name=name: edit.add(f"/{name}", DIRECTORY), tag=name)
    file.write_text("0" * 40)
    SWITCHES[switch](repository, keeper)
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


def test_a_file_that_cannot_be_written_is_said_and_the_commit_stands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository, nowhere = LocalRepository(), tmp_path / "absent" / NAME
    with caplog.at_level(logging.WARNING):
        commit(repository, replace(signer(), reflog_checksum=nowhere))
    manifest = repository.opened().manifest
    assert manifest.revision == 1
    assert f"write {manifest.reflog} into it" in caplog.text
    assert str(nowhere) in caplog.text


def test_stock_tools_of_this_machine_that_know_another_reflog_are_named_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reflog = hash_bytes(b"reflog")
    monkeypatch.setattr(metadata_objects, "STOCK_SPOOL", tmp_path)
    assert stale_checksum(FQRN, reflog) is None  # no stock tools work on it here
    file = tmp_path / FQRN / NAME
    file.parent.mkdir()
    file.write_text("0" * 40)
    said = stale_checksum(FQRN, reflog)
    assert said is not None
    assert f"write {reflog} into {file}" in said
    assert f"`reflog_checksum: {file}`" in said
    file.write_text(f"{reflog}\n")
    assert stale_checksum(FQRN, reflog) is None
