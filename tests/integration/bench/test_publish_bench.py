"""The benchmark of publications runs as it is described, and ends in the line that others read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KEYS = [
    "files", "files_per_s", "floor_files_per_s", "ratio_to_floor", "puts", "heads", "cpu_s_per_1000", "rss_mb",
    "lease_held_s", "second_night_files_per_s", "second_night_floor", "second_night_ratio", "second_night_puts",
    "changed_files", "stages_us", "fsync",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.thorough
def test_it_ends_in_one_line_of_json(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "bench/publish.py", "--files", "200", "--folders", "2", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--store", (tmp_path / "store").as_uri(), "--past", "0", "--past-share", "0.02"],
        capture_output=True, text=True, timeout=200, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert list(result) == KEYS
    assert list(result["fsync"]) == ["never", "switch", "always"]
    assert all(row["files_per_s"] > 0 for row in result["fsync"].values())
    assert (result["files"], result["changed_files"]) == (200, 10)
    assert all(us > 0 for us in result["stages_us"].values())
    assert result["second_night_puts"] <= 10 + 3 + 8  # changed files, their catalogs, and those of reserve and publish
    assert not list((tmp_path / "store").glob("*"))


def test_plots_are_sound_svg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from plot import Series, line_plot

    text = line_plot("a < b", "x", "y", [Series("one", [(1, 10), (2, 900), (128, 1234)])], log_x=True)
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    assert len(root.findall(".//{http://www.w3.org/2000/svg}circle")) == 3


def test_bars_are_sound_svg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from plot import bar_plot

    root = ET.fromstring(bar_plot("a < b", "µs", [("old", {"read": 10, "hash": 5}), ("new", {"read": 7})]))
    assert len(root.findall(".//{http://www.w3.org/2000/svg}rect")) == 1 + 2 + 3
