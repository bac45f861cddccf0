"""A shared cache: a trim of a million objects, warms beside curl, four warms at once, verifications beside bare SHA-1.

Trims are measured on tmpfs and on the disk of `--folder`, each in a process of its own. Objects of the warm have 64 MB
and no compression; nginx serves them, and curl fetches the same ones, with as many connections, before and after. Ends
in one line of JSON; code 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

from bench.publishing.machine import Idle, description
from include.aliencache.cache import AlienCache
from include.aliencache.contents import PinnedObjects, Wanted
from include.aliencache.names import SHARDS, place_of
from include.aliencache.trim import TrimOptions, trim
from include.aliencache.verify import Expected, Level, VerifyOptions, verify
from include.aliencache.warm import WarmOptions, warm
from include.cvmfs.format.catalog import CatalogObject
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.objects import Compression
from include.cvmfs.revision.repository import Repository
from include.settings.caches import Marks, UseOfObjects
from include.storage.open import open_store
from lab.ports import can_listen, free_port
from lab.servers.process import ServerProcess, find_program

FQRN = "data.example.org"
BLOCK, MB, GB = 4096, 1 << 20, 1e9
CONNECTIONS = 8
MOST = {
    "trim_s": 30.0,
    "trim_cpu_s": 20.0,
    "trim_mb": 100.0,
    "warm_mb": 250.0,
    "warmed_twice_share": 0.01,
    "verify_s": 60.0,
}
LEAST = {"warm_ratio": 0.8, "verify_name_ratio": 0.7}
CPU_S_PER_GB = 3.0
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 512; }}
http {{ access_log {folder}/access.log; sendfile on; keepalive_requests 1000000;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {root}; }} }}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench cache", description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000, help="of the trims; four tenths go [1000000]")
    parser.add_argument("--set-mb", type=int, default=2048, help="of the warm, in objects of 64 MB [2048]")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on a disk")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return _job(json.loads(options.job))
    print(f"machine: {description()}")
    print(f"{options.objects} objects, set of {options.set_mb} MB in objects of 64 MB, disk {options.folder}")
    idle, figures = Idle(), dict[str, float]()
    for name, folder in (("tmpfs", Path("/dev/shm")), ("disk", options.folder)):
        figures |= _trims(name, folder, options.objects)
    figures |= _sets(options.folder, options.set_mb)
    figures["trim_s"] = max(figures["trim_tmpfs_s"], figures["trim_disk_s"])
    figures["trim_cpu_s"] = max(figures["trim_tmpfs_cpu_s"], figures["trim_disk_cpu_s"])
    figures["trim_mb"] = max(figures["trim_tmpfs_mb"], figures["trim_disk_mb"])
    missed = [name for name, most in MOST.items() if figures[name] > most]
    missed += [name for name, least in LEAST.items() if figures[name] < least]
    if "warm_ratio" in missed and figures["warm_cpu_s_per_gb"] <= CPU_S_PER_GB:
        missed.remove("warm_ratio")  # either of the two is enough
    print(f"missed: {', '.join(missed) or 'nothing'}; the machine was idle for {idle.share():.0%} of it")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()} | {"ok": not missed}))
    return 1 if missed else 0


# -- trims


def _trims(name: str, above: Path, count: int) -> dict[str, float]:
    with _folder(above) as folder:
        cache = AlienCache(folder / "cache")
        cache.initialise()
        began = time.monotonic()
        now = time.time()
        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(lambda shard: _fill(cache, shard, count, now), range(256)):
                pass
        os.sync()
        print(f"{name}: {count} objects made in {time.monotonic() - began:.0f} s")
        there = sum(1 for _ in cache.path.glob("??/*"))
        checked = _in_process({"what": "size", "cache": str(cache.path), "count": count})
        done = _in_process({
            "what": "trim", "cache": str(cache.path), "above": there * BLOCK - 1, "until": there * BLOCK * 6 // 10
        })  # fmt: skip
        left = sum(1 for _ in cache.path.glob("??/*"))
        if abs(left - there * 0.6) > there * 0.001:
            raise SystemExit(f"{name}: {left} of {there} objects are left after the trim, not six tenths")
        print(
            f"{name}: trim of {there} objects, {there - left} removed: {done['s']:.1f} s, {done['cpu_s']:.1f} CPU s, "
            f"{done['mb']:.0f} MB; verified sizes before: {checked['s']:.1f} s, {checked['cpu_s']:.1f} CPU s"
        )
        return {
            f"trim_{name}_s": done["s"], f"trim_{name}_cpu_s": done["cpu_s"], f"trim_{name}_mb": done["mb"],
            "verify_s": checked["s"],
        }  # fmt: skip


def _names(shard: int, count: int) -> Iterator[ObjectHash]:
    for number in range(shard, count, 256):
        yield ObjectHash(bytes((shard,)) + hashlib.sha1(b"%d" % number, usedforsecurity=False).digest()[1:])


def _fill(cache: AlienCache, shard: int, count: int, now: float) -> None:
    descriptor = os.open(cache.path / SHARDS[shard], os.O_RDONLY)
    try:
        for place, name in enumerate(_names(shard, count)):
            file = os.open(str(name)[2:], os.O_WRONLY | os.O_CREAT, 0o660, dir_fd=descriptor)
            os.write(file, b"x")
            then = now - 86400 - (place * 7919 % 4096) * 600
            os.utime(file, (then, then))
            os.close(file)
    finally:
        os.close(descriptor)


# -- warms and verifications


def _sets(above: Path, set_mb: int) -> dict[str, float]:
    # here: the memory of the jobs is measured
    from include.benchmarks.measure.readers import make_data_set

    with _folder(above) as folder:
        public_key, names = make_data_set(folder / "www" / FQRN, FQRN, set_mb // 64, 64 * MB)
        (folder / "key.pub").write_bytes(public_key)
        with _nginx(folder, folder / "www") as url:
            figures = _warms(folder, f"{url}/{FQRN}", names)
        figures |= _by_name(folder, names)
    return figures


def _warms(folder: Path, url: str, names: list[ObjectHash]) -> dict[str, float]:
    job = {"what": "warm", "url": url, "key": str(folder / "key.pub")}
    total_gb, warms, curls = len(names) * 64 * MB / GB, [], []
    _curl(folder, url, names)  # the server's files are in the page cache from now on
    for _ in range(2):
        curls.append(_curl(folder, url, names))
        warms.append(_in_process(job | {"cache": str(_fresh(folder))}))
        warms.append(_in_process(job | {"cache": str(_fresh(folder))}))
        curls.append(_curl(folder, url, names))
    log = folder / "access.log"
    log.write_bytes(b"")
    cache = _fresh(folder)
    together = [_start(job | {"cache": str(cache)}) for _ in range(4)]
    done = [_ended(process) for process in together]
    asked = [line.split('"')[1].split()[1] for line in log.read_text().splitlines() if "/data/" in line]
    objects = {f"/{FQRN}/{name.key}" for name in names}
    fetched = [path for path in asked if path in objects]
    if set(fetched) != objects:
        raise SystemExit("four warms at once did not fetch every object")
    seconds, cpu_s = mean(one["s"] for one in warms), mean(one["cpu_s"] for one in warms)
    print(
        f"warm: {total_gb:.2f} GB in {seconds:.2f} s, {cpu_s / total_gb:.2f} CPU s per GB, "
        f" {max(one['mb'] for one in warms):.0f} MB; curl, {CONNECTIONS} at once: {mean(curls):.2f} s"
    )
    print(f"four at once: {max(one['s'] for one in done):.2f} s, {len(fetched)} requests for {len(objects)} objects")
    return {
        "warm_ratio": mean(curls) / seconds,
        "warm_cpu_s_per_gb": cpu_s / total_gb,
        "warm_mb": max(one["mb"] for one in warms),
        "warmed_twice_share": (len(fetched) - len(objects)) / len(objects),
    }


def _fresh(folder: Path) -> Path:
    place = folder / "cache"
    shutil.rmtree(place, ignore_errors=True)
    AlienCache(place).initialise()
    os.sync()
    return place


def _curl(folder: Path, url: str, names: list[ObjectHash]) -> float:
    """Seconds in which curl fetches the same objects into the same file system, flushed as a warm does."""
    target = folder / "curl"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    os.sync()
    lines = "".join(f'url = "{url}/{name.key}"\noutput = "{target}/{name}"\n' for name in names)
    (folder / "curl.conf").write_text(lines)
    began = time.monotonic()
    command = [
        "curl",
        "-sSf",
        "--no-progress-meter",
        "-Z",
        "--parallel-max",
        str(CONNECTIONS),
        "-K",
        str(folder / "curl.conf"),
    ]
    subprocess.run(command, check=True)
    for name in names:
        descriptor = os.open(target / str(name), os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.monotonic() - began


def _by_name(folder: Path, names: list[ObjectHash]) -> dict[str, float]:
    cache = str(folder / "cache")
    own, bare = list[float](), list[float]()
    for what, times in (("sha1", bare), ("name", own), ("name", own), ("sha1", bare)):
        times.append(_in_process({"what": what, "cache": cache, "names": [str(name) for name in names]})["s"])
    print(f"verify by name: {mean(own):.2f} s; bare SHA-1 of the same files, 4 threads: {mean(bare):.2f} s")
    return {"verify_name_ratio": mean(bare) / mean(own)}


# -- in processes of their own


def _job(job: dict[str, Any]) -> int:
    cache = AlienCache(Path(job["cache"]))
    prepared = _JOBS[job["what"]](cache, job)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    prepared()
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"s": seconds, "cpu_s": cpu, "mb": after.ru_maxrss / 1024}))
    return 0


def _job_trim(cache: AlienCache, job: dict[str, Any]) -> Callable[[], object]:
    marks = Marks.model_validate({"used_above": job["above"], "used_until": job["until"]})
    return lambda: trim(cache, TrimOptions(marks, UseOfObjects.ATIME), PinnedObjects())


def _job_size(cache: AlienCache, job: dict[str, Any]) -> Callable[[], object]:
    expected = Expected()
    for shard in range(256):
        for name in _names(shard, job["count"]):
            expected.contents.add(CatalogObject(name, 1, Compression.ZLIB))

    def work() -> None:
        report = verify(cache, expected, [], VerifyOptions(Level.SIZE))
        if report.good != report.objects:
            raise SystemExit(f"{report.objects - report.good} objects are not good")

    return work


def _job_warm(cache: AlienCache, job: dict[str, Any]) -> Callable[[], object]:
    store = open_store(job["url"])
    keys = [Path(job["key"]).read_bytes()]

    def work() -> None:
        repository = Repository.open(store, fqrn=FQRN, public_keys=keys)
        warm(cache, repository, [store], WarmOptions(Wanted(), workers=CONNECTIONS))

    return work


def _job_name(cache: AlienCache, job: dict[str, Any]) -> Callable[[], object]:
    expected = Expected()
    for text in job["names"]:
        expected.contents.add(CatalogObject(ObjectHash.parse(text), 64 * MB, Compression.NONE))

    def work() -> None:
        report = verify(cache, expected, [], VerifyOptions(Level.NAME))
        if report.good < len(job["names"]) or report.damaged_count:
            raise SystemExit(f"{report.good} objects are good, {report.damaged_count} damaged")

    return work


def _job_sha1(cache: AlienCache, job: dict[str, Any]) -> Callable[[], object]:
    def one(text: str) -> None:
        digest = hashlib.sha1(usedforsecurity=False)
        with (cache.path / place_of(ObjectHash.parse(text))).open("rb", buffering=0) as file:
            while block := file.read(MB):
                digest.update(block)
        if digest.hexdigest() != text:
            raise SystemExit(f"{text} is damaged")

    def work() -> None:
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(one, job["names"]):
                pass

    return work


_JOBS = {"trim": _job_trim, "size": _job_size, "warm": _job_warm, "name": _job_name, "sha1": _job_sha1}


def _start(job: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.cache", "--job", json.dumps(job)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _ended(process: subprocess.Popen[str]) -> dict[str, float]:
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit("a job failed, see above")
    return dict(json.loads(out.splitlines()[-1]))


def _in_process(job: dict[str, Any]) -> dict[str, float]:
    return _ended(_start(job))


@contextmanager
def _nginx(folder: Path, root: Path) -> Iterator[str]:
    program, port = find_program("nginx"), free_port()
    if program is None:
        raise SystemExit("nginx is not installed; run: make servers")
    for above in (folder, root):
        above.chmod(0o755)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, root=root, port=port))
    user = "user nobody nogroup;" if os.geteuid() == 0 else ""
    command = [program, "-p", f"{folder}/", "-c", str(folder / "nginx.conf"), "-g", user]
    with ServerProcess("nginx", command, log=folder / "nginx.out", ready=lambda: not can_listen(port)):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _folder(above: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="nightshift-cache-", dir=above))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
