"""A job that reads files of a shared data set, and a server of a limited rate: programs that the runner starts.

A job follows the protocol of the genuine client: it looks into its cache, else fetches, verifies, renames and reads.
They are a module of their own as hundreds of them start at once, and import little.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import requests

from include.aliencache.names import place_of
from include.cvmfs.format.hashes import ObjectHash

SERVER_RATE = 200_000_000
"""Bytes per second of the server, over all connections together."""
_BLOCK = 1 << 20


def _serve(port: int, root: str) -> None:
    """Serve files at :data:`SERVER_RATE` over all connections together."""
    lock, due = threading.Lock(), [time.monotonic()]

    class Limited(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=root)

        def copyfile(self, source: Any, outputfile: Any) -> None:
            while block := source.read(_BLOCK):
                with lock:
                    due[0] = wait = max(due[0], time.monotonic() - 0.02) + len(block) / SERVER_RATE
                time.sleep(max(0.0, wait - time.monotonic()))  # the rate that the server is to have
                outputfile.write(block)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Limited).serve_forever()


def _read_files(url: str, proxy: str | None, names: Sequence[str], cache: str | None) -> None:
    """Read each file, twice, when standard input says when the first job began, and print the times."""
    session = requests.Session()
    session.trust_env = False
    if proxy:
        session.proxies = {"http": proxy}
    print("ready", flush=True)
    began, files, errors, wrong = float(input()), [], 0, 0
    start = time.time()
    for text in [*names, *names]:
        begin = time.time()
        try:
            wrong += not _read_file(session, url, ObjectHash.parse(text), Path(cache) if cache else None)
        except (requests.RequestException, OSError) as error:
            print(f"{text}: {error}", file=sys.stderr)
            errors += 1
        files.append((begin - began, time.time() - begin))
    print(json.dumps({"s": time.time() - start, "files": files[: len(names)], "errors": errors, "wrong": wrong}))


def _read_file(session: requests.Session, url: str, name: ObjectHash, cache: Path | None) -> bool:
    """Tell whether the bytes are right: those of the cache, or else of the server, which then go into the cache."""
    if cache is not None:
        with contextlib.suppress(FileNotFoundError), (cache / place_of(name)).open("rb") as file:
            return _digest(iter(lambda: file.read(_BLOCK), b"")) == name.digest
    with session.get(f"{url}/{name.key}", stream=True, timeout=600) as answer:
        answer.raise_for_status()
        if cache is None:
            return _digest(answer.iter_content(_BLOCK)) == name.digest
        temporary = cache / "txn" / f"fetch{secrets.token_hex(3)}"
        with temporary.open("xb") as file:
            right = _digest(_written(answer.iter_content(_BLOCK), file)) == name.digest
    if right:
        temporary.chmod(0o660)
        temporary.replace(cache / place_of(name))
    else:
        temporary.unlink()
    return right


def _written(blocks: Iterator[bytes], file: Any) -> Iterator[bytes]:
    for block in blocks:
        file.write(block)
        yield block


def _digest(blocks: Iterator[bytes]) -> bytes:
    digest = hashlib.sha1(usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return digest.digest()


if __name__ == "__main__":
    (_serve if sys.argv[1] == "serve" else _read_files)(**json.loads(sys.argv[2]))
