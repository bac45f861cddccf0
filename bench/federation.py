"""Reading at a distance: campaigns of the presets `cms-transfer`, `cms-strategies` and `cms-pairs` over a link.

Genuine nginx, Apache and XRootD serve at one end of a link with a delay, tools and our reader read at the other; only
root may make it. By default in at most 40 minutes: Apache and XrdHttp at some distances, strategies with the stock
window. FULL=1 runs all steps, five rounds of larger files. Then connections are cut every 64 MB and a server is
restarted. Plots go into --results, the reports into build. Ends in one line of JSON; code 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from bench.cut_connections import cut_runs, cut_table
from bench.distance.link import DelayedLink
from bench.distance.servers import USER, DistantServers
from bench.pairs import interval
from bench.publishing.machine import BENCH, ROOT, Idle, description
from include.benchmarks.campaign.campaigns import begin_campaign, clean_up, conclude, measure, utc_now
from include.benchmarks.campaign.folder import StepRecord
from include.benchmarks.campaign.plan import CampaignWish
from include.benchmarks.errors import BenchmarkError
from include.benchmarks.judge.report import CHARTS, REPORT
from include.benchmarks.measure.loads import DistantStrategy, MeasuredLoad, StreamLoad, TcpWindow
from include.benchmarks.measure.traces import data_sha256, write_data
from include.settings.benchmarks import EndpointServer
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from lab.errors import LabError

TABLES = {"transfer": ("cms-transfer", "file"), "strategies": ("cms-strategies", "events"),
          "pairs": ("cms-pairs", "file")}  # fmt: skip
CHARTS_OF = {"transfer": ("tools-stock", "tools-tuned"), "strategies": ("application", "lazy")}
LEAST = {
    "whole_ratio_min": 0.9, "lazy_ratio_50": 1.5, "lazy_ratio_100": 1.5, "lazy_tuned_ratio_min": 0.95,
    "application_over_storage_25": 25, "application_over_storage_100": 40, "storage_100_mb_s": 0.10,
}  # fmt: skip
MOST = {"storage_100_mb_s": 0.16, "minutes": 40}
LEAST_NEAR = 0.7
"""Least lower end of the interval of the ratio of whole files without a delay."""
MB, GB, MINUTES = 1e6, 1e9, 1000
Key = tuple[str, int, str, str, float]
"""Tool or strategy, streams, server, window, round trip that was asked for."""
Measured = dict[Key, list[MeasuredLoad]]


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what is started here ends with us
    began, idle = time.monotonic(), Idle()
    print(f"machine: {description()}")
    with tempfile.TemporaryDirectory(prefix="nightshift-federation-", dir=options.folder) as name:
        place = Path(name)
        place.chmod(0o755)  # for the servers, which are not root
        (place / "data").mkdir()
        sums = {
            file: _write_file(place / "data" / file, round(megabytes * MB), len(file))
            for file, megabytes in (("file", options.file_mb), ("events", options.events_mb))
        }
        try:
            with DelayedLink() as link, DistantServers(link.far, place / "data") as servers:
                for program in servers.missing:
                    print(f"not installed, and left out: {program}")
                site = _site(place, link, servers, sums)
                steps = {table: _campaign(site, table, options) for table in options.tables if table in TABLES}
                cut = []
                if "cut" in options.tables:
                    cut = list(cut_runs(link, servers, place / "data" / "file", sums["file"]))
        except (BenchmarkError, LabError) as error:
            raise SystemExit(str(error)) from None
    measured = {table: _measured(ended) for table, ended in steps.items()}
    figures = _figures(measured)
    figures["rtt_error_max"] = max((error for ended in steps.values() for error in _errors(ended)), default=None)
    figures["minutes"] = (time.monotonic() - began) / 60
    for lines in (*map(_table, measured.values()), _processor(measured.get("pairs", {})), cut_table(cut)):
        print("", *lines, sep="\n")
    missed = [name for name, least in LEAST.items() if (value := figures[name]) is not None and value < least]
    most_of = {name: most for name, most in MOST.items() if name != "minutes" or not os.environ.get("FULL")}
    missed += [name for name, most in most_of.items() if (value := figures[name]) is not None and value > most]
    missed += [f"no {name}" for name, value in figures.items() if value is None]
    near = _ratio(measured.get("pairs", {}), DistantStrategy.WHOLE, TcpWindow.STOCK, 0)
    missed += [f"{key[0]}: over a request a cluster" for key in _greedy(measured.get("strategies", {}))]
    missed += ["whole files at 0 ms"] if near and near[1] < LEAST_NEAR else []
    missed += [run.name for run in cut if run.name.startswith("ours") and not run.right]
    print(f"\nmissed: {', '.join(missed) or 'nothing'}; the machine was idle for {idle.share():.0%} of it")
    line = json.dumps({name: None if value is None else round(value, 3) for name, value in figures.items()})
    (options.results / "federation.json").write_text(line + "\n")
    print(line)
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    full = bool(os.environ.get("FULL"))
    parser = argparse.ArgumentParser(
        prog="python -m bench federation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", default=[*TABLES, "cut"], choices=[*TABLES, "cut"], help="[all]")
    parser.add_argument("--rounds", type=int, default=5 if full else 3, help="of transfers and strategies [3]")
    parser.add_argument(
        "--pairs", type=int, default=12 if full else 6, choices=range(2, 21), metavar="2..20", help="[6]"
    )
    parser.add_argument("--file-mb", type=float, default=1024 if full else 256, help="of the file that is copied [256]")
    parser.add_argument("--events-mb", type=float, default=100, help="of the file that an application reads [100]")
    parser.add_argument("--scale", type=float, default=1.0 if full else 0.5, help="1: all steps of the presets [0.5]")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="of the files")
    parser.add_argument("--results", type=Path, default=BENCH / "results", help="folder of the plots and the line")
    return parser.parse_args()


def _write_file(path: Path, size: int, seed: int) -> str:
    """Write random bytes; returns their SHA-256."""
    write_data(path, size, seed)
    shutil.chown(path, USER)  # XRootD keeps checksums with the file
    return data_sha256(size, seed)


def _site(place: Path, link: DelayedLink, servers: DistantServers, sums: dict[str, str]) -> Site:
    targets = {
        file: {
            "kind": "endpoint", "benchmark": "allowed", "urls": servers.urls(file), "sha256": sha256,
            "size": (place / "data" / file).stat().st_size, "limits": {"minutes": MINUTES},
            "link": {"read": link.near.prefix, "set": [*link.command, "{rtt_ms}", "{window}"]},
        }
        for file, sha256 in sums.items()
    }  # fmt: skip
    settings = {
        "ledger": f"sqlite:///{place}/ledger.db",
        "paths": {"var": f"{place}/var"},
        "benchmarks": {"targets": targets},
    }
    return Site(SiteSettings.model_validate(settings), EnvSecrets({}))


def _campaign(site: Site, table: str, options: argparse.Namespace) -> list[StepRecord]:
    preset, target = TABLES[table]
    rounds = options.pairs if table == "pairs" else options.rounds
    wish = CampaignWish(target, preset, options.scale, rounds, MINUTES)
    folder = begin_campaign(site, wish, now=utc_now())
    print(f"{preset}: {len(folder.record().plan.steps)} steps, {rounds} rounds", flush=True)
    try:
        measure(site, folder, each=_print)
    finally:
        clean_up(site, folder)
    conclude(site, folder)
    options.results.mkdir(exist_ok=True)
    for chart in CHARTS_OF.get(table, ()):
        shutil.copy(folder.path / CHARTS / f"{chart}.svg", options.results / f"federation-{chart}.svg")
    (ROOT / "build").mkdir(exist_ok=True)
    shutil.copy(folder.path / REPORT, ROOT / "build" / f"federation-{table}.html")
    return list(folder.steps())


def _print(ended: StepRecord) -> None:
    what = ended.error
    if ended.result is not None:
        (load,) = ended.result.loads
        what = f"{load.throughput / MB:.2f} MB/s in {load.seconds:.1f} s"
        what += f", round trip {load.distant.rtt_ms:.1f} ms" if load.distant else ""
        what += ", wrong bytes" if load.failed else ""
    print(f"  {ended.step.load.name} ({ended.step.round}): {what}", flush=True)


# -- figures


def _key(asked: StreamLoad, runner: str) -> Key:
    assert asked.distant
    read = asked.distant
    name = read.strategy.value if read.strategy else runner
    return name, asked.streams, read.server.value, read.window.value, read.rtt_ms or 0


def _measured(steps: Sequence[StepRecord]) -> Measured:
    """Loads of each step by its round; a step that was refused has a gap of no bytes."""
    values: Measured = {}
    for ended in steps:
        key = _key(ended.step.load.loads[0], ended.step.load.runner.value)
        asked = ended.step.load.loads[0].access
        load = ended.result.loads[0] if ended.result else MeasuredLoad(asked, 0, 0, 1, 0.0, 0.0)
        values.setdefault(key, []).append(load)
    return values


def _errors(steps: Sequence[StepRecord]) -> Iterator[float]:
    """Milliseconds by which round trips before steps were off."""
    for ended in steps:
        read = ended.step.load.loads[0].distant
        if ended.result and read and read.rtt_ms is not None and (figures := ended.result.loads[0].distant):
            yield abs(figures.rtt_ms - read.rtt_ms)


def _speed(measured: Measured, key: Key) -> float | None:
    """The median of the rounds in MB/s; None: no round has a result."""
    speeds = [load.throughput / MB for load in measured.get(key, ()) if load.bytes and not load.failed]
    return median(speeds) if speeds else None


def _ratio(
    measured: Measured, strategy: DistantStrategy, window: TcpWindow, rtt_ms: float
) -> tuple[float, float] | None:
    """Our reader beside curl, pair by pair: the mean of the ratios, and the lower end of its 90 % interval."""
    streams = 4 if strategy is DistantStrategy.LAZY else 1
    place = (EndpointServer.NGINX.value, window.value, rtt_ms)
    ours, theirs = measured.get((strategy.value, streams, *place), []), measured.get(("curl", 1, *place), [])
    ratios = [
        mine.throughput / other.throughput
        for mine, other in zip(ours, theirs, strict=False)
        if mine.bytes and other.bytes and not mine.failed
    ]
    return interval(ratios)[:2] if len(ratios) > 1 else None


def _figures(tables: dict[str, Measured]) -> dict[str, float | None]:
    pairs, strategies = tables.get("pairs", {}), tables.get("strategies", {})
    whole = {rtt: _ratio(pairs, DistantStrategy.WHOLE, TcpWindow.STOCK, rtt) for rtt in (0, 5, 10, 25, 50, 100)}
    lazy = {
        (window, rtt): _ratio(pairs, DistantStrategy.LAZY, window, rtt) for window in TcpWindow for rtt in (50, 100)
    }
    for name, ratios in (("whole", whole), ("lazy", lazy)):
        for place, ratio in ratios.items():
            if ratio:
                where = place if isinstance(place, int) else f"{place[1]} ms, {place[0].value}"
                print(f"{name} by ours over curl at {where}: {ratio[0]:.2f}, 90 % from {ratio[1]:.2f} on")
    far = [ratio[1] for rtt, ratio in whole.items() if ratio and rtt]
    tuned = [ratio[0] for (window, _), ratio in lazy.items() if ratio and window is TcpWindow.TUNED]
    stock = {rtt: lazy[TcpWindow.STOCK, rtt] for rtt in (50, 100)}
    reads = {
        (name, rtt): _speed(strategies, (name, 1, EndpointServer.NGINX.value, TcpWindow.STOCK.value, rtt))
        for name in ("application", "storage")
        for rtt in (25, 100)
    }
    return {
        "whole_ratio_min": min(far, default=None),
        "lazy_ratio_50": stock[50][0] if stock[50] else None,
        "lazy_ratio_100": stock[100][0] if stock[100] else None,
        "lazy_tuned_ratio_min": min(tuned, default=None),
        "application_over_storage_25": _over(reads["application", 25], reads["storage", 25]),
        "application_over_storage_100": _over(reads["application", 100], reads["storage", 100]),
        "storage_100_mb_s": reads["storage", 100],
    }


def _greedy(measured: Measured) -> Iterator[Key]:
    """Reads together that took more than a request for each read of the trace, and one to open the file."""
    for key, loads in measured.items():
        counts = [(load.distant.requests or 0, load.operations) for load in loads if load.distant]
        if key[0] == DistantStrategy.APPLICATION.value and any(requests > reads + 1 for requests, reads in counts):
            yield key


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _table(measured: Measured) -> Iterator[str]:
    """Median MB/s by what reads and round trip; a dash: no step has a result."""
    distances = sorted({key[4] for key in measured})
    yield f"{'MB/s':38}" + "".join(f"{rtt:>8g} ms" for rtt in distances)
    for row in dict.fromkeys(key[:4] for key in measured):
        name, streams, server, window = row
        label = f"{name}{f' x {streams}' if streams > 1 else ''}, {server}, {window}"
        speeds = [_speed(measured, (*row, rtt)) for rtt in distances]
        yield f"{label:38}" + "".join(f"{'-' if speed is None else f'{speed:.2f}':>11}" for speed in speeds)


def _processor(measured: Measured) -> Iterator[str]:
    """CPU seconds per GB of whole files without a delay, of curl and of ours."""
    for key, loads in measured.items():
        costs = [
            load.distant.cpu_s / load.bytes * GB for load in loads if load.bytes and load.distant and load.distant.cpu_s
        ]
        if key[4] == 0 and costs:
            yield f"{key[0]} at 0 ms: {median(costs):.2f} CPU s per GB, {_speed(measured, key) or 0:.0f} MB/s"


if __name__ == "__main__":
    sys.exit(main())
