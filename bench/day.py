"""A site's day of builds, scaled down, under the real Airflow: how many hours the whole day takes on this machine.

The source's day: 3.8 million files and 200 GB in 1,500 artifacts, by three publishers. A part of it (1/40 by default)
has fewer artifacts, each as large as a real one: gzipped tarballs whose sizes of files are drawn from this machine's
installed software, scaled to the source's mean, and whose contents are pieces of it, each marked as its own. In a lab
of its own for each part: a build that has expired is removed; the night before is published; a night of one small file
gives the part of a night that does not grow; then the night that is measured, in which 70 % of the files are those of
the night before. Builds stay for three days, a collection deletes the expired build's objects meanwhile, and a reader
follows `latest` and reads files. Hours = (wall - fixed) x scale + fixed.

Processor seconds are sampled five times a second from the processes of the lab; threads of the kernel, which write
files back, are apart; the rest, of processes that ended between two samples, counts as Airflow's.

Ends in one line of JSON, which is written to bench/results/day.json, too, with a plot beside it; code 1 if a target was
missed, an artifact was not published, the collection deleted nothing, or the reader saw an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import sys
import sysconfig
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from io import BytesIO
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from isal import igzip

from bench.nights.lab import BenchLab, bench_lab, say
from bench.nights.times import seconds
from bench.plot import bar_plot
from bench.publishing.machine import Idle, description
from include.cli.settings import check_site
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.revision.repository import Repository
from include.errors import NightshiftError
from include.nightlies.rules.build import links_of
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.steps.care import file_name, reports_of
from include.nightlies.steps.sources import index_place
from include.settings.secrets import EnvSecrets
from include.storage.errors import StoreError
from include.storage.open import open_store
from lab.errors import LabError
from lab.supervise import Supervisor

FILES, BYTES, ARTIFACTS = 3_800_000, 200 * 10**9, 1500
"""The source's day."""
KNOWN = 0.7
KEEP_DAYS, EXPIRED_DAYS, EXPIRED = 3, 10, 2
HOURS, AIRFLOW_SHARE, LINEARITY = 1.5, 0.25, 0.10
COLLECTION = "nightly_gc"
LOOK_S, READ_S, MOST_S = 0.2, 0.5, 3600.0
CATALOGS_BYTES = 256 << 20
MTIME = 1_790_000_000
AIRFLOW = ("api-server", "scheduler", "dag-processor", "triggerer", "postgres")


@dataclass(frozen=True, slots=True)
class Pool:
    """A file with the contents of installed software one after the other, and the sizes that files of it have."""

    path: Path
    sizes: tuple[int, ...]

    @classmethod
    def of_this_machine(cls, path: Path, most: int = 1 << 30) -> Pool:
        sizes: list[int] = []
        with path.open("wb") as out:
            for file in sorted(Path(sysconfig.get_path("purelib")).rglob("*")):
                if file.is_file() and not file.is_symlink() and out.tell() < most:
                    content = file.read_bytes()
                    sizes.append(len(content))
                    out.write(content)
        scale = BYTES / FILES * len(sizes) / sum(sizes)
        return cls(path, tuple(round(size * scale) for size in sizes))


def pack(pool: Pool, folder: Path, build_id: str, project: str, files: int, before: str) -> Artifact:
    """Write one artifact of a build; with `before`, 70 % of its files are those of that build."""
    url = f"{build_id}/{project}.tar.gz"
    path = folder / url
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        pool.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content,
        igzip.open(path, "wb", compresslevel=1) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for number in range(files):
            draw = random.Random(f"{project} {number}")
            size = draw.choice(pool.sizes)
            kept = before and draw.random() < KNOWN
            mark = hashlib.sha256(f"{before if kept else build_id} {project} {number}".encode()).digest()
            begin = int.from_bytes(mark[:6], "big") % max(1, len(content) - size)
            data = (mark + content[begin : begin + size])[:size]
            member = tarfile.TarInfo(f"lib/d{number // 100:03}/file{number:05}")
            member.size, member.mtime = len(data), MTIME
            tar.addfile(member, BytesIO(data))
    data = path.read_bytes()
    return Artifact(project, "x86_64-el9-gcc13-opt", url, len(data), hashlib.sha256(data).hexdigest())


