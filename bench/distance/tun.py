"""A link with a delay, as a program: it takes packets from one TUN device and writes them later to the other.

`run NEAR FAR SOCKET` makes a device in each of two network namespaces and carries packets until it is ended; the
devices end with it. `ask SOCKET RTT_MS WINDOW` sets the round trip and the windows of TCP in both namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

ADDRESSES = ("10.83.0.1", "10.83.0.2")
"""Addresses of the near and the far end. The namespaces have no other network, so several links may have the same."""
STOCK, TUNED = "stock", "tuned"
"""Windows of TCP: of a new namespace, and of 64 MB."""
_TUNED_WINDOW = "4096 131072 67108864"
_SETTINGS = tuple(f"/proc/sys/net/ipv4/{name}" for name in ("tcp_wmem", "tcp_rmem"))
_TUNSETIFF, _TUNSETVNETHDRSZ, _TUNSETOFFLOAD = 0x400454CA, 0x400454D8, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_HEADER = 10
_CHECKSUMS, _TSO4, _TSO6 = 1, 2, 4
_LARGEST = (64 << 10) + 512
_MOST_AT_ONCE = 64
"""Packets of a direction before the other one has its turn."""
_ABSOLUTE = 1
_IP = "ip"


class _Direction:
    """Packets on their way from one device to the other, each with the time at which it arrives."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self._target = source, target
        self._held = deque[tuple[float, bytes]]()

    def take(self, delay_s: float) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_AT_ONCE):
                packet = os.read(self.source, _LARGEST)
                self._held.append((time.monotonic() + delay_s, packet))

    def give(self) -> float | None:
        """Write what is due; the time at which the next packet is."""
        while self._held and self._held[0][0] <= time.monotonic():
            with contextlib.suppress(OSError):  # as on any link, a packet that is not taken is lost
                os.write(self._target, self._held[0][1])
            self._held.popleft()
        return self._held[0][0] if self._held else None


class _Timer:
    """A timer of the kernel as a file; the time-out of epoll is too coarse."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.file = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)

    def set(self, due: float | None) -> None:
        seconds, rest = divmod(int((due or 0) * 1e9), 1_000_000_000)
        # seconds and nanoseconds of the interval, and of the first time; zeros disarm it
        value = struct.pack("@qqqq", 0, 0, seconds, rest)
        self._libc.timerfd_settime(self.file, _ABSOLUTE, value, None)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.file, 8)


def _device(name: str) -> int:
    """A TUN device that takes large packets as the kernel has them, so that their rate is not bound by their number."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(file, _TUNSETVNETHDRSZ, struct.pack("i", _HEADER))
    fcntl.ioctl(file, _TUNSETOFFLOAD, _CHECKSUMS | _TSO4 | _TSO6)
    return file


def _in(namespace: str, *words: str) -> str:
    command = (_IP, "netns", "exec", namespace, *words)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class _Link:
    """Two devices and what is between them."""

    def __init__(self, namespaces: Sequence[str], path: str) -> None:
        self._namespaces = namespaces
        devices = []
        for number, namespace in enumerate(namespaces):
            name = f"ns{os.getpid()}{'ab'[number]}"
            devices.append(_device(name))
            subprocess.run((_IP, "link", "set", name, "netns", namespace), check=True)
            for words in (
                f"addr add {ADDRESSES[number]}/30 dev {name}",
                f"link set {name} up mtu 1500 txqueuelen 100000",
                "link set lo up",
            ):
                subprocess.run((_IP, "-n", namespace, *words.split()), check=True)
        self._stock = {name: _in(namespaces[0], "cat", name).strip() for name in _SETTINGS}
        self._window, self._delay_s = STOCK, 0.0
        self._directions = (_Direction(*devices), _Direction(*reversed(devices)))
        self._timer = _Timer()
        self._asked = socket.socket(socket.AF_UNIX)
        self._asked.bind(f"{path}.new")
        self._asked.listen()
        Path(f"{path}.new").rename(path)  # from here on it can be asked

    def run(self) -> None:
        """Carry packets until the program is ended."""
        wake = select.epoll()
        for file in (self._timer.file, self._asked.fileno(), *(way.source for way in self._directions)):
            wake.register(file, select.EPOLLIN)
        while True:
            ready = {file for file, _ in wake.poll()}
            if self._asked.fileno() in ready:
                self._obey()
            if self._timer.file in ready:
                self._timer.clear()
            for way in self._directions:
                if way.source in ready:
                    way.take(self._delay_s)
            self._timer.set(min((due for way in self._directions if (due := way.give()) is not None), default=None))

    def _obey(self) -> None:
        caller, _ = self._asked.accept()
        with caller, contextlib.suppress(OSError):
            caller.settimeout(1)
            try:
                rtt_ms, window = caller.recv(200).decode().split()
                self._set(float(rtt_ms), window)
                caller.sendall(b"done")
            except (ValueError, KeyError, subprocess.CalledProcessError) as error:
                caller.sendall(f"refused: {type(error).__name__}".encode())

    def _set(self, rtt_ms: float, window: str) -> None:
        if window != self._window:
            values = {STOCK: self._stock, TUNED: dict.fromkeys(_SETTINGS, _TUNED_WINDOW)}[window]
            for namespace in self._namespaces:
                for name, value in values.items():
                    _in(namespace, "sh", "-c", 'echo "$1" > "$0"', name, value)
            self._window = window
        self._delay_s = rtt_ms / 2000


def ask(path: Path | str, rtt_ms: float, window: str) -> str:
    """Set the round trip and the windows of a link; `done`, or why not. Raises OSError where there is no link."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(30)
        caller.connect(str(path))
        caller.sendall(f"{rtt_ms} {window}".encode())
        return caller.recv(200).decode()


def main() -> int:
    what, *arguments = sys.argv[1:]
    if what == "run":
        *namespaces, path = arguments
        _Link(namespaces, path).run()
    answer = ask(arguments[0], float(arguments[1]), arguments[2])
    print(answer)
    return 0 if answer == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
