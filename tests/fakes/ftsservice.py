"""The embedded FTS as a process of its own, for tests that are its clients."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import requests

from lab.ports import LOOPBACK, free_port
from lab.servers.process import ServerProcess
from lab.services import fts_answers

SCRIPT = Path(sys.executable).with_name("nightshift")


class FtsService(ServerProcess):
    """Simulated copies take no time unless `options` say so. ``state``: stays for the next start."""

    def __init__(
        self, folder: Path, *options: str, scheme: str = "http", environment: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.state = folder / "fts.sqlite"
        self.url = f"{scheme}://{LOOPBACK}:{self.port}"
        command = [str(SCRIPT), "fts", "serve", "--port", str(self.port), "--state", str(self.state), "--tick", "0.02"]
        # a second --mean counts
        super().__init__(
            "fts", [*command, "--mean", "0", *options], log=folder / "fts.log", ready=self._answers,
            env={"NIGHTSHIFT_VAR": str(folder), **(environment or {})},
        )  # fmt: skip

    def simulated(self, call: str, **body: object) -> dict[str, object]:
        """The reply to `POST /simulated/<call>`."""
        reply = requests.post(f"{self.url}/simulated/{call}", json=body, timeout=20)
        reply.raise_for_status()
        found: dict[str, object] = reply.json()
        return found

    def _answers(self) -> bool:
        if self.url.startswith("https"):
            return "listening" in self.last_words() or "FTS service on" in self.last_words()
        return fts_answers(self.url) is None
