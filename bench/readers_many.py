"""Many jobs that read a shared data set, by every way to it: the benchmark of the paper on auxiliary data.

JOBS jobs read each FILES_EACH of FILES files, chosen by a seed, twice. Ways: `origin` (one nginx), `limited` (one
server of LIMIT_MB MB/s), `redirecting` (a front end and two such servers), `nginx` and `squid` as proxies before nginx,
`squid-raised` (with a higher limit of objects), `alien-cold` and `alien-warm` (a shared cache, warmed before or not),
`local` (eight local caches). A reader follows the protocol of the genuine client: it looks into its cache, else
fetches, verifies, renames and reads. Each way begins with empty folders; one that takes five times as long as `origin`
is stopped.

Writes the figures 1 and 3 of the paper to `--out`. Ends in one line of JSON; code 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.server
import json
import math
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from bench.cache import FQRN, GB, MB, data_set, served
from bench.plot import Series, line_plot
from bench.publishing.machine import Idle, description
from include.aliencache.cache import AlienCache
from include.aliencache.contents import Wanted
from include.aliencache.names import place_of
from include.aliencache.warm import WarmOptions, warm
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.revision.repository import Repository
from include.storage.open import open_store

WAYS = ("origin", "limited", "redirecting", "nginx", "squid", "squid-raised", "alien-cold", "alien-warm", "local")
LOCALS = 8
PATIENCE = 5.0
LEAST_RATIO, MOST_SHARE = 1.7, 1.05
_HTTP = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 1024; }}
http {{ sendfile on; keepalive_requests 1000000; access_log off;
  log_format bytes '$status $body_bytes_sent $uri';
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
http_port 127.0.0.1:{port}
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


@dataclass(slots=True)
class Way:
    """Outcome of a way: seconds of each job, start and seconds of each file, bytes that the origin sent."""

    name: str
    jobs: list[float] = field(default_factory=list)
    files: list[tuple[float, float]] = field(default_factory=list)
    origin_bytes: int = 0
    errors: int = 0
    wrong: int = 0
    seconds: float = 0.0
    ended: bool = True


def main() -> int:
    options = _options()
    if options.job:
        return _reader(json.loads(options.job))
    if options.serve:
        return _serve(**json.loads(options.serve))
    jobs, files, each = options.jobs, options.files, options.each
    set_bytes = files * options.file_mb * MB
    print(f"machine: {description()}")
    print(
        f"{jobs} jobs read {each} of {files} files of {options.file_mb} MB, twice; the set has {set_bytes / GB:.2f} GB"
    )
    need, free = set_bytes * (2 + LOCALS), shutil.disk_usage(options.folder).free
    if need > free * 0.9:
        raise SystemExit(
            f"needs {need / GB:.0f} GB in {options.folder}, which has {free / GB:.0f} GB free: fewer files, or --folder"
        )
    idle = Idle()
    with tempfile.TemporaryDirectory(prefix="nightshift-readers-", dir=options.folder) as name:
        scene = Scene(Path(name), options)
        with scene.servers():
            ways: list[Way] = []
            for way in options.ways:
                plain = way in ("origin", "limited", "redirecting") or not ways
                ways.append(scene.run(way, math.inf if plain else ways[0].seconds * PATIENCE))
    return _conclude(ways, options, set_bytes, idle.share())


class Scene:
    """The data set with its servers, below a folder."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        folder.chmod(0o755)
        self.www = folder / "www"
        key, self.names = data_set(self.www / FQRN, options.files * options.file_mb, options.file_mb)
        self.key = key
        for place in (self.www, self.www / FQRN):
            place.chmod(0o755)
        self.ports = _ports("origin", "front", "data1", "data2", "proxy", "squid")

    @contextlib.contextmanager
    def servers(self) -> Iterator[None]:
        config = _HTTP.format(folder=self.folder, www=self.www, **self.ports)
        (self.folder / "nginx.conf").write_text(config)
        user = "user nobody nogroup;" if os.geteuid() == 0 else ""
        (self.folder / "proxy").mkdir()
        command = ["nginx", "-p", f"{self.folder}/", "-c", str(self.folder / "nginx.conf"), "-g", user]
        with contextlib.ExitStack() as stack:
            stack.enter_context(served(command, self.ports["origin"]))
            for port in (self.ports["data1"], self.ports["data2"]):
                job = {"port": port, "root": str(self.www), "mb": self.options.limit_mb}
                serving = [sys.executable, "-m", "bench.readers_many", "--serve", json.dumps(job)]
                stack.enter_context(served(serving, port))
            yield

    def run(self, way: str, patience_s: float) -> Way:
        """Let all jobs read by a way, from empty folders."""
        for name in ("proxy", "squid", "alien", *(f"local{number}" for number in range(LOCALS))):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / "proxy").mkdir(mode=0o777)
        (self.folder / "proxy").chmod(0o777)
        log = self.folder / "origin.log"
        log.write_bytes(b"")
        caches = self._caches(way)
        if way == "alien-warm":
            store = open_store(f"http://127.0.0.1:{self.ports['origin']}/{FQRN}")
            warm(
                AlienCache(caches[0]),
                Repository.open(store, fqrn=FQRN, public_keys=[self.key]),
                [store],
                WarmOptions(Wanted()),
            )
        with self._squid(way):
            done = self._read(way, caches, patience_s)
        done.origin_bytes = sum(int(line.split()[1]) for line in log.read_text().splitlines() if "/data/" in line)
        rate = self.options.jobs * self.options.each * self.options.file_mb * MB / MB / done.seconds
        print(
            f"{way:13} {f'{done.seconds:7.1f} s' if done.ended else 'not ended'}, {rate:7.1f} MB/s of first reads, "
            f"origin sent {done.origin_bytes / (len(self.names) * self.options.file_mb * MB):.2f} of the set, "
            f"{done.errors} errors, {done.wrong} wrong"
        )
        return done

    def _caches(self, way: str) -> list[Path]:
        """Folders of the jobs' caches; none: they keep nothing."""
        names = {
            "alien-cold": ["alien"],
            "alien-warm": ["alien"],
            "local": [f"local{number}" for number in range(LOCALS)],
        }
        places = [self.folder / name for name in names.get(way, [])]
        for place in places:
            AlienCache(place).initialise()
        return places

    def _read(self, way: str, caches: Sequence[Path], patience_s: float) -> Way:
        port = self.ports[{"limited": "data1", "redirecting": "front", "nginx": "proxy"}.get(way, "origin")]
        proxy = f"http://127.0.0.1:{self.ports['squid']}" if way.startswith("squid") else None
        began, running = time.time(), []
        for number in range(self.options.jobs):
            draw = random.Random(f"{self.options.seed}/{number}")
            chosen = draw.sample([str(name) for name in self.names], self.options.each)
            job = {
                "url": f"http://127.0.0.1:{port}/{FQRN}", "proxy": proxy, "names": chosen, "began": began,
                "cache": str(caches[number % len(caches)]) if caches else None,
            }  # fmt: skip
            command = [sys.executable, "-m", "bench.readers_many", "--job", json.dumps(job)]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        done, end = Way(way), time.monotonic() + patience_s
        for process in running:
            try:
                out, _ = process.communicate(
                    timeout=None if math.isinf(patience_s) else max(0.1, end - time.monotonic())
                )
            except subprocess.TimeoutExpired:
                done.ended = False
                process.kill()
                process.communicate()
                continue
            if process.returncode:
                done.errors += 1
                continue
            read = json.loads(out.splitlines()[-1])
            done.jobs.append(read["s"])
            done.files += [tuple(one) for one in read["files"]]
            done.errors += read["errors"]
            done.wrong += read["wrong"]
        done.seconds = time.time() - began
        return done

    @contextlib.contextmanager
    def _squid(self, way: str) -> Iterator[None]:
        if not way.startswith("squid"):
            yield
            return
        folder = self.folder / "squid"
        folder.mkdir()
        most = "4 MB" if way == "squid" else "2 GB"
        user = "cache_effective_user proxy" if os.geteuid() == 0 else ""
        (folder / "squid.conf").write_text(_SQUID.format(port=self.ports["squid"], folder=folder, most=most, user=user))
        if os.geteuid() == 0:
            shutil.chown(folder, "proxy", "proxy")
        subprocess.run(["squid", "-z", "-N", "-f", folder / "squid.conf"], check=True, capture_output=True)
        with served(["squid", "-N", "-f", str(folder / "squid.conf")], self.ports["squid"]):
            yield


