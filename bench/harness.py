"""What the harness of storage benchmarks costs: its object driver, its latencies, and its way to call fio.

The driver and a bare loop of obstore load the same server in turn, A B B A, first writing and then reading; the ratio
is the median over the pairs of rounds. Latencies are those of the driver beside the server's own, of the same
requests. fio runs under the harness and by hand in turn. `make bench-harness` keeps all data in memory, since what a
disk does between two rounds is not the harness's. The first round is a warm-up. A run in which the bare loop's
rounds differ by more than a quarter from their median is void: exit code 3. Ends in one line of JSON, which is also
written to bench/results/harness.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harnessing.files import FioArms
from harnessing.objects import ObjectArms
from harnessing.servers import TimedRadosgw, TimedServer, TimedWeed
from publishing.machine import BENCH, Idle, description

from include.benchmarks.loads import LoadAccess
from lab.servers.ceph import find_ceph

WANTED_RATIO = 0.9
WANTED_LATENCY = 0.1
VOID = 3
FLOOR_SPREAD = 0.25
ACCESSES = (LoadAccess.WRITE, LoadAccess.READ)
SERVERS = {"weed": TimedWeed, "radosgw": TimedRadosgw}


@dataclass(frozen=True, slots=True)
class ArmPair:
    """Two ways to do the same, measured in turn."""

    harness: list[float]
    floor: list[float]

    @property
    def ratio(self) -> float:
        """The median over the rounds, each compared with its neighbour."""
        return round(statistics.median(ours / bare for ours, bare in zip(self.harness, self.floor, strict=True)), 3)

    @property
    def spread(self) -> float:
        """By how much a round of the floor differs from its median at most."""
        middle = statistics.median(self.floor)
        return max(abs(value - middle) for value in self.floor) / middle


def main() -> int:
    options = _options()
    machine = description()
    print(f"machine: {machine}")
    idle = Idle()
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-harness-", dir=options.folder or None))
    folder.chmod(0o711)
    result: dict[str, Any] = {}
    spreads: list[float] = []
    try:
        for name in _servers(options.servers):
            found, worst = _objects(SERVERS[name](folder / name), folder / f"{name}-output", options)
            result[name] = found
            spreads.append(worst)
            print(f"{name}: {found}", flush=True)
        pairs = _files(folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    spreads += [pair.spread for pair in pairs.values()]
    servers = list(result.values())
    result = {
        # the server that the driver costs most is the one that counts
        "s3_ratio": min(min(found["ratios"].values()) for found in servers),
        "s3_latency_ratio": max((r for found in servers for r in found["latency_ratios"].values()), key=_off),
        "fio_ratio": min(pair.ratio for pair in pairs.values()),
        "fio_ratios": {access: pair.ratio for access, pair in pairs.items()},
        "fio_mb_per_s": {access: round(statistics.median(pair.floor) / 1e6) for access, pair in pairs.items()},
        **result,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "folder": options.folder or tempfile.gettempdir(),
        "floor_spread": round(max(spreads), 2),
        "idle": round(idle.share(), 2),
        "machine": machine,
    }
    void = max(spreads) > FLOOR_SPREAD
    print(
        f"driver {result['s3_ratio']} of a bare loop (wanted: {WANTED_RATIO}), latencies {result['s3_latency_ratio']} "
        f"of the server's (wanted: within {WANTED_LATENCY:.0%}), fio {result['fio_ratio']} of fio by hand"
        + ("; VOID, the machine was not quiet" if void else "")
    )
    if options.results and not void:
        Path(options.results).mkdir(parents=True, exist_ok=True)
        Path(options.results, "harness.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return VOID if void else 0


def _servers(wanted: str) -> list[str]:
    names = wanted.split(",")
    if "radosgw" in names and find_ceph("radosgw") is None:
        print("radosgw is not installed: it is left out")
        names.remove("radosgw")
    return names


def _objects(timed: TimedServer, scratch: Path, options: argparse.Namespace) -> tuple[dict[str, Any], float]:
    scratch.mkdir()
    ratios, rates, spreads = {}, {}, []
    with timed.server:
        arms = ObjectArms(timed, scratch, size=options.object_bytes, seconds=options.seconds)
        arms.prepare(options.streams)
        for access in ACCESSES:
            pair = _in_turn(
                lambda: arms.driver(access, options.streams),  # noqa: B023 - called at once
                lambda: arms.bare(access, options.streams),  # noqa: B023
                options.rounds,
            )
            ratios[access.value] = pair.ratio
            rates[access.value] = round(statistics.median(pair.floor))
            spreads.append(pair.spread)
        latencies = [arms.latencies(options.latency_streams) for _ in range(options.rounds)]
    return {
        "ratios": ratios,
        "bare_per_s": rates,
        "latency_ratios": {
            access.value: round(statistics.median(found[access].ratio for found in latencies), 3) for access in ACCESSES
        },
        "server_ms": {
            access.value: round(statistics.median(found[access].server_ms for found in latencies), 2)
            for access in ACCESSES
        },
        "driver_ms": {
            access.value: round(statistics.median(found[access].driver_ms for found in latencies), 2)
            for access in ACCESSES
        },
        "latencies_of": timed.source,
    }, max(spreads)


def _files(folder: Path, options: argparse.Namespace) -> dict[str, ArmPair]:
    (folder / "files").mkdir()
    (folder / "fio").mkdir()
    arms = FioArms(folder / "files", folder / "fio", streams=2, mib=options.fio_mib, seconds=options.seconds)
    pairs = {}
    for access in ACCESSES:
        pairs[access.value] = _in_turn(
            lambda: arms.harness(access),  # noqa: B023
            lambda: arms.by_hand(access),  # noqa: B023
            options.rounds,
        )
    return pairs


def _in_turn(harness: Callable[[], float], floor: Callable[[], float], rounds: int) -> ArmPair:
    harness(), floor()  # the first round warms caches and connections
    ours: list[float] = []
    bare: list[float] = []
    for number in range(rounds):
        order = ((harness, ours), (floor, bare))
        for measure, values in order if number % 2 == 0 else reversed(order):
            values.append(measure())
    return ArmPair(ours, bare)


def _off(ratio: float) -> float:
    return max(ratio, 1 / ratio) if ratio else float("inf")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="weed,radosgw")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=3, help="of each round")
    parser.add_argument("--streams", type=int, default=32, help="of the comparison with the bare loop")
    parser.add_argument("--latency-streams", type=int, default=1, help="few: else requests wait in front of the server")
    parser.add_argument("--object-bytes", type=int, default=16 << 10)
    parser.add_argument("--fio-mib", type=int, default=256, help="the size of each of two files")
    parser.add_argument("--folder", default="", help="where files and servers' data are; default: the temporary folder")
    parser.add_argument("--results", default=str(BENCH / "results"), help="folder for figures; empty: none")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
