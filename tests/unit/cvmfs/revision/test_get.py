"""A tree that was published comes back to disk as it was, whatever is there already, and never beside the target."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from include.cvmfs.errors import CatalogError, CvmfsError, ObjectDamaged, ObjectMissing
from include.cvmfs.revision.get import GetOptions, GetProgress, get
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import NOW, MiniRepository, opened, sample
from tests.fakes.refused import refused


def test_the_whole_of_a_repository_is_written(mini: MiniRepository, tmp_path: Path) -> None:
    seen: list[GetProgress] = []
    done = get(opened(mini.store).revision, "/", tmp_path / "out", progress=seen.append)
    assert (tmp_path / "out/sw/app/big").read_bytes() == b"a" * 1000 + b"b" * 500 + b"c" * 700
    assert (tmp_path / "out/sw/app/one").samefile(tmp_path / "out/sw/app/two")
    assert stat.S_ISFIFO((tmp_path / "out/sw/pipe").stat().st_mode)
    assert (tmp_path / "out/sw/link").readlink() == Path("app/run")
    assert os.getxattr(tmp_path / "out/sw/app", "user.foo") == b"bar"
    assert (done.hardlinks, done.symlinks, done.specials, done.skipped) == (1, 1, 1, 0)
    assert seen[-1].files == done.files == seen[-1].files_total - done.hardlinks
    assert (tmp_path / "out/readme").stat().st_mtime == int(NOW.timestamp())


def test_a_single_file_is_written_as_the_target(mini: MiniRepository, tmp_path: Path) -> None:
    get(opened(mini.store).revision, "/sw/app/lib/code", tmp_path / "code")
    assert (tmp_path / "code").read_bytes() == b"code"


def test_a_run_that_died_goes_on_and_fetches_only_what_is_not_whole(mini: MiniRepository, tmp_path: Path) -> None:
    get(opened(mini.store).revision, "/", tmp_path)
    (tmp_path / "sw/app/run").write_bytes(b"#!/bin/sx\n")  # same size, other bytes
    (tmp_path / "sw/plain").unlink()
    (tmp_path / "sw/app").chmod(0o500)
    (tmp_path / "sw/app/.nightshift-part-0123").write_bytes(b"of another name, which stays")
    before = mini.store.counters.gets
    done = get(opened(mini.store).revision, "/", tmp_path)
    assert done.files - done.kept == 2
    assert (tmp_path / "sw/app/run").read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE((tmp_path / "sw/app").stat().st_mode) == 0o755
    fetched = mini.store.counters.gets - before
    get(opened(mini.store).revision, "/", tmp_path)
    assert mini.store.counters.gets - before - fetched == fetched - 2
    assert [path.name for path in tmp_path.rglob(".nightshift-part*")] == [".nightshift-part-0123"]


def test_times_are_trusted_only_when_that_is_asked_for(mini: MiniRepository, tmp_path: Path) -> None:
    get(opened(mini.store).revision, "/", tmp_path)
    place = tmp_path / "readme"
    place.write_bytes(b"jello\n")
    os.utime(place, (NOW.timestamp(), NOW.timestamp()))
    get(opened(mini.store).revision, "/", tmp_path, options=GetOptions(trust_times=True))
    assert place.read_bytes() == b"jello\n"
    get(opened(mini.store).revision, "/", tmp_path)
    assert place.read_bytes() == b"hello\n"


def test_a_symlink_in_the_target_is_never_followed(mini: MiniRepository, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "sw").symlink_to(outside)
    with refused(CvmfsError):
        get(opened(mini.store).revision, "/", target)
    assert list(outside.iterdir()) == []
    (target / "sw").unlink()
    precious = outside / "precious"
    precious.write_bytes(b"precious")
    (target / "readme").unlink(missing_ok=True)
    (target / "readme").symlink_to(precious)
    get(opened(mini.store).revision, "/", target)
    assert precious.read_bytes() == b"precious"
    assert (target / "readme").read_bytes() == b"hello\n"
    assert not (target / "readme").is_symlink()


def test_a_hard_link_to_a_file_elsewhere_is_broken(mini: MiniRepository, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"hello\n")
    elsewhere.chmod(0o600)
    (tmp_path / "target").mkdir()
    (tmp_path / "target/readme").hardlink_to(elsewhere)
    get(opened(mini.store).revision, "/", tmp_path / "target")
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o600
    assert not elsewhere.samefile(tmp_path / "target/readme")


def test_a_directory_is_not_replaced_by_a_file(mini: MiniRepository, tmp_path: Path) -> None:
    (tmp_path / "readme").mkdir()
    with refused(CvmfsError):
        get(opened(mini.store).revision, "/", tmp_path)


def test_damaged_and_missing_objects_leave_nothing_half_written(mini: MiniRepository, tmp_path: Path) -> None:
    name = mini.keep(b"code")
    mini.store.put(name.key, mini.store.get(name.key)[:-1] + b"x")
    with refused(ObjectDamaged, key=name.key):
        get(opened(mini.store).revision, "/", tmp_path)
    mini.store.delete([name.key])
    with refused(ObjectMissing, key=name.key):
        get(opened(mini.store).revision, "/", tmp_path)
    assert not (tmp_path / "sw/app/lib/code").exists()
    assert list(tmp_path.rglob(".nightshift-part*")) == []


def test_external_files_and_devices_are_named_and_left_out(tmp_path: Path) -> None:
    mini = MiniRepository(MemoryStore())
    mini.file("/far", b"away", external=True)
    mini.file("/near", b"here")
    mini.build().publish()
    done = get(opened(mini.store).revision, "/", tmp_path)
    assert done.skipped == 1
    assert "/far" in done.notes[0]
    assert [path.name for path in tmp_path.iterdir()] == ["near"]


def test_set_uid_bits_are_kept_only_with_owners(tmp_path: Path) -> None:
    mini = MiniRepository(MemoryStore())
    mini.file("/tool", b"x", mode=stat.S_IFREG | 0o4755)
    mini.build().publish()
    get(opened(mini.store).revision, "/", tmp_path)
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("change", "error", "fields"),
    [
        ("mtime = 'x'", CatalogError, {"path": "/readme"}),
        ("flags = NULL", CatalogError, {"path": "/readme"}),
        ("uid = 4611686018427387904", CvmfsError, {}),
    ],
)
def test_impossible_times_and_owners_are_refused(
    tmp_path: Path, change: str, error: type[CvmfsError], fields: dict[str, str]
) -> None:
    mini = sample(MemoryStore())
    mini.damage("", f"UPDATE catalog SET {change} WHERE name = 'readme'").publish()
    with refused(error, **fields):
        get(opened(mini.store).revision, "/readme", tmp_path / "out", options=GetOptions(owners=True))
