"""A real build through the whole of a publication, by each compressor, beside a floor of the same run.

The tree is this machine's installed Python software, packed in order and with fixed times. On a store of files and on
SeaweedFS, first nights by `stock` and `fast` alternate with a floor: as many processes as cores that read the same
archive, compress by `fast`, hash, and write or PUT over as many connections. Then a second night with 5 % of the files
changed and a third without a change. Ends in one line of JSON, which is written to bench/results/build.json, too, with
a plot beside it, unless the run is void (code 3); code 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.plot import bar_plot
from bench.publishing import lab
from bench.publishing.machine import ROOT, Idle, Ran, description, run, start, tree
from bench.publishing.places import Place
from bench.publishing.repositories import EMPTY, Past, Templates
from bench.publishing.rounds import destination
from include.cvmfs.format.objects import Compressor

MB, GB = 10**6, 10**9
FLOOR_SPREAD = 0.15
MTIME = 1_790_000_000
CHANGED_EVERY = 20
TARGETS = {
    "fast_over_stock_prepare": 3.0, "fast_over_stock_per_cpu": 2.2, "fast_over_stock_rate": 2.0,
    "fast_over_stock_rate_s3": 1.4, "ratio_to_floor_file": 0.8, "ratio_to_floor_s3": 0.75,
    "third_night_files_per_s": 10_000.0, "third_night_over_tar": 0.6,
}  # fmt: skip
MOST_MB = 320


@dataclass
class Build:
    """An archive of installed software: its files, their bytes, and where each is, for the floor."""

    path: Path
    files: int = 0
    bytes: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)


def pack(path: Path, most_bytes: int, *, changed: bool = False) -> Build:
    """Pack installed software in the order of its names; with `changed`, the middle of every twentieth file is new."""
    build = Build(path)
    with (
        path.open("wb", buffering=1 << 20) as out,
        tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, file in _software():
            content = file.read_bytes()
            if changed and build.files % CHANGED_EVERY == 0:
                half = len(content) // 2
                content = content[:half] + random.Random(build.files).randbytes(32) + content[half:]
            header = tarfile.TarInfo(name)
            header.size, header.mtime, header.mode = len(content), MTIME, 0o755 if os.access(file, os.X_OK) else 0o644
            out.write(header.tobuf(tarfile.GNU_FORMAT))
            build.places.append((out.tell(), len(content)))
            out.write(content + bytes(-len(content) % tarfile.BLOCKSIZE))
            build.files += 1
            build.bytes += len(content)
            if build.bytes >= most_bytes:
                break
        tar.offset = out.tell()
    return build


def _software() -> Iterator[tuple[str, Path]]:
    """Name the files of all installed packages, and of the interpreter's own library."""
    for kind in ("purelib", "stdlib"):
        top = Path(sysconfig.get_path(kind))
        for file in _files(top):
            yield f"{kind}/{file.relative_to(top)}", file


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name in ("__pycache__", "site-packages"):
            continue  # what was compiled depends on the programs that ran here before
        if entry.is_dir() and not entry.is_symlink():
            yield from _files(entry)
        elif entry.is_file() and not entry.is_symlink():
            yield entry


@dataclass
class Bench:
    """The floor of a store, and publications to it."""

    place: Place
    templates: Templates
    folder: Path

    def floor(self, build: Build, name: str) -> float:
        """Seconds of the slowest process."""
        count = os.cpu_count() or 1
        (self.folder / "places").write_text(json.dumps(build.places))
        target = self.place.below(f"floor-{name}")
        job = {
            "place": target.as_json(), "archive": str(build.path), "places": str(self.folder / "places"),
            "compressor": Compressor.FAST.value, "workers": count, "begin": time.time() + 4,
        }  # fmt: skip
        running = [
            start("bench.publishing.floors", "archive", job={**job, "worker": worker}) for worker in range(count)
        ]
        seconds = max(float(each.wait().outcome) for each in running)
        self.clear(f"floor-{name}")
        return seconds

    def publish(self, build: Build, name: str, compressor: Compressor, *, fresh: bool = True) -> tuple[Ran, float]:
        """A publication by a process of its own, and the CPU seconds of the S3 server meanwhile."""
        place = self.place.repository(name)
        if fresh:
            self.templates.copy(EMPTY, place.open())
        before = _server_cpu_s()
        with lab.gateway(place, self.templates.keys, self.folder / f"gateway-{name}.db") as client:
            ran = run("bench.publishing.publisher", job={
                **client, "place": place.as_json(), "public_key": str(self.templates.public_key),
                "tarball": str(build.path), "destination": destination("build"),
                "earlier": [] if fresh else [destination("build")], "var": str(self.folder / f"var-{name}"),
                "compression": compressor.value,
            })  # fmt: skip
        return ran, _server_cpu_s() - before

    def clear(self, name: str) -> None:
        """Free the room; an S3 server keeps its objects to the end of the run."""
        if self.place.is_file:
            shutil.rmtree(Path(self.place.url.removeprefix("file://")) / name, ignore_errors=True)
        shutil.rmtree(self.folder / f"var-{name}", ignore_errors=True)


