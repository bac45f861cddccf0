"""Speed of whole publications (prepare, reserve, publish through the real gateway) against a floor of the same run.

Each round publishes the same fresh tree into a repository with a past and into an empty one, and measures the floor
in between, in A B B A order; then the second night, with 5 % of the files changed, against its floor: the archive read
and hashed by the standard library, then bare PUTs of the objects that changed. On a disk (``file:///folder``) the
tree is also published by each setting of `fsync`. Ends in one line of JSON, which is written to
bench/results/publish-STORE.json, too, with a plot beside it, unless the run is void.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.plot import bar_plot
from bench.publishing import lab
from bench.publishing.machine import Ran, description, run
from bench.publishing.repositories import EMPTY, PAST, Past, Templates, summary
from bench.publishing.rounds import Bench, Round
from bench.publishing.trees import Shape, write_tarball
from include.storage.kinds import Fsync

VOID = 3
FLOOR_SPREAD = 0.10
NIGHT_H = 8
FILES_PER_NIGHT = 3_800_000


def main() -> int:
    options = _options()
    shape = Shape(options.files, options.folders, options.file_bytes)
    print(f"machine: {description()}")
    print(
        f"{shape.files} files of {shape.file_bytes} B in {shape.folders} folders, store {options.store}, "
        f"{options.connections} connections, compression {options.compression}, {options.rounds} rounds"
    )
    cache = Path(tempfile.gettempdir()) / "nightshift-bench-repositories"
    templates = Templates(cache, Past(options.past_share))
    if options.past:
        past = summary(lab.Place((templates.folder / PAST).as_uri()).open())
        print(f"the past: {past} (wanted: {templates.past})")
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    scratch = Path(tempfile.mkdtemp(prefix="nightshift-bench-", dir=base))
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-"))
    try:
        with lab.store(options.store, folder, options.connections) as place:
            on_disk = options.store.startswith("file:")
            fsyncs: tuple[Fsync, ...] = ("never", "switch", "always") if on_disk else ()
            bench = Bench(
                place, shape, templates, scratch, empty=options.past, fsyncs=fsyncs, compression=options.compression
            )
            tarball = scratch / "stages.tar"
            write_tarball(tarball, shape, options.rounds)
            job = {"tarball": str(tarball), "compressor": options.compression}
            stages = run("bench.publishing.stages", job=job).outcome
            tarball.unlink()
            rounds = []
            for number in range(options.rounds):
                rounds.append(bench.round(number))
                _tell(number, rounds[-1], shape)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    return _conclude(rounds, shape, stages, options)


def _tell(number: int, one: Round, shape: Shape) -> None:
    rate = shape.files / one.floor_s
    print(f"round {number + 1}: floor {rate:,.0f} files/s (idle {one.floor_idle:.0%})")
    for arm, ran in one.published.items():
        out = ran.outcome
        phases = " ".join(f"{name} {seconds:.2f}" for name, seconds in out["phases"].items())
        print(
            f"  {arm:6} {shape.files / out['seconds']:,.0f} files/s, {one.floor_s / out['seconds']:.2f} of the floor "
            f"(idle {ran.idle:.0%}); s: {phases}; CPU {1000 * out['cpu_s'] / shape.files:.3f} s/1,000, "
            f"{ran.rss_mb:.0f} MB, {out['puts']} PUTs, {_heads(out)}, lease {out['lease_held_s']:.3f} s"
        )
        if out["retries"]:
            print(f"         retries {out['retries']}")
    if one.second is not None:
        out = one.second.outcome
        phases = " ".join(f"{name} {seconds:.2f}" for name, seconds in out["phases"].items())
        print(
            f"  second night {shape.files / out['seconds']:,.0f} files/s, {one.second_floor_s / out['seconds']:.2f} "
            f"of its floor ({shape.files / one.second_floor_s:,.0f} files/s); s: {phases}; "
            f"CPU {1000 * out['cpu_s'] / shape.files:.3f} s/1,000, {one.second.rss_mb:.0f} MB, {out['puts']} PUTs for "
            f"{shape.changed} changed files and {out['catalogs']} catalogs, {_heads(out)}; "
            f"peaks of its own process {' '.join(f'{name} {mb}' for name, mb in out['peaks_mb'].items())} MB"
        )
    for fsync, ran in one.fsync.items():
        out = ran.outcome
        print(
            f"  fsync {fsync:6} {shape.files / out['seconds']:,.0f} files/s; "
            f"s: prepare {out['phases']['prepare']:.2f}, lease {out['lease_held_s']:.3f}"
        )
    sys.stdout.flush()


def _heads(out: dict[str, Any]) -> str:
    return f"{out['heads']} HEADs ({out['heads_of_prepare']} in prepare)"


def _conclude(rounds: list[Round], shape: Shape, stages: dict[str, float], options: argparse.Namespace) -> int:
    floors = [shape.files / one.floor_s for one in rounds]
    firsts = [one.published[PAST] for one in rounds]
    seconds = [one.second for one in rounds if one.second is not None]
    floor, median = statistics.median(floors), statistics.median
    spread = max(abs(value - floor) for value in floors) / floor
    if options.past:
        ratio = median(
            one.published[EMPTY].outcome["seconds"] / one.published[PAST].outcome["seconds"] for one in rounds
        )
        print(f"with the past: {ratio:.2f} of the speed on an empty repository (wanted: 0.80 or more)")
    rate = median(shape.files / ran.outcome["seconds"] for ran in firsts)
    cpu_us = median(1e6 * ran.outcome["cpu_s"] / shape.files for ran in firsts)
    listed = ", ".join(f"{stage} {us:.0f}" for stage, us in stages.items())
    print(
        f"processor time of a first night: {cpu_us:.0f} µs per file; of that, each alone: {listed}; requests, threads "
        f"and the interpreter's lock: {cpu_us - sum(stages.values()):.0f}"
    )
    hours = FILES_PER_NIGHT / rate / 3600
    print(f"a night of {FILES_PER_NIGHT:,} files takes {hours:.1f} h: {NIGHT_H / hours:.1f} of them fit in {NIGHT_H} h")
    result = {
        "files": shape.files,
        "files_per_s": round(rate, 1),
        "floor_files_per_s": round(floor, 1),
        "ratio_to_floor": round(median(one.floor_s / one.published[PAST].outcome["seconds"] for one in rounds), 3),
        "puts": int(median(ran.outcome["puts"] for ran in firsts)),
        "heads": int(max(ran.outcome["heads"] for ran in firsts)),
        "cpu_s_per_1000": round(median(1000 * ran.outcome["cpu_s"] / shape.files for ran in firsts), 3),
        "rss_mb": round(max(ran.rss_mb for ran in firsts)),
        "lease_held_s": round(max(ran.outcome["lease_held_s"] for ran in firsts), 3),
        "second_night_files_per_s": round(median(shape.files / ran.outcome["seconds"] for ran in seconds), 1),
        "second_night_floor": round(median(shape.files / one.second_floor_s for one in rounds), 1),
        "second_night_ratio": round(
            median(one.second_floor_s / one.second.outcome["seconds"] for one in rounds if one.second is not None), 3
        ),
        "second_night_puts": int(median(ran.outcome["puts"] for ran in seconds)),
        "changed_files": shape.changed,
        "stages_us": stages,
    }
    if rounds[0].fsync:
        result["fsync"] = {fsync: _flushed([one.fsync[fsync] for one in rounds], shape) for fsync in rounds[0].fsync}
    result |= {"store": options.store, "compression": options.compression, "machine": description()}
    void = spread > FLOOR_SPREAD
    print(f"floor: within {spread:.0%} of its median{'; VOID, the machine was not quiet' if void else ''}")
    if not void:
        _keep(result, shape, stages, cpu_us, options)
    print(json.dumps(result))
    return VOID if void else 0


def _keep(
    result: dict[str, Any], shape: Shape, stages: dict[str, float], cpu_us: float, options: argparse.Namespace
) -> None:
    """Write the figures and their plot. ``cpu_us``: processor time of a file in a whole first night, in µs."""
    name = f"publish-{options.store.partition(':')[0]}"
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    parts = {**stages, "requests, threads, lock": cpu_us - sum(stages.values())}
    (options.results / f"{name}.svg").write_text(
        bar_plot(
            f"a first night of files of {shape.file_bytes} bytes", "µs of processor time per file",
            [(options.store.partition("/")[0], parts)],
        )
    )  # fmt: skip


def _flushed(ran: list[Ran], shape: Shape) -> dict[str, float]:
    median = statistics.median
    return {
        "files_per_s": round(median(shape.files / one.outcome["seconds"] for one in ran), 1),
        "prepare_s": round(median(one.outcome["phases"]["prepare"] for one in ran), 3),
        "lease_held_s": round(median(one.outcome["lease_held_s"] for one in ran), 3),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=25_000)
    parser.add_argument("--file-bytes", type=int, default=4096)
    parser.add_argument("--folders", type=int, default=25)
    parser.add_argument("--store", default="weed", help="weed, radosgw, file (tmpfs) or file:///folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--compression", default="stock", help="fast, balanced, stock or none, of the floor, too")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--past", type=int, default=1, help="0: no comparison with an empty repository")
    parser.add_argument("--past-share", type=float, default=1.0, help="how much of the past, for a short trial")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
