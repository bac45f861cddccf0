"""Two network namespaces with a link of a delay between them: servers at its far end, what reads at its near end."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from bench.distance import tun
from bench.distance.tun import ADDRESSES, STOCK, TUNED, ask
from lab.errors import LINK_IMPOSSIBLE, LabError
from lab.servers.process import ServerProcess, find_program

WINDOWS = (STOCK, TUNED)
_PREFIX = "nightshift-link"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-[0-9a-f]+(?:-near|-far)?")
_NAMESPACES = Path("/run/netns")
_DEVICE = Path("/dev/net/tun")


class LinkEnd:
    """A network namespace, and its address on the link."""

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace, self.address = namespace, address

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before a command that runs in it."""
        return (_ip(), "netns", "exec", self.namespace)

    def server(self, server: ServerProcess) -> ServerProcess:
        """Have a server run in it; returns the server."""
        server.command = (*self.prefix, *server.command)
        return server


class DelayedLink:
    """A link while a context lasts; both ends and all that they have are gone after it.

    The program between the ends dies with this process. Namespaces that a killed process left behind are removed when
    the next link is made.
    """

    def __init__(self) -> None:
        why = impossible()
        if why:
            raise LINK_IMPOSSIBLE(f"no link with a delay: {why}")
        name = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(3)}"
        self._folder = Path(tempfile.gettempdir()) / name
        self._socket = self._folder / "link"
        self.near, self.far = (
            LinkEnd(f"{name}-{end}", address) for end, address in zip(("near", "far"), ADDRESSES, strict=True)
        )

    @property
    def command(self) -> tuple[str, ...]:
        """The words before a round trip in ms and a window, which set both."""
        return (sys.executable, tun.__file__, "ask", str(self._socket))

    def set(self, rtt_ms: float, window: str = STOCK) -> None:
        """Set the round trip and the window of TCP, one of `WINDOWS`, at both ends. Raises LabError."""
        answer = ask(self._socket, rtt_ms, window)
        if answer != "done":
            raise LabError(f"the link does not take {rtt_ms} ms and the window {window}: {answer}")

    def __enter__(self) -> Self:
        remove_left()
        self._folder.mkdir(mode=0o700)
        ends = (self.near.namespace, self.far.namespace)
        try:
            for namespace in ends:
                _run("netns", "add", namespace)
            command = (sys.executable, tun.__file__, "run", *ends, str(self._socket))
            self._program = ServerProcess("link", command, log=self._folder / "log", ready=self._socket.exists)
            self._program.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._program.stop()
        self._remove()

    def _remove(self) -> None:
        for end in (self.near, self.far):
            if (_NAMESPACES / end.namespace).exists():
                _run("netns", "del", end.namespace)
        shutil.rmtree(self._folder, ignore_errors=True)


def impossible() -> str | None:
    """Return why there can be no link here; None: there can."""
    if os.geteuid():
        return "only root may make network namespaces"
    if find_program("ip") is None:
        return "the program ip is not installed"
    return None if _DEVICE.exists() else f"{_DEVICE} does not exist"


def remove_left() -> list[str]:
    """Remove the namespaces and folders of links whose process is gone; returns their names."""
    removed = []
    for above in (_NAMESPACES, Path(tempfile.gettempdir())):
        for place in above.glob(f"{_PREFIX}-*"):
            match = _NAME.fullmatch(place.name)
            if match and not Path(f"/proc/{match[1]}").exists():
                if above is _NAMESPACES:
                    _run("netns", "del", place.name)
                else:
                    shutil.rmtree(place, ignore_errors=True)
                removed.append(place.name)
    return removed


def _ip() -> str:
    return find_program("ip") or "ip"


def _run(*words: str) -> None:
    done = subprocess.run((_ip(), *words), capture_output=True, text=True, check=False)
    if done.returncode:
        raise LINK_IMPOSSIBLE(f"ip {' '.join(words)}: {done.stderr.strip()}")