def _serve(port: int, root: str, mb: float) -> int:
    """Serve files at so many MB/s over all connections together."""
    lock, due = threading.Lock(), [time.monotonic()]

    class Limited(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=root)

        def copyfile(self, source: Any, outputfile: Any) -> None:
            while block := source.read(MB):
                with lock:
                    due[0] = wait = max(due[0], time.monotonic() - 0.02) + len(block) / (mb * MB)
                time.sleep(max(0.0, wait - time.monotonic()))  # the rate that the server is to have
                outputfile.write(block)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Limited).serve_forever()
    return 0


def _reader(job: dict[str, Any]) -> int:
    """A job: each of its files, twice."""
    session = requests.Session()
    session.trust_env = False
    if job["proxy"]:
        session.proxies = {"http": job["proxy"]}
    cache = Path(job["cache"]) if job["cache"] else None
    files, errors, wrong, began = [], 0, 0, time.time()
    for text in [*job["names"], *job["names"]]:
        name, start = ObjectHash.parse(text), time.time()
        try:
            wrong += not _read_file(session, job["url"], name, cache)
        except (requests.RequestException, OSError) as error:
            print(f"{text}: {error}", file=sys.stderr)
            errors += 1
        files.append((start - job["began"], time.time() - start))
    print(json.dumps({"s": time.time() - began, "files": files[: len(job["names"])], "errors": errors, "wrong": wrong}))
    return 0


