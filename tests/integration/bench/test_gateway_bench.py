"""The benchmark of the gateway runs as it is described, and ends in the line that others read."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WANTED = [
    "commits_per_s", "commit_p50_ms", "commit_p95_ms", "lease_p95_ms", "lease_pairs_per_s", "single_commit_p50_ms",
    "merge_commits_per_s", "merge_entries_per_s", "revisions_per_s", "floor_transactions_per_s",
    "floor_revisions_per_s",
]  # fmt: skip


@pytest.mark.slow
def test_it_ends_in_one_line_of_json(tmp_path: Path) -> None:
    load = ["--publishers", "4", "--slots", "2", "--seconds", "1"]
    others = ["--turns", "2", "--merges", "2", "--entries", "50"]
    places = ["--store", (tmp_path / "store").as_uri(), "--results", str(tmp_path / "results")]
    done = subprocess.run(
        [sys.executable, ROOT / "bench/gateway.py", *load, *others, *places],
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert all(result[key] > 0 for key in WANTED), result
    assert result["merge_entries"] == 50
    assert result["faults"] == 0
    assert list(result["single_commit_p50_ms_at"]) == ["0", "1000", "10000"]
    assert [row["publishers"] for row in result["curve"]] == [1, 2, 4]
    assert json.loads((tmp_path / "results/gateway.json").read_text()) == result
    for name in ("commits", "latency"):
        assert ET.parse(tmp_path / f"results/gateway-{name}.svg").getroot().tag.endswith("svg")
    assert not list((tmp_path / "store").glob("*"))
