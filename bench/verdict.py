"""The verdict of storage benchmarks on an unchanged target and on one that is slowed by 20 %: how often it is right.

Whole campaigns run on a store behind a link of limited speed, and at the same time on a folder that fio reaches at a
limited rate. The first campaign of each is accepted as the baseline. Then unchanged and slowed trials take turns: the
verdict on the former has to be `pass`, on the latter `regressed`, all else counts as wrong. Exit code 1 if fewer than
19 of 20 are right. A run that left less than a tenth of the processors idle is void: exit code 3. Ends in one line of
JSON, which is also written to bench/results/verdict.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from judging.trials import Trials, noise_of, path_trials, rounds_of, s3_trials, worst_ratio
from publishing.machine import BENCH, Idle, description

from include.benchmarks.verdict.compare import BenchmarkVerdict

SLOWED = 0.8
WANTED = 0.95
VOID = 3
LEAST_IDLE = 0.1
ARMS = (("unchanged", 1.0, BenchmarkVerdict.PASS), ("slowed", SLOWED, BenchmarkVerdict.REGRESSED))
TARGETS = {"s3": s3_trials, "path": path_trials}


def main() -> int:
    options = _options()
    machine = description()
    print(f"machine: {machine}")
    idle, began = Idle(), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-verdict-"))
    try:
        names = options.targets.split(",")
        opened = [TARGETS[name](folder, rounds=options.rounds, most=options.most_rounds) for name in names]
        # at the same time: none of them takes much of the machine
        with ThreadPoolExecutor(len(names)) as pool:
            found = dict(zip(names, pool.map(lambda trials: _tried(trials, options), opened), strict=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    right = min(one[arm]["right"] for one in found.values() for arm, _, _ in ARMS)
    result = {
        "right": right, "trials": options.trials, **found, "rounds": [options.rounds, options.most_rounds],
        "minutes": round((time.monotonic() - began) / 60, 1), "idle": round(idle.share(), 2), "machine": machine,
    }  # fmt: skip
    void = result["idle"] < LEAST_IDLE
    if void:
        print("VOID, the machine was not quiet")
    if options.results and not void:
        Path(options.results).mkdir(parents=True, exist_ok=True)
        Path(options.results, "verdict.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    if void:
        return VOID
    return 0 if right >= WANTED * options.trials else 1


def _tried(opened: AbstractContextManager[Trials], options: argparse.Namespace) -> dict[str, Any]:
    verdicts: dict[str, list[str]] = {arm: [] for arm, _, _ in ARMS}
    ratios: dict[str, list[float]] = {arm: [] for arm, _, _ in ARMS}
    rounds, noise = [], []
    with opened as trials:
        trials.accept(trials.campaign(1.0))
        for number in range(1, options.trials + 1):
            for arm, speed, _ in ARMS:
                judged = trials.campaign(speed)
                verdicts[arm].append(judged.verdict.value)
                ratios[arm].append(worst_ratio(judged) or 0.0)
                rounds.append(rounds_of(judged))
                noise.append(noise_of(judged))
                about = f"{ratios[arm][-1]:.3f} after {rounds[-1]} rounds"
                print(f"{trials.target} {number} {arm}: {judged.verdict.value}, {about}", flush=True)
    found: dict[str, Any] = {
        arm: {
            "right": verdicts[arm].count(wanted.value),
            "verdicts": {verdict: verdicts[arm].count(verdict) for verdict in sorted(set(verdicts[arm]))},
            "ratio": round(statistics.median(ratios[arm]), 3),
        }
        for arm, _, wanted in ARMS
    }
    return found | {
        "noise": round(statistics.median(noise), 3),
        "rounds": {"median": statistics.median(rounds), "most": max(rounds)},
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="of an unchanged target, and as many of a slowed one")
    parser.add_argument("--rounds", type=int, default=5, help="of each campaign, at least")
    parser.add_argument("--most-rounds", type=int, default=20, help="of each campaign, while its verdict is open")
    parser.add_argument("--targets", default="s3,path")
    parser.add_argument("--results", default=str(BENCH / "results"), help="folder for figures; empty: none")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
