"""Many jobs that read a shared data set by one way to it: the benchmark of the paper on auxiliary data.

Each job is a process that reads some files of the set, drawn by a seed, twice. The set, the caches and the servers of a
way are in the area of the campaign; each way begins with empty caches.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from include.aliencache.cache import AlienCache
from include.aliencache.contents import Wanted
from include.aliencache.warm import WarmOptions, warm
from include.benchmarks.errors import RUNNER_FAILED
from include.benchmarks.measure.loads import (
    LOCAL_CACHES,
    JobTimes,
    LatencyHistogram,
    LoadAccess,
    LoadStep,
    MeasuredLoad,
    ReaderWay,
    RunnerResult,
    StreamLoad,
)
from include.benchmarks.measure.programs import BenchmarkProgram, StopSignal
from include.benchmarks.measure.targets import FolderArea, Runner, RunnerAbilities
from include.cvmfs.commit.commit import switch
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.metadata_objects import Records
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash, hash_bytes, path_hash
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key
from include.cvmfs.format.objects import Compression
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.repository import Repository
from include.storage.open import open_store

FQRN = "data.nightshift.test"
PATIENCE = 5.0
"""A way that takes so many times as long as the origin is stopped."""
START_S = 30.0
NGINX = BenchmarkProgram("nginx", "nginx-light")
SQUID = BenchmarkProgram("squid", "squid")
XROOTD = BenchmarkProgram("xrootd", "xrootd-server")
_PROGRAM = "include.benchmarks.measure.reader"
_LIMITED = frozenset({ReaderWay.LIMITED, ReaderWay.REDIRECTING})
_MTIME = 1_780_000_000
_USER = "daemon"  # of XRootD, which does not run as root
_NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1; {user}
events {{ worker_connections 1024; }}
http {{ sendfile on; keepalive_requests 1000000; access_log off;
  log_format bytes '$body_bytes_sent $uri';
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  proxy_cache_path {folder}/proxy levels=1:2 keys_zone=c:10m max_size=100g inactive=1d use_temp_path=off;
  split_clients $uri $data {{ 50% {data1}; * {data2}; }}
  server {{ listen 127.0.0.1:{origin}; root {www}; access_log {folder}/origin.log bytes; }}
  server {{ listen 127.0.0.1:{front}; location ~ /data/ {{ return 302 http://127.0.0.1:$data$uri; }} root {www}; }}
  server {{ listen 127.0.0.1:{proxy}; location / {{ proxy_pass http://127.0.0.1:{origin}; proxy_cache c;
    proxy_cache_valid 200 1d; proxy_cache_lock on; proxy_cache_lock_timeout 10m; proxy_cache_lock_age 10m;
    proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
}}
"""
_SQUID = """
http_port 127.0.0.1:{squid}
cache_dir ufs {folder}/cache 100000 16 256
maximum_object_size {most}
cache_mem 64 MB
collapsed_forwarding on
acl everyone src all
http_access allow everyone
{user}
pid_filename {folder}/squid.pid
cache_log {folder}/cache.log
access_log none
shutdown_lifetime 1 seconds
netdb_filename none
pinger_enable off
icp_port 0
refresh_pattern . 1440 100% 100000 override-expire ignore-reload
"""
_XROOTD = """
all.export /{fqrn} r/o
oss.localroot {www}
all.adminpath {admin}
all.pidpath {admin}
xrd.port {data1}
xrd.network nodnr norpipa
"""
_XCACHE = """
all.export /{fqrn}
all.adminpath {admin}
all.pidpath {admin}
xrd.port {data2}
xrd.network nodnr norpipa
xrd.protocol http:{proxy} libXrdHttp.so
http.desthttps no
ofs.osslib libXrdPss.so
pss.cachelib libXrdPfc.so
pss.origin 127.0.0.1:{data1}
oss.localroot {cache}
pfc.ram 1g
pfc.blocksize 1m
pfc.prefetch 0
pfc.diskusage 0.90 0.95
"""


