"""A collection keeps scans on the local disk and lists in the store for the next one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from include.cvmfs.collect.scan import ScanCache, WorkingFolder
from include.cvmfs.commit.metadata_objects import REFLOG_KEY
from include.cvmfs.coordination.condemned import PREFIX
from include.cvmfs.coordination.generation import KEY, Generation
from include.cvmfs.format.database import Reflog
from tests.fakes.airflowhome import ROOT
from tests.fakes.collecting import ALL_ORPHANS, Place
from tests.fakes.refused import refused


def test_lists_and_what_is_kept_of_catalogs_do_not_grow_for_ever(place: Place) -> None:
    for night in range(12):
        place.publish("/a", {"f": b"%d" % night})
        place.pass_time(days=1)
        place.collect()
    lists = [key for key in place.store.objects if key.startswith(PREFIX)]
    generation = Generation.parse(place.store.get(KEY))
    assert len(generation.past) <= 3
    assert len(lists) < 40
    assert sum(1 for _ in place.folder.glob("scans/*/*")) < 20
    assert len(Reflog.load(place.store.get(REFLOG_KEY))) < 25
    assert place.problems() == []


def test_a_full_disk_stops_it_before_any_deletion(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.publish("/a", {"f": b"x"})
    before = place.objects()

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with place.collection() as collection:
        collection.begin()
        with refused(OSError, errno=28):
            collection.mark()
    assert place.objects() == before


def test_a_kept_scan_that_rotted_is_read_again(place: Place) -> None:
    place.publish("/a", {"f": b"x"})
    place.collect()
    for file in place.folder.glob("scans/*/*"):
        data = bytearray(file.read_bytes())
        data[-30] ^= 1
        file.write_bytes(bytes(data))
    place.pass_time(days=3)
    assert place.collect(ALL_ORPHANS).catalogs_fetched > 0
    assert place.problems() == []


def test_a_scan_that_another_collection_removes_is_not_missed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection that has ended tidies up while the next one, or a dry run, begins in the same folder."""
    place.publish("/a", {"f": b"x"})
    write = Path.write_bytes

    def tidied(self: Path, data: bytes) -> int:
        size = write(self, data)
        ScanCache(place.store, place.folder / "scans").forget(lambda digest: False)
        return size

    monkeypatch.setattr(Path, "write_bytes", tidied)
    assert place.collect(ALL_ORPHANS).ok
    assert place.problems() == []


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_stays(tmp_path: Path) -> None:
    used = WorkingFolder(tmp_path)
    program = (
        "import os, pathlib, signal, sys\n"
        "from include.cvmfs.collect.scan import WorkingFolder\n"
        "left = WorkingFolder(pathlib.Path(sys.argv[1]))\n"
        "(left.path / 'kept').mkdir()\n"
        "(left.path / 'kept' / '00').write_bytes(b'records')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    other = WorkingFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {used.path, other.path}
    other.close()
    used.close()
    assert list(tmp_path.iterdir()) == []


def test_a_collection_leaves_nothing_in_its_folder_but_scans(place: Place) -> None:
    place.publish("/a", {"f": b"x"})
    (place.folder / "working-left" / "kept").mkdir(parents=True)
    place.collect()
    assert [found.name for found in place.folder.iterdir()] == ["scans"]
