"""The benchmark of stage-out runs as it is described, loses nothing, and ends in the line that others read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FIGURES = [
    "files_per_job_mean", "lag_p50_s", "lag_p95_s", "files_per_block_mean", "with_history_ratio", "failed", "ledger_mb",
    "random_links_files_per_s",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.server("mariadbd")
def test_it_ends_in_one_line_of_json_and_every_file_has_its_end(tmp_path: Path, need: Callable[[str], str]) -> None:
    need("mariadbd")
    size = ["--minutes", "0.2", "--rate", "10", "--users", "6", "--sites", "4", "--mean", "1", "--history", "1000"]
    spread = ["--random-rate", "2", "--random-minutes", "0.1", "--results", str(tmp_path / "results")]
    done = subprocess.run(
        [sys.executable, ROOT / "bench/stageout.py", *size, *spread],
        capture_output=True, text=True, timeout=900, env={**os.environ, "TMPDIR": "/tmp"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert all(key in result for key in FIGURES), result
    assert (result["lost"], result["doubled"], result["faults"], result["kills"]) == (0, 0, 0, 2)
    assert json.loads((tmp_path / "results/stageout.json").read_text()) == result
    assert ET.parse(tmp_path / "results/stageout.svg").getroot().tag.endswith("svg")