def _server_cpu_s() -> float:
    """CPU seconds of the S3 server, which this process started."""
    ticks = 0
    for pid in tree(os.getpid()):
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(") ")
        except OSError:
            continue
        if name.endswith("(weed"):
            ticks += sum(int(word) for word in rest.split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def prepared(build: Build, compressor: Compressor) -> dict[str, Any]:
    """CPU seconds of a preparation without a store, and the bytes that it would have stored."""
    out: dict[str, Any] = run(
        "bench.publishing.floors", "dry", job={"tarball": str(build.path), "compressor": compressor.value}
    ).outcome
    rate = build.bytes / MB / out["cpu_s"]
    print(f"prepare alone, {compressor.value:8}: {out['cpu_s']:.1f} CPU s ({rate:.0f} MB per CPU s), "
          f"{out['seconds']:.1f} s, {out['stored'] / MB:.0f} MB stored")  # fmt: skip
    return out


def of_store(bench: Bench, build: Build, second: Build, rounds: int) -> dict[str, Any]:
    """First nights in alternating order, then a second and a third one by `fast`."""
    floors: list[float] = []
    ran: dict[Compressor, list[tuple[Ran, float]]] = {Compressor.STOCK: [], Compressor.FAST: []}
    kind = "files" if bench.place.is_file else "S3"
    for number in range(rounds):
        steps = [None, Compressor.STOCK, Compressor.FAST]
        for step in steps if number % 2 == 0 else reversed(steps):
            if step is None:
                floors.append(bench.floor(build, f"{number}"))
                print(f"{kind}: floor {floors[-1]:.1f} s, {build.bytes / MB / floors[-1]:.0f} MB/s")
                continue
            name = f"{step.value}-{number}"
            ran[step].append(bench.publish(build, name, step))
            _tell(kind, step.value, build, *ran[step][-1])
            if step is not Compressor.FAST or number < rounds - 1:
                bench.clear(name)
    last = f"{Compressor.FAST.value}-{rounds - 1}"
    nights = {}
    for night, tarball in (("second", second), ("third", second)):
        tar_s = float(run("bench.publishing.floors", "tar", job={"tarball": str(tarball.path)}).outcome)
        done, server = bench.publish(tarball, last, Compressor.FAST, fresh=False)
        nights[night] = (done, tar_s)
        _tell(kind, f"{night} night", tarball, done, server)
        print(f"  tar-and-hash of the same archive: {tar_s:.1f} s")
    bench.clear(last)

    def figure(compressor: Compressor, name: str) -> float:
        return median(each.outcome[name] for each, _ in ran[compressor])

    third, tar_s = nights["third"]
    return {
        "floor_s": median(floors),
        "floor_spread": max(abs(each - median(floors)) for each in floors) / median(floors),
        "stock_s": figure(Compressor.STOCK, "seconds"), "fast_s": figure(Compressor.FAST, "seconds"),
        "stock_cpu_s": figure(Compressor.STOCK, "cpu_s"), "fast_cpu_s": figure(Compressor.FAST, "cpu_s"),
        "stock_server_cpu_s": median(server for _, server in ran[Compressor.STOCK]),
        "fast_server_cpu_s": median(server for _, server in ran[Compressor.FAST]),
        "requests": figure(Compressor.FAST, "puts") + figure(Compressor.FAST, "heads"),
        "peak_mb": max(each.rss_mb for each, _ in ran[Compressor.FAST]),
        "second_s": nights["second"][0].outcome["seconds"], "second_sent": nights["second"][0].outcome["objects_new"],
        "third_s": third.outcome["seconds"], "third_sent": third.outcome["objects_new"], "tar_s": tar_s,
    }  # fmt: skip


def _tell(kind: str, name: str, build: Build, ran: Ran, server_cpu_s: float) -> None:
    out = ran.outcome
    rates = f"{build.bytes / MB / out['seconds']:.0f} MB/s, {build.files / out['seconds']:,.0f} files/s"
    cpu = f"CPU {out['cpu_s']:.1f} s ({build.bytes / MB / out['cpu_s']:.0f} MB per CPU s)"
    sent = f"{out['objects_new']} objects sent, {out['puts']} PUTs, {out['heads']} HEADs"
    print(f"{kind}: {name:8} {out['seconds']:.1f} s, {rates}; {cpu}, of the server {server_cpu_s:.1f} s; "
          f"{ran.rss_mb:.0f} MB; {sent} (idle {ran.idle:.0%})", flush=True)  # fmt: skip


def conclude(
    build: Build, alone: Mapping[Compressor, dict[str, Any]], stores: Mapping[str, dict[str, Any]], results: Path
) -> int:
    """Print what was missed and the line of figures, and keep them."""
    stock, fast = alone[Compressor.STOCK], alone[Compressor.FAST]
    file = stores.get("file", {})
    figures: dict[str, float] = {
        "files": build.files, "gb": build.bytes / GB,
        "fast_over_stock_prepare": stock["cpu_s"] / fast["cpu_s"],
        "balanced_over_stock_prepare": stock["cpu_s"] / alone[Compressor.BALANCED]["cpu_s"],
        "stored_over_stock": fast["stored"] / stock["stored"],
        "balanced_stored_over_stock": alone[Compressor.BALANCED]["stored"] / stock["stored"],
    }  # fmt: skip
    if file:
        figures |= {
            "fast_over_stock_per_cpu": file["stock_cpu_s"] / file["fast_cpu_s"],
            "fast_over_stock_rate": file["stock_s"] / file["fast_s"],
            "third_night_sent": file["third_sent"], "third_night_files_per_s": build.files / file["third_s"],
            "third_night_over_tar": file["tar_s"] / file["third_s"],
        }  # fmt: skip
    for name, found in stores.items():
        figures[f"ratio_to_floor_{'file' if name == 'file' else 's3'}"] = found["floor_s"] / found["fast_s"]
        if name != "file":
            figures |= {"fast_over_stock_rate_s3": found["stock_s"] / found["fast_s"]}
            figures |= {"third_night_sent_s3": found["third_sent"]}
    figures["peak_mb"] = max(found["peak_mb"] for found in stores.values())
    missed = [f"{name} {figures[name]:.2f} (asked {least:g})" for name, least in TARGETS.items()
              if name in figures and figures[name] < least]  # fmt: skip
    missed += [f"peak_mb {figures['peak_mb']:.0f} (asked {MOST_MB})"] if figures["peak_mb"] > MOST_MB else []
    missed += ["third night: objects were sent"] if figures.get("third_night_sent") else []
    spread = max(found["floor_spread"] for found in stores.values())
    void = spread > FLOOR_SPREAD
    print(f"floors: within {spread:.0%} of their medians{'; VOID, the machine was not quiet' if void else ''}")
    print(f"missed: {'; '.join(missed) or 'nothing'}")
    line = {name: round(value, 3) for name, value in figures.items()} | {"ok": not missed}
    if not void:
        _keep(line, build, stores, results)
    print(json.dumps(line))
    return 3 if void else bool(missed)


def _keep(line: Mapping[str, Any], build: Build, stores: Mapping[str, dict[str, Any]], results: Path) -> None:
    """Write the figures and their plot."""
    results.mkdir(parents=True, exist_ok=True)
    (results / "build.json").write_text(
        json.dumps({**line, "stores": stores, "machine": description()}, indent=1) + "\n"
    )
    (results / "build.svg").write_text(bar_plot(
        f"a first night of {build.files:,} files, {build.bytes / GB:.2f} GB", "processor seconds",
        [
            (f"{'files' if name == 'file' else name}, {compressor}",
             {"publisher": found[f"{compressor}_cpu_s"], "S3 server": found[f"{compressor}_server_cpu_s"]})
            for name, found in stores.items() for compressor in ("stock", "fast")
        ],
    ))  # fmt: skip


@contextmanager
def _store(kind: str, folder: Path, connections: int) -> Iterator[Place]:
    with lab.store(folder.as_uri() if kind == "file" else kind, folder, connections) as place:
        yield place


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench build", description=__doc__)
    parser.add_argument("--gb", type=float, default=10.0, help="of the tree at most; a whole one has about 1.05 [10]")
    parser.add_argument("--stores", default="file,weed", help="file, weed, radosgw, with commas [file,weed]")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for archives and stores")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    print(f"machine: {description()}")
    templates = Templates(Path(tempfile.gettempdir()) / "nightshift-bench-repositories", Past(0.01))
    idle = Idle()
    with tempfile.TemporaryDirectory(prefix="nightshift-build-", dir=options.folder) as name:
        folder = Path(name)
        build = pack(folder / "first.tar", int(options.gb * GB))
        second = pack(folder / "second.tar", int(options.gb * GB), changed=True)
        print(f"{build.files:,} files, {build.bytes / GB:.2f} GB, of {ROOT.name}'s environment; "
              f"{options.connections} connections, {options.rounds} rounds")  # fmt: skip
        alone = {each: prepared(build, each) for each in (Compressor.STOCK, Compressor.BALANCED, Compressor.FAST)}
        stores = {}
        for kind in options.stores.split(","):
            own = folder / kind
            own.mkdir()
            with _store(kind, own, options.connections) as place:
                stores[kind] = of_store(Bench(place, templates, own), build, second, options.rounds)
            shutil.rmtree(own, ignore_errors=True)
    print(f"the machine was idle for {idle.share():.0%} of it")
    return conclude(build, alone, stores, options.results)


if __name__ == "__main__":
    sys.exit(main())