def make_data_set(place: Path, fqrn: str, files: int, file_bytes: int) -> tuple[bytes, list[ObjectHash]]:
    """A repository of random files that are an object each, without compression; its public key and their objects."""
    now, store = datetime.now(UTC), open_store(place.as_uri())
    master, signer = generate_master(), generate_repository_key(fqrn, now)
    head = create_repository(store, fqrn, master=master, signer=signer, now=now)
    names, rows = list[ObjectHash](), []
    for number in range(files):
        content = os.urandom(file_bytes)
        name = hash_bytes(content)
        store.put(name.key, content)
        entry = Dirent(
            f"flux{number:04d}", 0o100644, size=file_bytes, mtime=_MTIME, hash=name, compression=Compression.NONE
        )
        rows.append((*path_hash(f"/{entry.name}"), *path_hash(""), *entry.to_row()))
        names.append(name)
    edit = Edit(CatalogCache(store), head.manifest.root)
    edit.add_rows("", rows, [], Counts(regular=len(rows), file_size=file_bytes * len(rows)))
    new = edit.finish(int(now.timestamp()))
    switch(store, head, new, signer=signer, now=int(now.timestamp()), records=Records())
    edit.close()
    return format_public_key(master.public_key()), names


class ReadersRunner(Runner[FolderArea]):
    """Jobs by one way to the data set; operations are files."""

    abilities = RunnerAbilities(frozenset({LoadAccess.PUBLISH, LoadAccess.READ}), limits_rates=False, takes_ramp=False)

    def run(self, step: LoadStep, area: FolderArea, scratch: Path) -> RunnerResult:
        (load,) = step.loads
        folder = area.folder / load.dataset
        if load.access is LoadAccess.PUBLISH:
            return _make(folder, load)
        if os.geteuid() == 0:
            for place in (area.folder, folder, folder / "www", folder / "www" / FQRN):
                place.chmod(0o755)  # Squid and XRootD leave the rights of root, and have to enter
        return _Scene(step, folder, scratch, area.stop or StopSignal()).run()


def _make(folder: Path, load: StreamLoad) -> RunnerResult:
    began = time.monotonic()
    folder.mkdir()
    key, names = make_data_set(folder / "www" / FQRN, FQRN, load.files, load.file_bytes)
    (folder / "key.pub").write_bytes(key)
    (folder / "set.json").write_text(json.dumps([str(name) for name in names]))
    os.sync()
    taken = time.monotonic() - began
    command = ("data set", f"{load.files} files of {load.file_bytes} B", str(folder))
    return RunnerResult("readers", (command,), (MeasuredLoad(load.access, load.bytes, load.files, 0, taken, taken),))


@dataclass(frozen=True, slots=True)
class _JobsOutcome:
    jobs: tuple[dict[str, Any], ...]
    seconds: float
    ended: bool


