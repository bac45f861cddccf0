"""A night on one Celery worker and on three, over a store each of whose answers takes LATENCY ms longer.

Each worker is a machine of its own to the services: a network namespace of the lab. First nights on one worker find its
best slots of the pools `prepare` and `publish`, and connections to each store; then three workers run nights with the
same per worker.
The store is SeaweedFS behind a way that is late, for the gateway and for everybody else too. A night's time is that of
its run, from its being queued to its end; each is the best of ROUNDS.

The workers share the cores of this machine with all services. CORES gives each of them so many and no more, as machines
of their own would have: then a night on three has three times the cores. CHOICE leaves out the sweep.

Ends in one line of JSON (one_s, three_s, ratio), which is also written to bench/results/workers.json (with CORES to
workers-cores.json, without latency to workers-no-latency.json); with code 1 if something was not published, or `ratio`
is below the target of that latency.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from bench.nights import late
from bench.nights.cores import limited
from bench.nights.lab import BenchLab, bench_lab, say
from bench.nights.times import seconds
from bench.publishing.machine import description
from include.settings.scheduling import pools
from lab import services
from lab.environment import Lab

TARGET, TARGET_WITHOUT = 2.5, 1.0
"""How many times as fast three workers are: with latency, and without."""
WARM_UP = 4
CHOICES = tuple((slots, connections) for slots in (2, 4, 8) for connections in (16, 64))


def main() -> int:
    options = _options()
    say(f"machine: {description()}")
    _make_late(options.latency / 1000)
    with _limited_lab(1, options.cores) as lab:
        nights = _nights(lab, options)
        tried = {
            (slots, connections): _best(nights, slots, connections, options.rounds)
            for slots, connections in options.choice or CHOICES
        }
    (slots, connections), one_s = min(tried.items(), key=lambda item: item[1])
    with _limited_lab(3, options.cores) as lab:
        three_s = _best(_nights(lab, options), 3 * slots, connections, options.rounds)
    ratio, target = one_s / three_s, TARGET if options.latency else TARGET_WITHOUT
    result = {
        "one_s": round(one_s, 1),
        "three_s": round(three_s, 1),
        "ratio": round(ratio, 2),
        "target": target,
        "latency_ms": options.latency,
        "slots": slots,
        "connections": connections,
        "sweep": [
            {"slots": slots, "connections": connections, "one_s": round(spent, 1)}
            for (slots, connections), spent in tried.items()
        ],
        "artifacts": options.artifacts,
        "cores_of_each_worker": options.cores or "all, shared",
        "machine": description(),
    }
    folder = Path(options.results)
    folder.mkdir(parents=True, exist_ok=True)
    kind = ("-cores" if options.cores else "") + ("" if options.latency else "-no-latency")
    (folder / f"workers{kind}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if ratio >= target else 1


@contextmanager
def _limited_lab(workers: int, cores: float) -> Iterator[BenchLab]:
    with bench_lab(workers=workers) as lab:
        assert lab.lab.cluster
        with limited(lab.lab.cluster, cores):
            yield lab


def _make_late(delay_s: float) -> None:
    """Have all labs of this process put the late way in front of their store."""
    plain = services.s3

    def s3(lab: Lab) -> services.Service:
        service = plain(lab)
        words = (sys.executable, late.__file__, lab.address, str(lab.ports.s3), str(delay_s))
        return replace(service, program=replace(service.program, command=words))

    services.s3 = s3


def _best(nights: Nights, slots: int, connections: int, rounds: int) -> float:
    return min(nights.run(slots, connections) for _ in range(rounds))


class Nights:
    """Nights of one lab, each of a day and a build of its own."""

    def __init__(self, lab: BenchLab, options: argparse.Namespace) -> None:
        self.lab, self.options = lab, options
        self._days: Iterator[int] = count(1)

    def run(self, slots: int, connections: int, artifacts: int | None = None) -> float:
        """The seconds of one. Raises RuntimeError if something was not published."""
        lab, options = self.lab, self.options
        file = Path(os.environ["NIGHTSHIFT_CONFIG"])
        document = yaml.safe_load(file.read_text())
        for store in document["stores"].values():
            store["connections"] = connections
        file.write_text(yaml.safe_dump(document))
        for pool in pools(lab.site.settings):
            if pool.name in ("prepare", "publish"):
                lab.api.put_pool(asdict(replace(pool, slots=slots)))
        day = lab.today() - timedelta(days=next(self._days))
        wanted = artifacts or options.artifacts
        lab.drop(day, wanted, options.files, options.own)
        run_id = lab.start(day)
        lab.follow(run_id, options.seconds)
        run: dict[str, Any] = lab.api.ask("GET", f"/dags/{lab.dag_id}/dagRuns/{run_id}")
        published = sum(one.state.good for one in lab.publications(run_id))
        if published != wanted:
            raise RuntimeError(f"{published} of {wanted} artifacts were published by {run_id}")
        spent = seconds(run["end_date"]) - seconds(run["queued_at"])
        say(f"{slots} slots, {connections} connections: {spent:.1f} s")
        return spent


def _nights(lab: BenchLab, options: argparse.Namespace) -> Nights:
    nights = Nights(lab, options)
    nights.run(4, 16, WARM_UP)
    return nights


def _choice(text: str) -> tuple[int, int]:
    slots, connections = map(int, text.split("x"))
    return slots, connections


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=int, default=48)
    parser.add_argument("--files", type=int, default=20, help="files that all artifacts have alike")
    parser.add_argument("--own", type=int, default=100, help="files that no other artifact has")
    parser.add_argument("--latency", type=float, default=10.0, help="milliseconds that each answer takes longer")
    parser.add_argument("--cores", type=float, default=0.0, help="cores of each worker; 0: all, shared with everything")
    parser.add_argument(
        "--choice", type=_choice, action="append", help="slots and connections of one worker, as 4x16; no sweep"
    )
    parser.add_argument("--rounds", type=int, default=2, help="nights of each kind")
    parser.add_argument("--seconds", type=float, default=900.0, help="how long a night may take")
    parser.add_argument("--results", default=str(Path(__file__).parent / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