class Processors:
    """Processor seconds of a lab's processes, by what they are, between the beginning and the end of a context."""

    def __init__(self, lab: BenchLab) -> None:
        self._supervisor = Supervisor(lab.lab.place)
        programs = self._supervisor.processes().values()
        self._programs = {program.pid: program.name for program in programs if program.pid}
        self._of: dict[tuple[int, float], tuple[str, float, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Processors:
        self._busy, self._own, self._kernel = _busy_s(), time.process_time(), _kernel_s()
        self._look(first=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self._busy, self._own = _busy_s() - self._busy, time.process_time() - self._own
        self._kernel = _kernel_s() - self._kernel

    def parts(self, tasks: Mapping[str, str]) -> dict[str, float]:
        """Seconds by part; `tasks`: ids of task instances and their names, as `artifact.prepare`."""
        names = ("publisher", "store", "gateway", "collection", "other tasks", "Airflow")
        parts = {**dict.fromkeys(names, 0.0), "kernel": max(0.0, self._kernel)}
        for name, before, now in self._of.values():
            parts[_part(name, tasks)] += now - before
        parts["Airflow"] += max(0.0, self._busy - self._own - sum(parts.values()))
        return parts

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            self._look()

    def _look(self, *, first: bool = False) -> None:
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            try:
                children.setdefault(process.ppid(), []).append(process)
            except psutil.Error:
                continue
        for pid, name in self._programs.items():
            try:
                self._note(psutil.Process(pid), name, children, first)
            except psutil.Error:
                continue

    def _note(
        self, process: psutil.Process, name: str, children: Mapping[int, Sequence[psutil.Process]], first: bool
    ) -> None:
        """Note what a process and all that it started have used."""
        ours = [(process, name)]
        while ours:
            current, name = ours.pop()
            try:
                key = (current.pid, current.create_time())
                if not name.startswith("task ") and (task := _task(current)):
                    name = f"task {task}"
                elif key in self._of and self._of[key][0].startswith("task "):
                    name = self._of[key][0]  # a process that ends loses its title before it is gone
                times = current.cpu_times()
            except psutil.Error:
                continue
            used = times.user + times.system
            before = self._of[key][1] if key in self._of else used if first else 0.0
            self._of[key] = (name, before, used)
            ours += [(child, name) for child in children.get(current.pid, ())]


def _task(process: psutil.Process) -> str:
    """The id of the task instance that a process runs, by its title; empty: it runs none."""
    words = " ".join(process.cmdline()).strip()
    prefix = "airflow worker -- "
    return words.removeprefix(prefix) if words.startswith(prefix) and "LocalExecutor" not in words else ""


def _part(name: str, tasks: Mapping[str, str]) -> str:
    if not name.startswith("task "):
        return {"weed": "store", "gateway": "gateway"}.get(name, "Airflow" if name in AIRFLOW else "other tasks")
    task = tasks.get(name.removeprefix("task "), "")
    if task in ("artifact.prepare", "artifact.publish"):
        return "publisher"
    return "collection" if task.rpartition(".")[2] in ("collect", "remove") else "other tasks"


def _busy_s() -> float:
    """Seconds that processors of this machine have worked."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


KTHREADD = 2


def _kernel_s() -> float:
    """Seconds that the threads of the kernel that exist now have worked."""
    spent = 0.0
    for process in psutil.process_iter():
        try:
            if process.ppid() == KTHREADD:
                times = process.cpu_times()
                spent += times.user + times.system
        except psutil.Error:
            continue
    return spent


@dataclass
class Reader:
    """A job that follows `latest`: twice a second it reads the link and a file below it, at the newest revision."""

    url: str
    fqrn: str
    key: bytes
    link: str
    errors: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    files: int = 0

    def __enter__(self) -> Reader:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        store, draw, revision = open_store(self.url), random.Random(1), 0
        catalogs = CatalogCache(store, budget=CATALOGS_BYTES)
        while not self._stop.wait(READ_S):
            try:
                repository = Repository.open(
                    store, fqrn=self.fqrn, public_keys=[self.key], min_revision=revision, catalogs=catalogs
                )
                revision = repository.manifest.revision
                self._read(repository, draw)
            except (CvmfsError, StoreError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")

    def _read(self, repository: Repository, draw: random.Random) -> None:
        tree = repository.revision
        entry = tree.lookup(self.link)
        if entry is None:
            return
        target = entry.symlink or ""
        if target not in self.targets:
            self.targets.append(target)
        path = f"{self.link.rpartition('/')[0]}/{target}"
        while (entry := tree.entry(path)).is_directory:
            names = [each.name for each in tree.listing(path) if not each.name.startswith(".")]
            if not names:
                return
            path = f"{path}/{draw.choice(names)}"
        tree.read(path)
        self.files += 1


@dataclass(frozen=True, slots=True)
class Night:
    """A night as it was measured."""

    wall_s: float
    published: int
    longest_lease_s: float
    files: int
    bytes: int
    bytes_sent: int
    parts: Mapping[str, float]
    idle: float


@dataclass
class Day:
    """The nights of one part of the day, in one lab."""

    lab: BenchLab
    pool: Pool
    scale: int

    @property
    def artifacts(self) -> int:
        return max(1, round(ARTIFACTS / self.scale))

    def drop(self, day: date, artifacts: int, files: int, before: date | None = None) -> None:
        """Put the build of a date where the slot looks for it."""
        lab, build_id = self.lab, f"b{day:%Y%m%d}"
        store = lab.site.store(lab.slot.store)
        folder = Path(store.url.removeprefix("file://"))
        projects = [f"P{number:04}" for number in range(artifacts)]
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as processes:
            made = tuple(processes.map(
                pack, repeat(self.pool), repeat(folder), repeat(build_id), projects, repeat(files),
                repeat(f"b{before:%Y%m%d}" if before else ""),
            ))  # fmt: skip
        index = BuildIndex(lab.slot.name, build_id, day, complete=True, artifacts=made)
        store.put(index_place(lab.slot, day), index.format())

    def night(self, day: date, artifacts: int, collection: str = "") -> Night:
        """Run the night of a date; `collection`: a run of the collection that begins with it."""
        lab, idle = self.lab, Idle()
        with Processors(lab) as processors:
            if collection:
                accepted = {"repositories": [lab.slot.repository], "accept": "the expired build is much of it"}
                lab.api.trigger(COLLECTION, collection, accepted, logical_date=None)
            run_id = lab.start(day)
            lab.follow(run_id, MOST_S)
        run = lab.api.ask("GET", f"/dags/{lab.dag_id}/dagRuns/{run_id}")
        tasks = [*lab.tasks(run_id), *(lab.api.task_instances(COLLECTION, collection) if collection else ())]
        done = lab.publications(run_id)
        if (good := sum(each.state.good for each in done)) != artifacts:
            reasons = sorted({each.reason for each in done if not each.state.good})
            raise LabError(f"{good} of {artifacts} artifacts of {day} were published: {'; '.join(reasons)}")
        return Night(
            seconds(run["end_date"]) - seconds(run["queued_at"]),
            len(done),
            max(each.lease_held_s or 0.0 for each in done),
            sum(each.files or 0 for each in done), sum(each.bytes or 0 for each in done),
            sum(each.bytes_uploaded or 0 for each in done),
            processors.parts({str(task["id"]): str(task["task_id"]) for task in tasks}),
            idle.share(),
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        """All nights; the figures of the last one."""
        lab, today = self.lab, self.lab.today()
        files = round(FILES / ARTIFACTS)
        lab.api.unpause(COLLECTION)
        check_site(EnvSecrets())  # a collection begins only on a store that was seen to keep conditions
        expired, earlier = today - timedelta(days=EXPIRED_DAYS), today - timedelta(days=2)
        self.drop(expired, EXPIRED, files)
        self.night(expired, EXPIRED)
        self.drop(earlier, self.artifacts, files)
        first = self.night(earlier, self.artifacts)
        say(f"1/{self.scale}: the night before, all of it new: {first}")
        lab.api.trigger(COLLECTION, "removal", {}, logical_date=None)
        self._until_collected("removal")
        self.drop(today - timedelta(days=1), 1, 1)
        fixed = self.night(today - timedelta(days=1), 1)
        say(f"1/{self.scale}: a night of one file: {fixed}")
        self.drop(today, self.artifacts, files, before=earlier)
        settings = lab.site.settings.repository(lab.slot.repository)
        (link,) = links_of(lab.slot, today)  # `latest`
        key = settings.public_key.read_bytes()
        with Reader(settings.public_url, lab.slot.repository, key, link) as reader:
            night = self.night(today, self.artifacts, "meanwhile")
        say(f"1/{self.scale}: the night, {KNOWN:.0%} of it known: {night}")
        deleted = self._until_collected("meanwhile")
        return {
            "scale": self.scale, "first": asdict(first), "fixed": asdict(fixed), "night": asdict(night),
            "deleted": deleted, "reader_errors": reader.errors, "reader_files": reader.files,
            "reader_builds": reader.targets,
        }  # fmt: skip

    def _until_collected(self, run_id: str) -> int:
        """Wait for a collection; return how many objects it deleted."""
        lab, ends = self.lab, time.monotonic() + MOST_S
        while (state := lab.api.run_state(COLLECTION, run_id)) not in ("success", "failed"):
            if time.monotonic() > ends:
                raise LabError(f"the collection {run_id} has not ended after {MOST_S:.0f} s")
            time.sleep(2.0)  # Airflow offers no event stream
        path = reports_of(lab.site, lab.slot.repository) / f"{file_name(f'{COLLECTION}/{run_id}')}.json"
        if state == "failed" or not path.exists():
            raise LabError(f"the collection {run_id} did not come to its end: {state}")
        return int(json.loads(path.read_text())["deleted"])


@contextmanager
def _lab(store: str, compression: str) -> Iterator[BenchLab]:
    def change(document: dict[str, Any]) -> None:
        var = "${NIGHTSHIFT_VAR:-var}"
        document["stores"]["builds"] = {"url": f"file:{var}/builds"}
        for name, repository in document["repositories"].items():
            repository["collection"] = {"grace_days": 0, "careful": False}
            repository["prepare"] = {"compression": compression}
            if store == "file":
                document["stores"]["cvmfs"] = {"url": f"file:{var}/store"}
                repository["public_url"] = f"file:{var}/store/{name}"
        for slot in document["slots"].values():
            slot["retention"] = {"keep_days": KEEP_DAYS, "minimum": 1, "rebuild_days": 0}
            slot["links"]["weekdays"] = False  # one of them would keep the expired build
        document["benchmarks"]["targets"].pop("objects")

    with bench_lab(change) as lab:
        yield lab


def _scaled(day: Mapping[str, Any], value: float, fixed: float) -> float:
    """Scale seconds of the night to the whole day; ``fixed``: those of a night of one file, which do not grow."""
    return (value - fixed) * float(day["scale"]) + fixed


def conclude(days: Mapping[str, Mapping[int, Mapping[str, Any]]], options: argparse.Namespace, machine: str) -> int:
    """Print the figures and what was missed, and keep them."""
    hours, missed, bars = dict[str, float](), list[str](), list[tuple[str, dict[str, float]]]()
    figures: dict[str, float] = {}
    for store, parts in days.items():
        day = parts[options.scale]
        night, fixed = day["night"], day["fixed"]
        hours[store] = _scaled(day, night["wall_s"], fixed["wall_s"]) / 3600
        whole = {name: _scaled(day, used, fixed["parts"][name]) for name, used in night["parts"].items()}
        share = whole["Airflow"] / sum(whole.values())
        bars.append((f"{store}, {hours[store]:.2f} h", {name: used / 3600 for name, used in whole.items()}))
        say(f"{store}: the whole day in {hours[store]:.2f} h, {sum(whole.values()) / 3600:.2f} processor hours: "
            + ", ".join(f"{name} {used / sum(whole.values()):.0%}" for name, used in whole.items())
            + f"; longest lease {night['longest_lease_s']:.2f} s; {day['deleted']:,} objects deleted; "
            f"the reader read {day['reader_files']} files of {len(day['reader_builds'])} builds")  # fmt: skip
        suffix = "" if store == "file" else "_s3"
        figures |= {f"hours{suffix}": hours[store], f"airflow_share{suffix}": share,
                    f"longest_lease_s{suffix}": night["longest_lease_s"]}  # fmt: skip
        small, large = min(parts), max(parts)  # of the divisor: the small one is the larger part
        if small != large:
            spent = {scale: part["night"]["wall_s"] - part["fixed"]["wall_s"] for scale, part in parts.items()}
            figures[f"linearity{suffix}"] = spent[small] / spent[large] / (large / small)
        for scale, part in parts.items():
            missed += [f"{store}, 1/{scale}: {error}" for error in part["reader_errors"]]
            missed += [] if part["deleted"] else [f"{store}, 1/{scale}: the collection deleted nothing"]
    figures["reader_errors"] = sum(len(part["reader_errors"]) for parts in days.values() for part in parts.values())
    if figures.get("hours", 0.0) > HOURS:
        missed.append(f"hours {figures['hours']:.2f} (asked {HOURS})")
    if figures.get("airflow_share", 0.0) > AIRFLOW_SHARE:
        missed.append(f"airflow_share {figures['airflow_share']:.2f} (asked {AIRFLOW_SHARE})")
    if abs(figures.get("linearity", 1.0) - 1) > LINEARITY:
        missed.append(f"linearity {figures['linearity']:.2f} (asked 1 within {LINEARITY})")
    print(f"missed: {'; '.join(missed) or 'nothing'}")
    line = {name: round(value, 3) for name, value in figures.items()} | {"ok": not missed}
    options.results.mkdir(parents=True, exist_ok=True)
    kept = {**line, "scale": options.scale, "compression": options.compression, "machine": machine, "days": days}
    (options.results / "day.json").write_text(json.dumps(kept, indent=1) + "\n")
    title = f"a day of {FILES:,} files, {BYTES / 10**9:.0f} GB, from 1/{options.scale}"
    (options.results / "day.svg").write_text(bar_plot(title, "processor hours", bars))
    print(json.dumps(line))
    return bool(missed)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench day", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=int, default=40, help="the part of the day is 1/SCALE [40]")
    parser.add_argument("--others", default="80,20", help="further parts on the file store, for linearity [80,20]")
    parser.add_argument("--stores", default="file,weed", help="file, weed [file,weed]")
    parser.add_argument("--compression", default="fast", help="of the repository [fast]")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    machine = description()
    say(f"machine: {machine}")
    days: dict[str, dict[int, Any]] = {}
    with TemporaryDirectory(prefix="nightshift-day-") as folder:
        pool = Pool.of_this_machine(Path(folder) / "pool")
        for store in options.stores.split(","):
            others = [int(word) for word in options.others.split(",") if word] if store == "file" else []
            for scale in [options.scale, *others]:
                try:
                    with _lab(store, options.compression) as lab:
                        days.setdefault(store, {})[scale] = Day(lab, pool, scale).run()
                except NightshiftError as error:
                    print(f"{store}, 1/{scale}: {error}")
                    return 1
    return conclude(days, options, machine)


if __name__ == "__main__":
    sys.exit(main())
