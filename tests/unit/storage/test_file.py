"""A store in a folder: its own files, locks, errors and unfinished writes; integration/storage has the rest."""

import errno
import importlib.util
import os
import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import get_args

import pytest

from include.cvmfs.commit.create import create_repository
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import prepare
from include.errors import ErrorRow
from include.gateway.service.commits.intake import PackReceiver
from include.storage import file
from include.storage.errors import (
    STORE_FULL,
    BadKey,
    Conflict,
    Forbidden,
    NotFound,
    RequestRejected,
    StoreError,
    Unavailable,
    Unsupported,
)
from include.storage.file import FileStore, described, remove_abandoned
from include.storage.kinds import Fsync, StoreOptions
from include.storage.open import open_store
from include.storage.probe import may_delete
from include.storage.store import Store, Unfinished
from tests.fakes.disk import Disk
from tests.fakes.edits import change, commit
from tests.fakes.minirepo import FQRN, NOW, master_key, signer
from tests.fakes.packs import Pack
from tests.fakes.refused import refused
from tests.fakes.together import together
from tests.fakes.trees import ListedSource, a_file


def interpreter() -> ModuleType:
    """The module as a process of its own would have it, at its first write."""
    spec = importlib.util.find_spec("include.storage.file")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_an_absent_object_is_not_found_whatever_is_in_its_way(file_store: FileStore) -> None:
    file_store.put("file", b"x")
    file_store.put("folder/file", b"x")
    for key in ("nothing", "file/below", "folder"):
        assert file_store.head(key) is None
        assert not file_store.exists(key)
        with refused(NotFound, key=key):
            file_store.get(key)
        with pytest.raises(NotFound):
            file_store.get_range(key, 0, 1)
        with pytest.raises(NotFound):
            list(file_store.stream(key))


def test_free_bytes_are_those_of_the_file_system(tmp_path: Path) -> None:
    assert 0 < FileStore(tmp_path).free_bytes() <= shutil.disk_usage(tmp_path).total
    with pytest.raises(NotFound):
        FileStore(tmp_path / "absent").free_bytes()


def test_a_key_cannot_be_object_and_folder_at_once(file_store: FileStore) -> None:
    file_store.put("a/b", b"x")
    with refused(RequestRejected, key="a"):
        file_store.put("a", b"x")
    with refused(RequestRejected, key="a/b/c"):
        file_store.put("a/b/c", b"x")
    assert files_below(file_store.root) == {"a/b"}


def test_a_replacement_through_a_child_excludes_one_through_its_parent(file_store: FileStore) -> None:
    file_store.put("repo/manifest", b"base")
    _, base = file_store.get_versioned("repo/manifest")
    child = file_store.child("repo")

    def conflicts(replace: Callable[[], object]) -> bool:
        try:
            replace()
        except Conflict:
            return True
        return False

    through_each = (
        lambda: file_store.replace("repo/manifest", b"parent", expected=base),
        lambda: child.replace("manifest", b"child", expected=base),
    )
    assert sorted(together(partial(conflicts, replace) for replace in through_each)) == [False, True]


def test_a_replacement_is_judged_by_the_bytes_that_are_there_not_by_those_last_written(file_store: FileStore) -> None:
    first = file_store.replace("a", b"1", expected=None)
    second = file_store.replace("a", b"2", expected=first)
    for other in (b"3", b"", b"2 and more"):
        (file_store.root / "a").write_bytes(other)
        with refused(Conflict, key="a"):
            file_store.replace("a", b"4", expected=second)
    (file_store.root / "a").write_bytes(b"1")
    assert file_store.replace("a", b"2", expected=first) == second


def test_replace_of_what_is_gone_is_a_conflict_and_makes_no_folder(file_store: FileStore) -> None:
    version = file_store.replace("a", b"1", expected=None)
    file_store.delete(["a"])
    with refused(Conflict, key="new/folder/a"):
        file_store.replace("new/folder/a", b"2", expected=version)
    assert files_below(file_store.root) <= {".lock/a"}


def test_the_same_bytes_written_again_are_the_same_version(file_store: FileStore) -> None:
    file_store.put("a", b"1")
    _, first = file_store.get_versioned("a")
    file_store.put("a", b"1")
    assert file_store.get_versioned("a")[1] == first


def test_a_version_that_says_nothing_about_bytes_is_not_taken(file_store: FileStore) -> None:
    file_store.put("a", b"1")
    meta = file_store.head("a")
    assert meta is not None
    with refused(Unsupported, key="a"):
        file_store.replace("a", b"2", expected=meta.version)


