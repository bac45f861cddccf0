"""Lease calls alone: a prober that takes, lists and drops leases now and then, and connections that do nothing else.

Plain ``http.client`` on a connection that is kept, so that the gateway is measured and not its client.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from bench.gatewaying.processes import serve
from bench.publishing.repositories import FQRN, SILENT
from include.gateway.protocol import API, authorization


class Connection:
    """One connection to the gateway, kept open."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._key_id, self._secret = job["key_id"], job["secret"]
        self._http = http.client.HTTPConnection(urlsplit(job["gateway"]).netloc, timeout=60)

    def acquire(self, path: str, repository: str = FQRN) -> str:
        """Take a lease; its token. Raises RuntimeError unless it is granted."""
        body = json.dumps({"path": repository + path, "api_version": "3", "hostname": "bench"}).encode()
        return str(self._call("POST", "/leases", body, body)["session_token"])

    def drop(self, token: str) -> None:
        self._call("DELETE", f"/leases/{token}", token.encode())

    def commit(self, token: str) -> None:
        """A change that was never stored. Raises RuntimeError."""
        body = json.dumps({"old_root_hash": "1" * 40 + "C", "new_root_hash": "2" * 40 + "C"}).encode()
        self._call("POST", f"/leases/{token}", token.encode(), body)

    def ready(self) -> None:
        """Ask whether all repositories can be published to."""
        self._http.request("GET", "/ready")
        self._http.getresponse().read()

    def listed(self) -> int:
        """How many leases there are."""
        return len(self._call("GET", "/leases")["data"])

    def _call(self, method: str, path: str, signed: bytes | None = None, body: bytes | None = None) -> dict[str, Any]:
        headers = {} if signed is None else {"Authorization": authorization(self._key_id, self._secret, signed)}
        self._http.request(method, API + path, body=body, headers=headers)
        response = self._http.getresponse()
        members: dict[str, Any] = json.loads(response.read())
        if response.status != 200 or members.get("status", "ok") != "ok":
            raise RuntimeError(f"{method} of a lease: HTTP {response.status}, {members}")
        return members


def probe(job: dict[str, Any]) -> dict[str, list[float]]:
    """Take, list and drop a lease on a path of its own, then pause; milliseconds of each call."""
    connection = Connection(job)
    taken: dict[str, list[float]] = {"acquire": [], "list": [], "drop": []}
    until, number = time.monotonic() + job["seconds"], 0

    def timed(name: str, call: Callable[..., Any], *arguments: str) -> Any:
        started = time.monotonic()
        found = call(*arguments)
        taken[name].append(1000 * (time.monotonic() - started))
        return found

    while time.monotonic() < until:
        number += 1
        token = timed("acquire", connection.acquire, f"/probe/path{number}")
        timed("list", connection.listed)
        timed("drop", connection.drop, token)
        time.sleep(job["pause_s"])
    return taken


def pairs(job: dict[str, Any]) -> dict[str, Any]:
    """Acquire and drop over and over on as many connections as there are ``paths``; how many pairs."""
    done = [0] * len(job["paths"])
    until = time.monotonic() + job["seconds"]

    def loop(place: int, path: str) -> None:
        connection = Connection(job)
        while time.monotonic() < until:
            connection.drop(connection.acquire(path))
            done[place] += 1

    threads = [threading.Thread(target=loop, args=(place, path)) for place, path in enumerate(job["paths"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"pairs": sum(done), "fewest": min(done)}


def silence(job: dict[str, Any]) -> None:
    """Ask after, lease and commit into the repository whose store never answers, from many connections at once."""

    def ask(number: int) -> None:
        while True:
            connection = Connection(job)
            with suppress(RuntimeError, OSError, http.client.HTTPException):
                connection.ready()
                connection.commit(connection.acquire(f"/path{number}", SILENT))

    for number in range(job["connections"]):
        threading.Thread(target=ask, args=(number,), daemon=True).start()
    time.sleep(job["seconds"])


def _prepare(job: dict[str, Any]) -> Callable[[], Any]:
    work = {"probe": probe, "pairs": pairs, "silence": silence}[job["work"]]
    return lambda: work(job)


if __name__ == "__main__":
    serve(_prepare)
