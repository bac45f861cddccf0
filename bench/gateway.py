"""The gateway under many publishers: commits in groups, leases meanwhile, one publisher alone, commits of stock shape,
and publishers beside a repository whose store never answers.

Every measurement is looked at afterwards: what was acknowledged must stand, and the repository must be sound; else the
exit code is 1. Ends in one line of JSON; with the curve, figures and plots go to bench/results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.gatewaying.floors import switches_per_s, transactions_per_s
from bench.gatewaying.processes import percentile
from bench.gatewaying.scenes import PROBE_PAUSE_S, Bench, Load
from bench.gatewaying.stock import Merged
from bench.plot import Series, line_plot
from bench.publishing import lab
from bench.publishing.machine import description
from bench.publishing.repositories import Past, Templates
from include.cvmfs.commit.commit import REFLOG_KEY

CURVE = (1, 2, 4, 8, 16, 32)
SINGLES = ((0, 0), (1_000, 0), (10_000, 1_000))  # revisions, tags
CONNECTIONS = 8
STOCK = {
    "stock_commits_per_s": 15,
    "stock_lease_pairs_per_s": 450,
    "stock_commit_ms": 65,
    "stock_merge_entries_per_s": 85_000,
}


def main() -> int:
    options = _options()
    machine = description()
    print(f"machine: {machine}")
    templates = Templates(Path(tempfile.gettempdir()) / "nightshift-bench-repositories", Past(options.past_share))
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-"))
    try:
        with lab.store(options.store, folder, 64) as place:
            _introduce(options, place.url, folder)
            bench = Bench(place, templates, folder, options.processes)
            result = _measure(bench, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for fault in bench.faults:
        print(f"WRONG: {fault}")
    sound = "every acknowledged commit stands, every check is clean, no revision too few or too many"
    print(sound if not bench.faults else f"{len(bench.faults)} faults")
    result |= {"machine": machine, "load_after": round(os.getloadavg()[0], 1), "faults": len(bench.faults)}
    if len(result["curve"]) > 1:
        _write(Path(options.results), result)
    print(json.dumps(result))
    return 1 if bench.faults else 0


def _introduce(options: argparse.Namespace, url: str, folder: Path) -> None:
    print(
        f"store {options.store} ({url}), gateway state in {folder} (real disk, flushed), "
        f"{options.processes} load processes beside the gateway's\n"
        f"past: {Past(options.past_share)}"
    )


def _measure(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    short = min(10.0, options.seconds)
    floor = transactions_per_s(bench.scratch, min(3.0, short))
    pairs = bench.pairs(CONNECTIONS, short)
    print(
        f"lease pairs, {CONNECTIONS} connections: {pairs:,.0f}/s (wanted: 800; floor: {floor:,.0f} durable "
        f"transactions/s one by one, two to a pair; stock, measured elsewhere: {STOCK['stock_lease_pairs_per_s']})",
        flush=True,
    )
    past = bench.templates.past
    pasts = {past.of(revisions): past.of(tags) for revisions, tags in SINGLES}
    singles = {revisions: bench.single(revisions, tags, options.turns) for revisions, tags in pasts.items()}
    for (revisions, tags), load in zip(pasts.items(), singles.values(), strict=True):
        print(
            f"one publisher at {revisions:,} revisions, {tags:,} tags: commit p50 "
            f"{percentile(load.commit_ms, 0.5):.1f} p95 {percentile(load.commit_ms, 0.95):.1f} ms, lease to "
            f"acknowledgement p50 {percentile(load.publish_ms, 0.5):.1f} ms "
            f"(wanted: 150; stock commit, measured elsewhere: {STOCK['stock_commit_ms']})",
            flush=True,
        )
    merges = [bench.merges(entries, options.merges) for entries in options.entries]
    for merged in merges:
        _tell_merges(merged)
    beside = bench.beside_silence(min(4, options.publishers), short)
    _tell_silence(beside)
    counts = [count for count in CURVE if options.curve and count < options.publishers]
    lengths = [short] * len(counts) + [options.seconds]
    loads = bench.many([*counts, options.publishers], lengths, options.slots)
    for load in loads:
        _tell_load(load, options)
    switches = _switch_floor(bench, options)
    print(f"floor of revisions: {switches:.1f}/s, bare writes of the same objects, reflog and manifest")
    return _figures(options, pairs, floor, singles, merges, loads, switches) | _beside(beside)


def _switch_floor(bench: Bench, options: argparse.Namespace) -> float:
    reflog = len(bench.place.repository("many").open().get(REFLOG_KEY))
    catalogs = min(options.slots, options.publishers) + 3  # of slots, of their directory, the root; and the history
    return switches_per_s(bench.place.below("floor"), reflog, catalogs, min(3.0, options.seconds))


def _tell_merges(merged: Merged) -> None:
    print(
        f"stock shape, {merged.entries:,} new entries a commit: {merged.commits_per_s:.2f} commits/s, "
        f"{merged.entries_per_s:,.0f} entries/s, commit p50 {1000 * percentile(merged.commits_s, 0.5):.0f} ms "
        f"(wanted: 50,000 entries/s; stock, measured elsewhere: {STOCK['stock_merge_entries_per_s']:,})",
        flush=True,
    )


def _tell_load(load: Load, options: argparse.Namespace) -> None:
    taken = ", ".join(f"{name} {percentile(ms, 0.95):.1f}" for name, ms in load.lease_ms.items())
    print(
        f"{load.publishers} publishers on {min(options.slots, load.publishers)} slots, {load.seconds:.0f} s: "
        f"{load.commits_per_s:.1f} commits/s in {load.revisions_per_s:.1f} revisions/s; "
        f"commit p50 {percentile(load.commit_ms, 0.5):.0f} p95 {percentile(load.commit_ms, 0.95):.0f} ms, "
        f"lease to acknowledgement p50 {percentile(load.publish_ms, 0.5):.0f} ms, of that the publisher's own work "
        f"{percentile(load.own_ms, 0.5):.0f} ms; leases on other paths p95 ms: {taken} (every {PROBE_PAUSE_S} s); "
        f"CPU: gateway {load.gateway_cpu:.2f}, load {load.load_cpu:.2f}, idle {load.idle:.0%} of all",
        flush=True,
    )


def _beside(load: Load) -> dict[str, float]:
    acquire = load.lease_ms["acquire"]
    return {
        "silent_acquire_p50_ms": round(percentile(acquire, 0.5), 1),
        "silent_acquire_p99_ms": round(percentile(acquire, 0.99), 1),
        "silent_commit_p99_ms": round(percentile(load.commit_ms, 0.99), 1),
    }


def _tell_silence(load: Load) -> None:
    acquire = load.lease_ms["acquire"]
    print(
        f"beside a silent store, {load.publishers} publishers, {load.seconds:.0f} s: acquire p50 "
        f"{percentile(acquire, 0.5):.1f} p99 {percentile(acquire, 0.99):.1f} ms, commit p99 "
        f"{percentile(load.commit_ms, 0.99):.1f} ms (wanted: 1000)",
        flush=True,
    )


def _figures(
    options: argparse.Namespace, pairs: float, floor: float, singles: dict[int, Load], merges: list[Merged],
    loads: list[Load], switches: float,
) -> dict[str, Any]:  # fmt: skip
    full, alone = loads[-1], list(singles.values())[-1]
    merged = merges[-1]
    return {
        **{name: value for name, value in full.figures().items() if name != "lease_p50_ms"},
        "lease_pairs_per_s": round(pairs, 1),
        "single_commit_p50_ms": round(percentile(alone.commit_ms, 0.5), 1),
        "merge_commits_per_s": round(merged.commits_per_s, 2),
        "merge_entries": merged.entries,
        "merge_entries_per_s": round(merged.entries_per_s),
        "single_commit_p50_ms_at": {
            str(revisions): round(percentile(load.commit_ms, 0.5), 1) for revisions, load in singles.items()
        },
        "merges": {str(one.entries): round(one.entries_per_s) for one in merges},
        "floor_transactions_per_s": round(floor),
        "floor_revisions_per_s": round(switches, 1),
        **STOCK,
        "seconds": full.seconds,
        "slots": options.slots,
        "store": options.store,
        "curve": [load.figures() for load in loads],
    }


def _write(folder: Path, result: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "gateway.json").write_text(json.dumps(result, indent=1) + "\n")
    plots = {
        "commits": ("commits/s", {"acknowledged commits": "commits_per_s", "revisions": "revisions_per_s"}),
        "latency": ("ms", {"commit p95": "commit_p95_ms", "commit p50": "commit_p50_ms", "lease p95": "lease_p95_ms"}),
    }
    for name, (label, lines) in plots.items():
        series = [
            Series(words, [(row["publishers"], row[key]) for row in result["curve"]]) for words, key in lines.items()
        ]
        title = f"publishers on disjoint paths of one repository, store {result['store'].split(':')[0]}"
        plot = line_plot(title, "publishers at the same time", label, series, log_x=True)
        (folder / f"gateway-{name}.svg").write_text(plot)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publishers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the full load; other points take at most 10 s")
    parser.add_argument("--slots", type=int, default=4, help="nightly slots that the publishers' paths are spread over")
    parser.add_argument("--processes", type=int, default=2, help="that the publishers are spread over")
    parser.add_argument("--store", default="file", help="file (tmpfs), file:///folder, weed, or radosgw")
    parser.add_argument("--turns", type=int, default=50, help="commits of one publisher alone")
    parser.add_argument("--merges", type=int, default=5, help="commits of stock shape")
    parser.add_argument(
        "--entries", type=int, nargs="+", default=[10_000, 100_000], help="entries of each; the last goes into the JSON"
    )
    parser.add_argument("--past-share", type=float, default=1.0, help="how much of the past, for a short trial")
    parser.add_argument("--curve", type=int, default=1, help="0: only the full number of publishers, and no files")
    parser.add_argument(
        "--results", default=str(Path(__file__).parent / "results"), help="folder for plots and figures"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
