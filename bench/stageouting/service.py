"""The embedded FTS service with simulated copies, as a process that is killed and started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.publishing.machine import step_back
from bench.stageouting.load import FAILURES
from lab.ports import free_port

START_S = 120.0


class FtsProcess:
    """One server on one port; its state outlives its process.

    It runs at the lowest priority: in production it is on another machine.
    """

    def __init__(self, folder: Path, *, mean_s: float, failures: Mapping[str, float] = FAILURES) -> None:
        self._folder = folder
        self._port = free_port()
        self._mean_s = mean_s
        self._failures = failures
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        self.cpu_before_s = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it and wait until it replies."""
        fails = [text for name, share in self._failures.items() for text in ("--fail", f"{name}={share}")]
        with (self._folder / "fts.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "nightshift"), "fts", "serve", "--port", str(self._port),
                    "--state", str(self._folder / "fts.sqlite"), "--mean", str(self._mean_s), *fails,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        step_back(self._process.pid)
        ends = time.monotonic() + START_S
        while True:
            try:
                self.ask("/")
            except OSError:
                if time.monotonic() > ends or self._process.poll() is not None:
                    raise RuntimeError(f"the FTS service did not start; see {self._folder}/fts.log") from None
                time.sleep(0.1)
            else:
                return

    def kill(self) -> None:
        """As `kill -9`."""
        if self._process is not None:
            self.cpu_before_s += cpu_s(self._process.pid)
            self._process.kill()
            self._process.wait()
            self._process = None

    def cpu_s(self) -> float:
        return self.cpu_before_s + (cpu_s(self._process.pid) if self._process else 0.0)

    def there(self, urls: Sequence[str]) -> dict[str, Any]:
        """What the simulated storage has of these URLs, by URL; without a size: nothing."""
        found: dict[str, Any] = {}
        for start in range(0, len(urls), 1000):
            document = {"urls": list(urls[start : start + 1000])}
            found |= {facts["url"]: facts for facts in self.ask("/simulated/stat", document)["files"]}
        return found

    def ask(self, path: str, document: object = None) -> Any:
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)


def cpu_s(pid: int) -> float:
    """Processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / 100
