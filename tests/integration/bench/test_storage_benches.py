"""The benchmarks of the storage benchmarks run as they are described, and end in the line that others read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.server("fio")]


def last_line(*command: str) -> dict[str, object]:
    """What a benchmark prints last; codes 1 and 3 say that figures are not as wanted, or the machine not quiet."""
    done = subprocess.run([sys.executable, *command, "--results", ""], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in {0, 1, 3}, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.server("weed")
def test_the_bench_of_the_harness_has_its_three_ratios() -> None:
    small = ("--servers", "weed", "--rounds", "1", "--seconds", "1", "--streams", "4", "--fio-mib", "16")
    result = last_line("bench/harness.py", *small)
    assert list(result)[:3] == ["s3_ratio", "s3_latency_ratio", "fio_ratio"]
    assert all(result[key] > 0 for key in list(result)[:3])


def test_the_bench_of_verdicts_counts_those_that_are_right() -> None:
    result = last_line("bench/verdict.py", "--trials", "1", "--targets", "path", "--rounds", "4")
    assert set(result["path"]) == {"unchanged", "slowed", "noise"}
    assert result["path"]["slowed"]["ratio"] < result["path"]["unchanged"]["ratio"]