class _Scene:
    """The servers, caches and jobs of a way."""

    def __init__(self, step: LoadStep, folder: Path, scratch: Path, stop: StopSignal) -> None:
        self.step, self.folder, self.scratch, self.stop = step, folder, scratch, stop
        (self.load,) = step.loads
        self.way = self.load.way or ReaderWay.ORIGIN
        self.place = folder / "way"
        self.names = [ObjectHash.parse(text) for text in json.loads((folder / "set.json").read_text())]
        self.ports = _free_ports("origin", "front", "data1", "data2", "proxy", "squid")
        self.values = {"folder": self.place, "www": folder / "www", "fqrn": FQRN, **self.ports}

    def run(self) -> RunnerResult:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        try:
            with contextlib.ExitStack() as servers:
                xrootd = self._start(servers)
                caches = self._caches()
                notes = self._warm(caches[0]) if self.way is ReaderWay.ALIEN_WARM else ()
                read_before = _bytes_read(xrootd)
                outcome = self._read(caches)
                sent = self._sent() if xrootd is None else _bytes_read(xrootd) - read_before
            self._remember(outcome)
            return self._result(outcome, sent, notes)
        finally:
            shutil.rmtree(self.place, ignore_errors=True)

    # -- servers

    def _start(self, servers: contextlib.ExitStack) -> subprocess.Popen[bytes] | None:
        """Start what the way needs; the process of the origin, if that is XRootD."""
        if self.way is ReaderWay.XCACHE:
            # sockets are there, and their paths are short
            admin = servers.enter_context(tempfile.TemporaryDirectory(prefix="nightshift-"))
            folder = _given_away(self.place / "cache", _USER)
            if os.geteuid() == 0:
                shutil.chown(admin, _USER)
            origin = self._xrootd(servers, "origin", _XROOTD, self.ports["data1"], admin=admin)
            self._xrootd(servers, "xcache", _XCACHE, self.ports["proxy"], admin=admin, cache=folder)
            return origin
        user = "user root;" if os.geteuid() == 0 else ""
        config = self._config("nginx.conf", _NGINX, user=user)
        servers.enter_context(self._server((NGINX.path(), "-c", config), self.ports["origin"]))
        if self.way in _LIMITED:
            for port in (self.ports["data1"], self.ports["data2"]):
                job = json.dumps({"port": port, "root": str(self.folder / "www")})
                servers.enter_context(self._server((sys.executable, "-m", _PROGRAM, "serve", job), port))
        if self.way in (ReaderWay.SQUID, ReaderWay.SQUID_RAISED):
            folder = _given_away(self.place / "squid", "proxy")
            user = "cache_effective_user proxy" if os.geteuid() == 0 else ""
            most = "4 MB" if self.way is ReaderWay.SQUID else "2 GB"
            config = self._config("squid.conf", _SQUID, user=user, most=most, folder=folder)
            done = subprocess.run([SQUID.path(), "-z", "-N", "-f", config], capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                raise RUNNER_FAILED(self.step.name, f"squid cannot make its cache: {done.stderr[-400:]}")
            servers.enter_context(self._server((SQUID.path(), "-N", "-f", config), self.ports["squid"]))
        return None

    def _xrootd(
        self, servers: contextlib.ExitStack, name: str, text: str, port: int, **values: object
    ) -> subprocess.Popen[bytes]:
        user = ("-R", _USER) if os.geteuid() == 0 else ()
        command = (XROOTD.path(), "-c", self._config(f"{name}.cfg", text, **values), "-I", "v4", "-n", name, *user)
        return servers.enter_context(self._server(command, port))

    def _config(self, name: str, text: str, **values: object) -> str:
        path = self.place / name
        path.write_text(text.format(**self.values | values))
        return str(path)

    @contextlib.contextmanager
    def _server(self, command: Sequence[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
        """A server from when it takes connections to its end."""
        log = self.scratch / f"server-{port}.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)  # noqa: S603
        end = time.monotonic() + START_S
        try:
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise RUNNER_FAILED(self.step.name, f"{command[0]} does not start: {log.read_text()[-400:]}")
                time.sleep(0.02)  # a server says nothing when it begins to listen
            yield process
        finally:
            process.terminate()
            try:
                process.wait(START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- jobs

    def _caches(self) -> list[Path]:
        """Folders of the jobs' caches; none: they keep nothing."""
        counts = {ReaderWay.ALIEN_COLD: 1, ReaderWay.ALIEN_WARM: 1, ReaderWay.LOCAL: LOCAL_CACHES}
        places = [self.place / f"cache{number}" for number in range(counts.get(self.way, 0))]
        for place in places:
            AlienCache(place).initialise()
        return places

    def _warm(self, cache: Path) -> tuple[str, ...]:
        store = open_store(f"http://127.0.0.1:{self.ports['origin']}/{FQRN}")
        repository = Repository.open(store, fqrn=FQRN, public_keys=[(self.folder / "key.pub").read_bytes()])
        report = warm(AlienCache(cache), repository, [store], WarmOptions(Wanted()))
        return (f"{self.step.name}: the cache was warmed before in {report.seconds:.1f} s, which do not count",)

    def _read(self, caches: Sequence[Path]) -> _JobsOutcome:
        squid = self.way in (ReaderWay.SQUID, ReaderWay.SQUID_RAISED)
        ports = {ReaderWay.LIMITED: "data1", ReaderWay.REDIRECTING: "front"} | dict.fromkeys(
            (ReaderWay.NGINX, ReaderWay.XCACHE), "proxy"
        )
        url = f"http://127.0.0.1:{self.ports[ports.get(self.way, 'origin')]}/{FQRN}"
        proxy = f"http://127.0.0.1:{self.ports['squid']}" if squid else None
        running, done, ended = list[subprocess.Popen[str]](), list[dict[str, Any]](), True

        def kill() -> None:
            for process in running:
                process.kill()

        try:
            with self.stop.ending(kill):
                for number in range(self.load.streams):
                    running.append(self._job(number, url, proxy, caches))
                for process in running:
                    _line_of(process)  # all are ready before the first one reads
                began, end = time.time(), time.monotonic() + self._patience_s()
                for process in running:
                    _begin(process, began)
                for process in running:
                    try:
                        out, _ = process.communicate(timeout=max(0.1, end - time.monotonic()))
                    except subprocess.TimeoutExpired:
                        ended = False
                        break
                    if process.returncode:
                        raise RUNNER_FAILED(self.step.name, f"a job ended with {process.returncode}")
                    done.append(json.loads(out.splitlines()[-1]))
        finally:
            kill()
            for process in running:
                process.communicate()
        return _JobsOutcome(tuple(done), time.time() - began, ended)

    def _job(self, number: int, url: str, proxy: str | None, caches: Sequence[Path]) -> subprocess.Popen[str]:
        draw = random.Random(f"flux/{number}")  # noqa: S311 - the same for every campaign
        names = [str(name) for name in draw.sample(self.names, min(self.load.each or 1, len(self.names)))]
        cache = str(caches[number % len(caches)]) if caches else None
        job = json.dumps({"url": url, "proxy": proxy, "names": names, "cache": cache})
        command = [sys.executable, "-m", _PROGRAM, "job", job]
        with (self.scratch / f"job-{number}.txt").open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603

    def _patience_s(self) -> float:
        """Seconds after which the way has not ended: those of the step, and of those that cache PATIENCE times the
        origin's."""
        origin = self.folder / "origin_s"
        if self.way in (_LIMITED | {ReaderWay.ORIGIN}) or not origin.exists():
            return float(self.step.seconds)
        return min(self.step.seconds, max(1.0, PATIENCE * float(origin.read_text())))

    def _remember(self, outcome: _JobsOutcome) -> None:
        if self.way is ReaderWay.ORIGIN and outcome.ended:
            (self.folder / "origin_s").write_text(str(outcome.seconds))

    # -- figures

    def _sent(self) -> int | None:
        """Bytes of objects that the origin sent; None where limited servers are the origin."""
        if self.way in _LIMITED:
            return None
        lines = (self.place / "origin.log").read_text().splitlines()
        return sum(int(line.split()[0]) for line in lines if "/data/" in line)

    def _result(self, outcome: _JobsOutcome, sent: int | None, notes: tuple[str, ...]) -> RunnerResult:
        load, jobs = self.load, outcome.jobs
        failed, wrong = sum(job["errors"] for job in jobs), sum(job["wrong"] for job in jobs)
        files = 2 * (load.each or 1) * len(jobs) - failed - wrong
        times = JobTimes(
            tuple(round(job["s"], 3) for job in jobs),
            tuple((round(start, 3), round(taken, 4)) for job in jobs for start, taken in job["files"]),
            wrong,
            None if sent is None else sent / (len(self.names) * load.file_bytes),
        )
        measured = MeasuredLoad(
            load.access, files * load.file_bytes, files, failed + wrong, outcome.seconds, min(times.jobs, default=0.0),
            LatencyHistogram.of(int(taken * 1e9) for _, taken in times.files), times=times,
        )  # fmt: skip
        what = f"{load.streams} jobs of {load.each} of {len(self.names)} files of {load.file_bytes} B, twice"
        done = f"{len(jobs)} of {load.streams} jobs were done after {outcome.seconds:.0f} s"
        limit = (
            f"{PATIENCE:g} times the origin's time" if self._patience_s() < self.step.seconds else "its step's limit"
        )
        missing = () if outcome.ended else (f"not ended: {done}, which is {limit}",)
        return RunnerResult("readers", (("read", what, self.way.value),), (measured,), notes, missing)


def _line_of(process: subprocess.Popen[str]) -> None:
    if process.stdout:
        process.stdout.readline()


def _begin(process: subprocess.Popen[str], began: float) -> None:
    if process.stdin:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # one that died is known by its code
            process.stdin.write(f"{began}\n")
        process.stdin = None


def _bytes_read(process: subprocess.Popen[bytes] | None) -> int:
    """Bytes that a server has read of its files until now, and so sent."""
    if process is None:
        return 0
    lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar:")))


def _given_away(folder: Path, user: str) -> Path:
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, user)
    return folder


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(*names: str) -> dict[str, int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return {name: free.getsockname()[1] for name, free in zip(names, sockets, strict=True)}