def test_listing_has_every_object_below_a_folder_and_nothing_of_the_stores_own(file_store: FileStore) -> None:
    for key in ("data/ab/1", "data/ac/2", "database/3", ".cvmfspublished"):
        file_store.put(key, key.encode())
    _, version = file_store.get_versioned(".cvmfspublished")
    file_store.replace(".cvmfspublished", b"new", expected=version)
    (file_store.root / "data/ab/.~left-by-a-crash").write_bytes(b"half")
    assert {meta.key for meta in file_store.list()} == {"data/ab/1", "data/ac/2", "database/3", ".cvmfspublished"}
    assert {meta.key for meta in file_store.list("data")} == {"data/ab/1", "data/ac/2"}
    assert {meta.key for meta in file_store.list("data/")} == {"data/ab/1", "data/ac/2"}
    assert {meta.key for meta in file_store.child("data").list()} == {"ab/1", "ac/2"}
    assert list(file_store.list("nowhere")) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EACCES, Forbidden), (errno.EROFS, Forbidden), (errno.EIO, Unavailable), (errno.EISDIR, RequestRejected)],
)
def test_each_key_that_is_not_deleted_is_named_with_the_cause(
    file_store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    keys = [f"data/{n % 16:02x}/{n}" for n in range(1000)]
    for key in keys:
        file_store.put(key, b"")
    unlink = os.unlink

    def fail(path: str) -> None:
        if path.endswith("7"):
            raise OSError(number, os.strerror(number))
        unlink(path)

    monkeypatch.setattr(os, "unlink", fail)
    refusals = file_store.delete_each(iter([*keys, "absent", "x/../y"]))
    kept = {key for key in keys if key.endswith("7")}
    assert {key: type(refusal) for key, refusal in refusals.items()} == {**dict.fromkeys(kept, kind), "x/../y": BadKey}
    assert all(refusal.key == key for key, refusal in refusals.items())
    assert {meta.key for meta in file_store.list()} == kept
    assert file_store.counters.deletes == len(keys) + 1 - len(kept)


def test_a_writable_folder_may_be_deleted_from(file_store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    may_delete(file_store)
    assert files_below(file_store.root) == set()

    def fail(_: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(Forbidden):
        may_delete(file_store)


def test_bad_keys_are_refused_before_any_of_them_is_deleted(file_store: FileStore) -> None:
    file_store.put("a", b"1")
    with refused(BadKey):
        file_store.delete(["a", "../x"])
    assert file_store.exists("a")


@pytest.mark.parametrize("key", [".lock/x", "a/.lock/b", ".~x", "a/.~b", "../x", "/x"])
def test_names_of_the_stores_own_files_are_no_keys(file_store: FileStore, key: str) -> None:
    for action in (file_store.get, file_store.head, lambda k: file_store.put(k, b"")):
        with refused(BadKey):
            action(key)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, STORE_FULL), (errno.EDQUOT, STORE_FULL), (errno.EACCES, Forbidden), (errno.EROFS, Forbidden),
        (errno.EIO, Unavailable), (errno.EINVAL, RequestRejected),
    ],
)  # fmt: skip
def test_a_failed_write_has_its_cause_and_leaves_nothing(
    file_store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[StoreError] | ErrorRow[..., StoreError],
) -> None:
    file_store.put("a", b"old")

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    with refused(kind, key="a"):
        file_store.put("a", b"new")
    monkeypatch.undo()
    assert file_store.get("a") == b"old"
    assert files_below(file_store.root) == {"a"}


def test_what_a_killed_writer_left_hinders_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(threading, "get_native_id", lambda: 7)
    first, second = interpreter(), interpreter()
    with monkeypatch.context() as at_death:
        at_death.setattr(os, "rename", die)
        at_death.setattr(os, "unlink", die)
        with pytest.raises(Killed):
            first.FileStore(tmp_path).put("a", b"of the first container")
    assert len(files_below(tmp_path)) == 1
    second.FileStore(tmp_path).put("a", b"of the second container")
    assert FileStore(tmp_path).get("a") == b"of the second container"


def test_only_unfinished_writes_older_than_a_day_are_removed(file_store: FileStore) -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    ages = {"data/ab/.~old": 25, ".~older": 48, "data/ab/.~under-way": 23, "data/ab/object": 99, "data/.lock/old": 99}
    for name, hours in ages.items():
        path = file_store.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        moment = (now - timedelta(hours=hours)).timestamp()
        os.utime(path, (moment, moment))
    expected = [Unfinished(name, 4, now - timedelta(hours=ages[name])) for name in (".~older", "data/ab/.~old")]
    assert remove_abandoned(file_store, now, dry_run=True) == expected
    assert files_below(file_store.root) == set(ages)
    assert described(expected, file_store).startswith(
        "2 unfinished files of 0.0 MB of killed writers, the oldest of 2026-11-19;"
    )
    assert remove_abandoned(file_store, now) == expected
    assert files_below(file_store.root) == set(ages) - {".~older", "data/ab/.~old"}
    assert remove_abandoned(file_store, now) == []


def test_an_object_is_not_discarded_as_unfinished(file_store: FileStore) -> None:
    file_store.put("data/ab/object", b"1")
    with refused(BadKey):
        file_store.discard(Unfinished("data/ab/object", 1, datetime.now(UTC)))
    file_store.discard(Unfinished("data/ab/.~gone", 1, datetime.now(UTC)))


def test_a_store_whose_folder_vanished_is_not_made_again_elsewhere(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "mounted")
    store.child("repo").put("data/ab/1", b"")
    (tmp_path / "mounted").rename(tmp_path / "unmounted")
    for action in (lambda: store.put("data/cd/2", b""), lambda: store.child("repo").put_if_absent("data/cd/2", b"")):
        with refused(NotFound, key="data/cd/2"):
            action()
    assert not (tmp_path / "mounted").exists()
    (tmp_path / "unmounted").rename(tmp_path / "mounted")
    store.child("repo").put("data/cd/2", b"")
    assert files_below(tmp_path / "mounted") == {"repo/data/ab/1", "repo/data/cd/2"}


@pytest.mark.parametrize("there", [[], ["00", "7f"]])
def test_with_the_first_missing_folder_of_objects_all_of_them_are_made(tmp_path: Path, there: list[str]) -> None:
    # a stock receiver that shares the store renames objects into them, and makes none
    for name in there:
        (tmp_path / "repository/data" / name).mkdir(parents=True)
    FileStore(tmp_path).child("repository").put("data/ab/cd", b"")
    assert sorted(path.name for path in (tmp_path / "repository/data").iterdir()) == [f"{n:02x}" for n in range(256)]


def test_other_folders_are_made_one_by_one(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for key in ("data/abc/x", "builds/ab/x", "data/ab/cd/x"):
        store.put(key, b"")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["ab", "abc"]


# -- flushes: nothing that a manifest names can be lost when it is replaced


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
