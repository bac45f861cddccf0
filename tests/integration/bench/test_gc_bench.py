"""The benchmark of collections runs as it is described, finds nothing wrong, and ends in the line that others read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FIGURES = [
    "deletes_per_s", "floor_deletes_per_s", "ratio_to_floor", "mark_entries_per_s", "mark_cold_entries_per_s",
    "commits_during_ratio", "condemned_wait_s", "rss_mb",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.thorough
def test_it_ends_in_one_line_of_json(tmp_path: Path) -> None:
    size = ["--objects", "2000", "--garbage", "800", "--files", "40", "--revisions", "5", "--seconds", "1"]
    places = ["--store", (tmp_path / "store").as_uri(), "--results", str(tmp_path / "results"), "--curve", "1"]
    done = subprocess.run(
        [sys.executable, ROOT / "bench/gc.py", *size, *places],
        capture_output=True, text=True, timeout=250, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert all(result[key] > 0 for key in FIGURES), result
    assert result["excluded_s"] >= 0
    assert result["objects"] == 2000
    assert 800 <= result["garbage"] <= 900  # and the catalogs that named them
    assert result["faults"] == 0
    assert [row["objects"] for row in result["curve"]] == [500, 2000, 8000]
    assert json.loads((tmp_path / "results/gc-file.json").read_text()) == result
    for name in ("time", "memory"):
        assert ET.parse(tmp_path / f"results/gc-file-{name}.svg").getroot().tag.endswith("svg")
    assert not list((tmp_path / "store").glob("*"))
