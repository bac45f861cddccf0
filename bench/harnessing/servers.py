"""S3 servers that tell how long their requests took: radosgw in its access log, SeaweedFS in its metrics."""

from __future__ import annotations

import re
import time
import urllib.request
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from include.storage.options import Credentials
from lab.servers.process import LOOPBACK, free_port
from lab.servers.radosgw import NAME, RadosgwServer
from lab.servers.s3 import S3Server
from lab.servers.weed import WeedServer

WRITTEN_WITHIN_S, POLL_S = 30.0, 0.02
CREDENTIALS = Credentials("benchkey", "benchsecret")
_ACCESS = re.compile(r'beast: .* "(PUT|GET) /\S+ HTTP/1\.1" 200 .* latency=([0-9.]+)s')
_METRIC = re.compile(r"^SeaweedFS_s3_request_seconds_(sum|count)\{([^}]*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """Requests of one method and the seconds that the server spent on them, since it started."""

    requests: int = 0
    seconds: float = 0.0

    def since(self, before: ServerTimes) -> float:
        """The mean in milliseconds of the requests after `before`; 0 without any."""
        requests = self.requests - before.requests
        return 1000 * (self.seconds - before.seconds) / requests if requests else 0.0


class TimedServer(ABC):
    """A server and what it says of its own times."""

    source: str
    server: S3Server

    @abstractmethod
    def times(self, method: str) -> ServerTimes:
        """Of all requests of a method that have ended."""

    def times_after(self, method: str, requests: int) -> ServerTimes:
        """The same, when the server has written so many: it does so after its answer."""
        deadline = time.monotonic() + WRITTEN_WITHIN_S
        while (found := self.times(method)).requests < requests:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.source} has {found.requests} requests of {requests}")
            time.sleep(POLL_S)
        return found


class TimedWeed(TimedServer):
    """Its metrics have sum and count, by the kind of request."""

    source = "SeaweedFS's metrics"

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self.server = _WeedWithMetrics(folder / "weed", self._port)

    def times(self, method: str) -> ServerTimes:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self._port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = [
            (which, float(value)) for which, labels, value in _METRIC.findall(text) if f'type="{method}"' in labels
        ]
        return ServerTimes(
            int(sum(value for which, value in found if which == "count")),
            sum(value for which, value in found if which == "sum"),
        )


class TimedRadosgw(TimedServer):
    """Its front end writes a line for each request that has ended, by a clock that goes on in steps of 4 ms.

    Single times are steps, too; their mean is not.
    """

    source = "radosgw's access log"

    def __init__(self, folder: Path) -> None:
        self.server = RadosgwServer(folder / "ceph", credentials=CREDENTIALS)
        self._log = self.server.cluster.directory / f"{NAME}.log"

    def times(self, method: str) -> ServerTimes:
        found = _ACCESS.findall(self._log.read_text(errors="replace"))
        taken = [float(seconds) for sent, seconds in found if sent == method]
        return ServerTimes(len(taken), sum(taken))


class _WeedWithMetrics(WeedServer):
    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, credentials=CREDENTIALS)
        self._metrics = port

    def command(self) -> list[str]:
        return [*super().command(), f"-metricsPort={self._metrics}", f"-metricsIp={LOOPBACK}"]
