"""Each benchmark runs as it is described and ends in the line that others read; and what they make of what they see."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench.distance.link import impossible
from include.cvmfs.commit.commit import switch
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key
from include.nightlies.rules.publication import Phase, Publication, State

FEDERATION = [
    "whole_ratio_min", "lazy_ratio_50", "lazy_ratio_100", "lazy_tuned_ratio_min", "application_over_storage_25",
    "application_over_storage_100", "storage_100_mb_s", "rtt_error_max", "minutes",
]  # fmt: skip
BENCH = Path(__file__).parents[3] / "bench"
GATEWAY = [
    "commits_per_s", "commit_p50_ms", "commit_p95_ms", "lease_p95_ms", "lease_pairs_per_s", "single_commit_p50_ms",
    "merge_commits_per_s", "merge_entries_per_s", "revisions_per_s", "floor_transactions_per_s",
    "floor_revisions_per_s", "silent_acquire_p50_ms", "silent_acquire_p99_ms", "silent_commit_p99_ms",
]  # fmt: skip
GC = [
    "deletes_per_s", "floor_deletes_per_s", "ratio_to_floor", "mark_entries_per_s", "mark_cold_entries_per_s",
    "commits_during_ratio", "condemned_wait_s", "rss_mb",
]  # fmt: skip
PUBLISH = [
    "files", "files_per_s", "floor_files_per_s", "ratio_to_floor", "puts", "heads", "cpu_s_per_1000", "rss_mb",
    "lease_held_s", "second_night_files_per_s", "second_night_floor", "second_night_ratio", "second_night_puts",
    "changed_files", "stages_us", "fsync", "store", "compression", "machine",
]  # fmt: skip
STAGEOUT = [
    "files_per_job_mean", "lag_p50_s", "lag_p95_s", "files_per_block_mean", "with_history_ratio", "failed", "ledger_mb",
    "random_links_files_per_s",
]  # fmt: skip
BEGAN = datetime(2026, 11, 21, 2, tzinfo=UTC)
PUBLICATION = Publication(
    **dict.fromkeys((name for name in Publication.__dataclass_fields__), None)  # type: ignore[arg-type]
    | {"id": 1, "state": State.PUBLISHED, "phase": Phase.PUBLISH, "seconds": {"prepare": 2.0, "commit": 1.0}}
    | {"ended_at": BEGAN + timedelta(seconds=20)}
)


def measured(name: str, options: str, folder: Path, *, store: bool = True, results: bool = True) -> dict[str, Any]:
    """Return the last line of a benchmark; its store is empty, its results are the same, its plots are SVG."""
    words = [sys.executable, "-m", f"bench.{name}", *options.split()]
    words += ["--store", (folder / "store").as_uri()] if store else []
    words += ["--results", str(folder / "results")] if results else []
    place = {**os.environ, "TMPDIR": str(folder) if store else "/tmp"}  # a database's server may not enter the folder
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, env=place, cwd=BENCH.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not list((folder / "store").glob("*"))
    if results:
        (written,) = (folder / "results").glob("*.json")
        assert json.loads(written.read_text()) == result
        plots = list((folder / "results").glob("*.svg"))
        assert plots
        assert all(ET.parse(plot).getroot().tag.endswith("svg") for plot in plots)
    return result


@pytest.mark.slow
@pytest.mark.thorough
def test_the_gateway_is_measured(tmp_path: Path) -> None:
    load = "--publishers 2 --slots 2 --processes 1 --seconds 0.5"
    result = measured("gateway", f"{load} --turns 2 --merges 2 --entries 50 --past-share 0.02", tmp_path)
    assert all(result[key] > 0 for key in GATEWAY), result
    assert (result["merge_entries"], result["faults"]) == (50, 0)
    assert list(result["single_commit_p50_ms_at"]) == ["0", "20", "200"]
    assert [row["publishers"] for row in result["curve"]] == [1, 2]


@pytest.mark.slow
@pytest.mark.thorough
def test_collections_are_measured(tmp_path: Path) -> None:
    size = "--objects 2000 --garbage 800 --files 40 --revisions 5 --seconds 1 --curve 1"
    result = measured("gc", size, tmp_path)
    assert all(result[key] > 0 for key in GC), result
    assert result["excluded_s"] >= 0
    assert (result["objects"], result["faults"]) == (2000, 0)
    assert 800 <= result["garbage"] <= 900  # and the catalogs that named them
    assert [row["objects"] for row in result["curve"]] == [500, 2000, 8000]


@pytest.mark.slow
@pytest.mark.thorough
def test_publications_are_measured(tmp_path: Path) -> None:
    size = "--files 200 --folders 2 --rounds 1 --past 0 --past-share 0.02 --compression fast"
    result = measured("publish", size, tmp_path)
    assert list(result) == PUBLISH
    assert list(result["fsync"]) == ["never", "switch", "always"]
    assert all(row["files_per_s"] > 0 for row in result["fsync"].values())
    assert (result["files"], result["changed_files"]) == (200, 10)
    assert all(us > 0 for us in result["stages_us"].values())
    assert result["second_night_puts"] <= 10 + 3 + 8  # changed files, their catalogs, and those of reserve and publish


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.server("mariadbd")
def test_stage_out_is_measured_and_every_file_has_its_end(tmp_path: Path, need: Callable[[str], str]) -> None:
    need("mariadbd")
    size = "--minutes 0.2 --rate 10 --users 6 --sites 4 --mean 1 --history 1000 --random-rate 2 --random-minutes 0.1"
    result = measured("stageout", f"{size} --rucio-minutes 0.1", tmp_path, store=False)
    assert all(key in result for key in STAGEOUT), result
    assert (result["lost"], result["doubled"], result["faults"], result["kills"]) == (0, 0, 0, 2)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.server("nginx")
@pytest.mark.server("curl")
@pytest.mark.skipif(bool(impossible()), reason=f"no link: {impossible()}")
def test_reading_at_a_distance_is_measured_and_cut_connections_end_well(tmp_path: Path) -> None:
    words = "--tables strategies pairs cut --rounds 1 --pairs 2 --file-mb 70 --events-mb 2"
    command = [sys.executable, "-m", "bench.federation", *words.split(), "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=BENCH.parent)
    *lines, last = done.stdout.splitlines()
    result = json.loads(last)
    assert list(result) == FEDERATION, done.stderr
    assert result["lazy_ratio_100"] > 1
    assert min(result["application_over_storage_25"], result["application_over_storage_100"]) > 1
    right = {line.split()[1] for line in lines if line.startswith("ours, ") and line.endswith(" right")}
    assert right == {"whole", "lazy", "application", "storage"}
    assert {path.name for path in tmp_path.glob("*.svg")} == {"federation-application.svg", "federation-lazy.svg"}


@pytest.mark.slow
def test_very_many_entries_are_measured(tmp_path: Path) -> None:
    result = measured("million", "--entries 1500 --check", tmp_path, results=False)
    assert (result["entries"], result["problems"], result["catalogs"]) == (1500, 0, 3)
    assert result["rss_mb"] < 400


def test_the_stream_of_very_many_entries_is_an_archive() -> None:
    from bench.million import stream

    with tarfile.open(fileobj=io.BytesIO(b"".join(stream(2345)))) as archive:
        names = archive.getnames()
    assert len(names) == len(set(names)) == 2345
    assert sum(name.endswith("/.cvmfscatalog") for name in names) == 3


def test_an_acknowledgement_that_does_not_stand_is_found(tmp_path: Path) -> None:
    from bench.gatewaying.changes import prepared
    from bench.gatewaying.standing import faults
    from bench.publishing.places import Place
    from bench.publishing.repositories import FQRN, TOP

    master, signer, now = generate_master(), generate_repository_key(FQRN, datetime.now(UTC)), int(time.time())
    public_key = tmp_path / "key.pub"
    public_key.write_bytes(format_public_key(master.public_key()))
    place = Place((tmp_path / "store").as_uri())
    store = place.open()
    head = create_repository(store, FQRN, master=master, signer=signer, now=datetime.now(UTC))
    [work] = prepared(place, 1, 1)
    for tree in (None, 0, 1):
        edit = Edit(CatalogCache(store), head.manifest.root)
        if tree is None:
            for path in (TOP, f"{TOP}/slot00", work.destination):
                edit.make_nested(path, Dirent("", 0o40755, size=4096, linkcount=2))
        else:
            changeset = work.changesets[tree]
            edit.hang(changeset.reference, changeset.root_entry, changeset.statistics.total)
        head = switch(store, head, edit.finish(now), signer=signer, now=now)
    told = [
        {"destination": work.destination, "root": changeset.root.text, "revision": 2 + tree}
        for tree, changeset in enumerate(work.changesets)
    ]
    assert faults(place, public_key, told, 1) == []
    assert any("nobody was told of revision 2" in fault for fault in faults(place, public_key, told[1:], 1))
    assert any("holds" in fault for fault in faults(place, public_key, [told[0], {**told[0], "revision": 3}], 1))
    lost = faults(place, public_key, [*told, {**told[0], "revision": 4}], 1)
    assert any("is at revision 3, not 4" in fault for fault in lost)
    assert any("revision 4 was acknowledged and is none" in fault for fault in lost)


@pytest.fixture
def times() -> ModuleType:
    from bench.nights import times

    return times


def test_each_second_outside_is_told_once_and_by_the_task_that_ran(times: ModuleType) -> None:
    ran = times.Ran
    tasks = [ran("plan", 1, 3), ran("links", 2, 4), ran("artifact.prepare", 5, 10), ran("verify", 12, 13)]
    assert times.attributed([(6, 9), (7, 10)], tasks, (0, 14)) == {
        "links": 2, "plan": 1, "verify": 1, "artifact.prepare": 1, "between tasks": 5,
    }  # fmt: skip


def test_an_artifact_is_worked_on_when_the_ledger_says_so(times: ModuleType) -> None:
    at = BEGAN.timestamp()
    assert times.preparing([PUBLICATION], {1: BEGAN}) == [(at, at + 2)]
    assert times.publishing([PUBLICATION]) == [(at + 19, at + 20)]
    assert times.publishing([replace(PUBLICATION, ended_at=None)]) == []
    assert times.covered([(1, 3), (2, 4), (6, 7)]) == 4
    assert times.at_once([(1, 3), (2, 4)], [0, 2, 3, 9]) == [0, 2, 1, 0]


def test_latest_that_moves_back_is_seen() -> None:
    from bench.backfill import Latest

    lab: Any = None
    latest = Latest(lab)
    for build in ("b20261118", "b20261118", "b20261120", "b20261119", "b20261121"):
        latest.note(build)
    assert latest.samples == 5
    assert latest.seen == ["b20261118", "b20261120", "b20261119", "b20261121"]
    assert latest.wrong == ["from b20261120 back to b20261119"]


def test_the_next_night_has_most_files_of_the_night_before(tmp_path: Path) -> None:
    from bench.day import Pool, pack

    (tmp_path / "pool").write_bytes(bytes(range(256)) * 400)
    pool = Pool(tmp_path / "pool", (0, 10, 3000, 90_000))
    sums = []
    for build, before in (("b1", ""), ("b2", "b1")):
        made = pack(pool, tmp_path, build, "P0", 400, before)
        with tarfile.open(tmp_path / made.url) as archive:
            sums.append({member.name: archive.extractfile(member).read() for member in archive})  # type: ignore[union-attr]
        assert made.size == (tmp_path / made.url).stat().st_size
    first, second = sums
    assert len(first) == len(second) == 400
    files = [name for name, content in first.items() if content]
    assert 0.6 < sum(first[name] == second[name] for name in files) / len(files) < 0.8
    assert len({content for content in first.values() if len(content) > 10}) == sum(len(c) > 10 for c in first.values())


def test_processor_time_is_that_of_the_task_that_used_it() -> None:
    from bench.day import _part

    tasks = {"1": "artifact.prepare", "2": "nightlies__example__org.collect", "3": "plan"}
    names = ("task 1", "task 2", "task 3", "task 4", "weed", "gateway", "scheduler", "fts")
    assert [_part(name, tasks) for name in names] == [
        "publisher", "collection", "other tasks", "other tasks", "store", "gateway", "Airflow", "other tasks",
    ]  # fmt: skip


def test_plots_are_sound_svg() -> None:
    from bench.plot import Series, bar_plot, line_plot

    line = ET.fromstring(line_plot("a < b", "x", "y", [Series("one", [(1, 10), (2, 900), (128, 1234)])], log_x=True))
    assert len(line.findall(".//{http://www.w3.org/2000/svg}circle")) == 3
    bars = ET.fromstring(bar_plot("a < b", "µs", [("old", {"read": 10, "hash": 5}), ("new", {"read": 7})]))
    assert len(bars.findall(".//{http://www.w3.org/2000/svg}rect")) == 1 + 2 + 3
