"""Two commits side by side: pairs of a benchmark in the order ABBA, and by how much the new one is faster.

`python -m bench pairs OLD NEW publish|gateway|gc`. Each commit is checked out into a folder of its own and runs in this
environment. Of each figure the ratio new/old is the geometric mean of all pairs, with its 90 % interval. A figure is
"not resolvable" if half its interval is wider than 3 %: the machine is too noisy for so few pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.publishing.machine import description

ROOT = Path(__file__).resolve().parents[1]
FIGURES = {
    "publish": ("files_per_s", "second_night_files_per_s"),
    "gateway": ("commits_per_s",),
    "gc": ("deletes_per_s", "mark_entries_per_s"),
}
SHORT = {
    "publish": ("--files", "8000", "--folders", "8", "--rounds", "1", "--past-share", "0.05"),
    "gateway": ("--seconds", "15", "--curve", "0", "--merges", "1", "--entries", "10000"),
    "gc": ("--objects", "100000", "--garbage", "25000", "--seconds", "3", "--results", ""),
}
RESOLVED, KEPT = 0.03, 0.97
# two-sided 90 % of Student's distribution, by degrees of freedom
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
           1.746, 1.740, 1.734, 1.729)  # fmt: skip


def main() -> int:
    """Exit code 1 if the lower end of an interval is below 0.97, and the figure is resolvable."""
    options = parsed()
    figures: dict[str, list[float]] = {name: [] for name in FIGURES[options.benchmark]}
    with checked_out(options.old) as old, checked_out(options.new) as new:
        for pair in range(options.pairs):
            order = (old, new) if pair % 2 == 0 else (new, old)
            measured = {tree: run(tree, options.benchmark, options.options) for tree in order}
            for name, ratios in figures.items():
                ratios.append(measured[new][name] / measured[old][name])
            print(f"pair {pair + 1}: " + ", ".join(f"{name} {ratios[-1]:.3f}" for name, ratios in figures.items()))
    found = {name: interval(ratios) for name, ratios in figures.items()}
    for name, (ratio, lower, upper) in found.items():
        noise = "" if resolvable(lower, upper) else "; not resolvable"
        print(f"{name}: new/old {ratio:.3f}, 90 % from {lower:.3f} to {upper:.3f}{noise}")
    result: dict[str, Any] = {
        name: {"ratio": round(ratio, 4), "lower90": round(lower, 4), "upper90": round(upper, 4),
               "resolvable": resolvable(lower, upper)}
        for name, (ratio, lower, upper) in found.items()
    }  # fmt: skip
    print(json.dumps({"benchmark": options.benchmark, "pairs": options.pairs, "old": options.old, "new": options.new,
                      **result, "machine": description()}))  # fmt: skip
    return int(any(lower < KEPT and resolvable(lower, upper) for _, lower, upper in found.values()))


def resolvable(lower: float, upper: float) -> bool:
    """Whether half the interval is at most 3 %."""
    return (upper - lower) / 2 <= RESOLVED


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean, and the ends of its 90 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = STUDENT[len(logs) - 2] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def run(tree: Path, benchmark: str, options: list[str]) -> dict[str, float]:
    """The JSON line of a benchmark of that commit."""
    command = [sys.executable, f"bench/{benchmark}.py", *SHORT[benchmark], *options]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    # codes 1 and 3 say that a figure is not as wanted, or the machine not quiet; a traceback ends with code 1 too
    if done.returncode not in (0, 1, 3) or not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"{benchmark} of {tree.name} ended with code {done.returncode}")
    return dict(json.loads(lines[-1]))


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A commit in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="nightshift-pairs-") as folder:
        tree = Path(folder) / commit.replace("/", "-")
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> None:
    """Runs git in the project."""
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", help="a commit")
    parser.add_argument("benchmark", choices=sorted(FIGURES))
    parser.add_argument("--pairs", type=int, default=10, choices=range(3, 21), metavar="3..20")
    parser.add_argument("options", nargs="*", help="of the benchmark, after --")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