def _read_file(session: requests.Session, url: str, name: ObjectHash, cache: Path | None) -> bool:
    """Tell whether the bytes are right: those of the cache, or else of the server, which then go into the cache."""
    if cache is not None:
        with contextlib.suppress(FileNotFoundError), (cache / place_of(name)).open("rb") as file:
            return _digest(iter(lambda: file.read(MB), b"")) == name.digest
    temporary = cache / "txn" / f"fetch{secrets.token_hex(3)}" if cache else None
    with session.get(f"{url}/{name.key}", stream=True, timeout=600) as answer:
        answer.raise_for_status()
        if temporary is None or cache is None:
            return _digest(answer.iter_content(MB)) == name.digest
        digest = hashlib.sha1(usedforsecurity=False)
        with temporary.open("xb") as file:
            for block in answer.iter_content(MB):
                digest.update(block)
                file.write(block)
    right = digest.digest() == name.digest
    if right:
        temporary.chmod(0o660)
        temporary.replace(cache / place_of(name))
    return right


def _digest(blocks: Iterator[bytes]) -> bytes:
    digest = hashlib.sha1(usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return digest.digest()


def _conclude(ways: Sequence[Way], options: argparse.Namespace, set_bytes: int, idle: float) -> int:
    by_name = {way.name: way for way in ways}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "readers-jobs.svg").write_text(_histogram(ways))
    (options.out / "readers-files.svg").write_text(_over_start(ways))
    figures: dict[str, float] = {
        "errors": sum(way.errors for way in ways), "wrong_bytes": sum(way.wrong for way in ways),
    }  # fmt: skip
    if warm_way := by_name.get("alien-warm"):
        figures["origin_share_warmed"] = warm_way.origin_bytes / set_bytes
    if {"limited", "redirecting"} <= by_name.keys():
        figures["redirecting_ratio"] = by_name["limited"].seconds / by_name["redirecting"].seconds
    missed = []
    if figures.get("origin_share_warmed", 0) > MOST_SHARE:
        missed.append("origin_share_warmed")
    if figures.get("redirecting_ratio", LEAST_RATIO) < LEAST_RATIO:
        missed.append("redirecting_ratio")
    if figures["wrong_bytes"] or figures["errors"]:
        missed.append("errors")
    figures |= {f"{way.name}_s": way.seconds for way in ways if way.ended}
    stopped = ", ".join(way.name for way in ways if not way.ended) or "none"
    print(f"missed: {', '.join(missed) or 'nothing'}; not ended: {stopped}; the machine was idle for {idle:.0%} of it")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()} | {"ok": not missed}))
    return 1 if missed else 0


def _histogram(ways: Sequence[Way]) -> str:
    """Jobs by the time that they took, over a logarithmic axis: figure 3 of the paper."""
    times = [second for way in ways for second in way.jobs]
    low, high = math.floor(math.log2(min(times)) * 2), math.ceil(math.log2(max(times)) * 2)
    ends = [2 ** (step / 2) for step in range(low, high + 1)]
    series = []
    for way in ways:
        counts = [(end, float(sum(end / math.sqrt(2) < second <= end for second in way.jobs))) for end in ends]
        series.append(Series(way.name, counts))
    return line_plot("Jobs by the time to read their files", "Seconds (logarithmic)", "Jobs", series, log_x=True,
                     ticks=[round(end, 2) for end in ends[:: max(1, len(ends) // 8)]])  # fmt: skip


def _over_start(ways: Sequence[Way]) -> str:
    """Time of each file over its start: figure 1 of the paper."""
    series = [Series(way.name, sorted(way.files)) for way in ways if way.files]
    last = max(start for way in ways for start, _ in way.files)
    return line_plot("Time to read a file over its start", "Start (s)", "Seconds", series,
                     ticks=[round(last * part / 6) for part in range(7)])  # fmt: skip


def _ports(*names: str) -> dict[str, int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench readers-many", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    full = bool(os.environ.get("FULL"))
    parser.add_argument("--jobs", type=int, default=128 if full else 32)
    parser.add_argument("--files", type=int, default=107 if full else 24)
    parser.add_argument("--file-mb", type=int, default=140 if full else 64)
    parser.add_argument("--each", type=int, default=14 if full else 4)
    parser.add_argument("--seed", default="flux")
    parser.add_argument("--limit-mb", type=int, default=100, help="of each limited server, over all connections [100]")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, default=Path("build/readers"), help="folder of the two figures")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
