"""A file store flushes when its setting says so: nothing that a manifest names can be lost when it is replaced."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from include.cvmfs.commit.create import create_repository
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import prepare
from include.gateway.service.commits.intake import PackReceiver
from include.storage import file
from include.storage.errors import Unavailable
from include.storage.file import FileStore
from include.storage.kinds import Fsync, StoreOptions
from include.storage.open import open_store
from include.storage.store import Store
from tests.fakes.disk import Disk
from tests.fakes.edits import change, commit
from tests.fakes.minirepo import FQRN, NOW, master_key, signer
from tests.fakes.packs import Pack
from tests.fakes.refused import refused
from tests.fakes.trees import ListedSource, a_file

OBJECT = "data/ab/" + 38 * "0"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def opened(folder: Path, fsync: Fsync) -> Store:
    """A store of a process of its own."""
    return open_store(folder.as_uri(), options=StoreOptions(fsync=fsync)).child(FQRN)


def prepared(store: Store, files: int) -> Changeset:
    tree = ListedSource([a_file(f"f{number}", b"%d" % number) for number in range(files)])
    return prepare(tree, store=store, fqrn=FQRN, destination="/a", now=NOW)


def committed(worker: Store, gateway: Store, path: str) -> None:
    """A change whose catalogs the worker stores, and that the gateway's process switches to."""
    commit(gateway, *change(worker, path), path)


@pytest.mark.parametrize("fsync", ["switch", "always"])
def test_nothing_is_lost_that_a_manifest_names(tmp_path: Path, disk: Disk, fsync: Fsync) -> None:
    worker, gateway = opened(tmp_path / "store", fsync), opened(tmp_path / "store", fsync)
    create_repository(gateway, FQRN, master=master_key(), signer=signer(), now=NOW)
    prepared(worker, 30)
    assert disk.lost == set()  # before the worker asks for the commit, which may happen on another machine
    committed(worker, gateway, "/a")
    assert disk.lost_at_switch == [set(), set()]
    assert disk.lost == set()


def test_without_flushing_all_could_be_lost(tmp_path: Path, disk: Disk) -> None:
    store = opened(tmp_path / "store", "never")
    create_repository(store, FQRN, master=master_key(), signer=signer(), now=NOW)
    prepared(store, 3)
    committed(store, store, "/a")
    assert disk.calls == {}
    lost = disk.lost_at_switch[-1]
    assert f"store/{FQRN}/.cvmfsreflog" in lost
    assert {f"store/{FQRN}/{meta.key}" for meta in store.list("data")} <= lost


def test_a_switch_costs_the_same_flushes_whatever_the_tree(tmp_path: Path, disk: Disk) -> None:
    costs = []
    for files in (2, 60):
        store = opened(tmp_path / f"of-{files}", "switch")
        create_repository(store, FQRN, master=master_key(), signer=signer(), now=NOW)
        disk.calls.clear()
        prepared(store, files)
        costs.append(dict(disk.calls))
        disk.calls.clear()
        committed(store, store, "/a")
        costs.append(dict(disk.calls))
    first = {"syncfs": 1}
    # the worker's catalogs, those of the merge, before the reflog, before the manifest; these two and their folder
    assert costs == [first, costs[1], first, costs[1]]
    assert costs[1] == {"syncfs": 4, "fsync": 4}


def test_always_flushes_each_object_and_its_folder(tmp_path: Path, disk: Disk) -> None:
    store = FileStore(tmp_path / "store", fsync="always")
    store.put(OBJECT, b"1")
    assert disk.lost == set()
    before = disk.calls["fsync"]
    store.put_if_absent(OBJECT[:-1] + "1", b"2")
    assert (disk.calls["fsync"] - before, disk.calls["syncfs"]) == (2, 0)
    store.flush()
    assert disk.calls["syncfs"] == 0


def test_what_is_not_named_by_its_hash_is_flushed_at_once(tmp_path: Path, disk: Disk) -> None:
    store = FileStore(tmp_path / "data/ab")  # a folder that looks like one of objects
    store.put(OBJECT, b"1")
    assert disk.lost
    store.flush()
    store.put(".cvmfswhitelist", b"signed")
    assert disk.lost == set()
    assert disk.calls == {"syncfs": 1, "fsync": 2}


def test_a_payload_is_flushed_before_it_is_acknowledged(tmp_path: Path, disk: Disk) -> None:
    pack = Pack.of([(hash_bytes(one), one) for one in (b"one", b"two")])
    intake = PackReceiver(FileStore(tmp_path), len(pack.header.format()), pack.digest)
    for block in pack.blocks():
        intake.feed(block)
    intake.finish()
    assert list(FileStore(tmp_path).list("data"))
    assert (disk.lost, disk.calls["syncfs"]) == (set(), 1)


def test_a_flush_that_fails_stops_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    store.put("manifest", b"old")
    _, version = store.get_versioned("manifest")

    def fail(_: int) -> int:
        file.ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(file, "_libc", lambda: SimpleNamespace(syncfs=fail))
    with refused(Unavailable, key="", cause="EIO"):
        store.replace("manifest", b"new", expected=version)
    assert store.get("manifest") == b"old"


def test_the_real_call_takes_a_folder_and_an_absent_store_has_nothing_to_flush(tmp_path: Path) -> None:
    FileStore(tmp_path / "absent").flush()
    store = FileStore(tmp_path)
    store.put(OBJECT, b"1")
    store.flush()
    with refused(FileNotFoundError, errno=errno.ENOENT):
        file._sync_file_system(tmp_path / "absent")


def test_switching_is_the_default_of_every_way_to_a_store(tmp_path: Path) -> None:
    assert {StoreOptions().fsync, FileStore(tmp_path).fsync} == {"switch"}
    for fsync in get_args(Fsync):
        store = open_store(tmp_path.as_uri(), options=StoreOptions(fsync=fsync)).child("a").child("b")
        assert isinstance(store, FileStore)
        assert store.fsync == fsync
