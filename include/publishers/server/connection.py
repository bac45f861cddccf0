"""A node over SSH: its key is checked against a file, commands are lists of arguments, output comes line by line."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import paramiko

from include.cvmfs.sources.source import printable
from include.gateway.errors import redact
from include.publishers import errors

log = logging.getLogger(__name__)
logging.getLogger("paramiko.transport").setLevel(logging.CRITICAL)  # what it reports as errors comes as exceptions, too

KEPT_LINES = 200
LINE_BYTES = 4096
LOGGED_LINES = 2000
_BLOCK = 64 << 10
_DRAIN_S = 1.0
_TCP_USER_TIMEOUT = 18  # Linux; not in every Python's socket module
_GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Address of a node, and the login there. Times in seconds; the passphrase is in no repr."""

    fqrn: str
    host: str
    port: int
    user: str
    known_hosts: Path
    key: Path | None
    passphrase: Callable[[], str | None]
    connect_timeout_s: float = 20.0
    keepalive_s: int = 15

    @property
    def name(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command's exit code and its last lines, standard output and standard error as they came."""

    code: int
    lines: tuple[str, ...]


class SshConnection:
    """A connection, which several threads may use. A context manager. Every error names the node and has a hint."""

    def __init__(self, address: NodeAddress) -> None:
        self.address = address
        self._client = paramiko.SSHClient()
        self._client.set_missing_host_key_policy(_Refuse(address))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Raises NodeConnectionError."""
        where, key = self.address, self.address.key
        try:
            self._client.load_host_keys(str(where.known_hosts))
        except (OSError, paramiko.SSHException) as fault:
            raise errors.KEY_UNUSABLE(
                where.fqrn, f"known_hosts file {where.known_hosts} cannot be read ({fault})"
            ) from fault
        ours = None if key is None else _load(where, key)
        try:
            self._client.connect(
                where.host,
                where.port,
                where.user,
                sock=self._socket(),
                pkey=ours,
                allow_agent=key is None,
                look_for_keys=False,
                timeout=where.connect_timeout_s,
                banner_timeout=where.connect_timeout_s,
                auth_timeout=where.connect_timeout_s,
                channel_timeout=where.connect_timeout_s,
            )
            self._transport().set_keepalive(where.keepalive_s)
        except paramiko.BadHostKeyException as fault:
            shown, wanted = fingerprint(fault.key), fingerprint(fault.expected_key)
            detail = f"{where.name} shows the key {shown}, {where.known_hosts} has {wanted}"
            raise errors.HOST_KEY_CHANGED(where.fqrn, detail) from None
        except paramiko.AuthenticationException as fault:
            how = "our agent's keys" if key is None else f"the key {key}"
            raise errors.LOGIN_REFUSED(where.fqrn, f"{where.name} does not take {how} ({fault})") from fault
        except (OSError, EOFError) as fault:
            raise errors.NodeUnreachable(where.fqrn, f"{where.name} does not answer ({fault})") from fault
        except paramiko.SSHException as fault:
            if "No authentication methods" in str(fault):
                raise errors.LOGIN_REFUSED(
                    where.fqrn, f"{where.name}: there is no key to log in with ({fault})"
                ) from fault
            raise errors.NodeUnreachable(where.fqrn, f"{where.name} does not speak SSH with us ({fault})") from fault

    def close(self) -> None:
        """End it, and with it the input of whatever runs. Harmless if it has ended."""
        self._client.close()

    def run(
        self,
        command: Sequence[str],
        *,
        limit_s: float,
        feed: Iterable[bytes] = (),
        quiet: bool = False,
        keep: int = KEPT_LINES,
    ) -> CommandResult:
        """Run a command on the node and wait for its end; ``feed`` is its input, ``keep`` how many lines are returned.

        Its output goes to the log line by line, unless it is ``quiet``. After ``limit_s``, which the node is to keep
        itself, and a minute more our end gives up. Raises NodeLost if the connection ends first, and NodeError.
        """
        started = self.start(command, quiet=quiet, limit_s=limit_s, keep=keep)
        try:
            return started.finish(feed)
        finally:
            started.close()

    def start(self, command: Sequence[str], *, limit_s: float, quiet: bool = False, keep: int = KEPT_LINES) -> Running:
        """Begin a command; see ``run``."""
        text = shlex.join(command)
        try:
            channel = self._transport().open_session(timeout=self.address.connect_timeout_s)
            channel.set_combine_stderr(True)
            channel.settimeout(self.address.connect_timeout_s)
            channel.exec_command(text)
        except (paramiko.SSHException, OSError, EOFError) as fault:
            raise self._lost(fault) from fault
        return Running(self.address, channel, limit_s=limit_s, output=_Output(quiet=quiet, keep=keep))

    def _transport(self) -> paramiko.Transport:
        transport = self._client.get_transport()
        if transport is None:
            raise errors.NodeLost(self.address.fqrn, f"the connection to {self.address.name} has ended")
        return transport

    def _socket(self) -> socket.socket:
        where = self.address
        made = socket.create_connection((where.host, where.port), where.connect_timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a command waits 40 ms for an acknowledgement
        # a peer that went away without a word is noticed by what it does not acknowledge, keep-alives among it
        with contextlib.suppress(OSError):
            made.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, max(where.keepalive_s * 3, 10) * 1000)
        return made

    def _lost(self, fault: object) -> errors.NodeLost:
        return errors.NodeLost(self.address.fqrn, f"the connection to {self.address.name} ended ({fault})")


class Running:
    """A command at work on the node."""

    def __init__(self, address: NodeAddress, channel: paramiko.Channel, *, limit_s: float, output: _Output) -> None:
        self._address = address
        self._channel = channel
        self._limit_s = limit_s
        self._output = output
        self._deadline = time.monotonic() + limit_s + _GRACE_S
        self._began = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name="node-output")
        self._reader.start()

    def first_line(self, *, timeout_s: float) -> str | None:
        """The first line of its output; None if it ends, or prints nothing for so long."""
        self._began.wait(timeout_s)
        return self._output.lines[0] if self._output.lines else None

    def finish(self, feed: Iterable[bytes] = ()) -> CommandResult:
        """Give it its input and wait for its end. Raises NodeLost, NodeError."""
        channel = self._channel
        try:
            self._send(feed)
            with contextlib.suppress(OSError):
                channel.shutdown_write()
        except TimeoutError:
            raise self._hung() from None
        if not channel.status_event.wait(max(self._deadline - time.monotonic(), 0)):
            raise self._hung()
        code = channel.recv_exit_status()
        self._drain()
        if code < 0:
            raise errors.NodeLost(
                self._address.fqrn, f"the connection to {self._address.name} ended in the middle of a command"
            )
        return CommandResult(code, self._output.done())

    def close(self) -> None:
        """End its input and listen no more."""
        self._channel.close()

    def _send(self, feed: Iterable[bytes]) -> None:
        for block in feed:
            for place in range(0, len(block), _BLOCK):
                self._channel.settimeout(max(self._deadline - time.monotonic(), 0.001))
                try:
                    self._channel.sendall(block[place : place + _BLOCK])
                except TimeoutError:
                    raise
                except OSError:
                    return  # it reads no more: the reason is in its exit code

    def _read(self) -> None:
        self._channel.settimeout(None)
        try:
            while data := self._channel.recv(_BLOCK):
                self._output.take(data)
                if self._output.lines:
                    self._began.set()
        except OSError:
            pass  # what happened is in the exit code, or in its absence
        finally:
            self._began.set()

    def _drain(self) -> None:
        """Take the output to its end. What the command left running in the background may keep it open for ever."""
        channel = self._channel
        while self._reader.is_alive() and time.monotonic() < self._deadline:
            self._reader.join(_DRAIN_S)
            if not (channel.eof_received or channel.recv_ready()):
                break

    def _hung(self) -> errors.NodeError:
        output = " | ".join(self._output.done()[-3:])
        return errors.COMMAND_HUNG(
            self._address.fqrn,
            f"a command on {self._address.name} did not end within {self._limit_s:.0f} s, and the node did not end it"
            + (f": {output}" if output else ""),
        )


class _Output:
    """Lines as they come, cut where they are too long, strange bytes escaped, tokens taken out."""

    def __init__(self, *, quiet: bool, keep: int) -> None:
        self.lines: deque[str] = deque(maxlen=keep)
        self._level = logging.DEBUG if quiet else logging.INFO
        self._left = b""
        self._count = 0
        self._lock = threading.Lock()

    def take(self, data: bytes) -> None:
        with self._lock:
            *whole, self._left = (self._left + data).split(b"\n")
            if len(self._left) > LINE_BYTES:
                whole.append(self._left)
                self._left = b""
            for line in whole:
                self._line(line)

    def done(self) -> tuple[str, ...]:
        """All lines that were kept; later ones are ignored."""
        with self._lock:
            if self._left:
                self._line(self._left)
                self._left = b""
            if self._count > LOGGED_LINES:
                log.log(self._level, "node: and %d lines more", self._count - LOGGED_LINES)
            return tuple(self.lines)

    def _line(self, raw: bytes) -> None:
        line = redact(printable(raw[:LINE_BYTES].rstrip(b"\r")))
        self._count += 1
        self.lines.append(line)
        if self._count <= LOGGED_LINES:
            log.log(self._level, "node: %s", line)


def _load(where: NodeAddress, key: Path) -> paramiko.PKey:
    """The key in a file, opened with its passphrase. Raises an error, which never quotes the passphrase."""
    phrase = where.passphrase()
    try:
        # it is annotated to take text, and hands its argument to a library that takes bytes
        return paramiko.PKey.from_path(key, phrase.encode() if phrase else None)  # type: ignore[arg-type]
    except FileNotFoundError:
        raise errors.KEY_UNUSABLE(where.fqrn, f"there is no key file {key}") from None
    except (OSError, ValueError, TypeError, paramiko.SSHException) as fault:
        # errors of the library that reads it; its message covers a locked key and a wrong passphrase
        raise errors.KEY_UNUSABLE(where.fqrn, f"key file {key} cannot be used ({fault})") from None


class _Refuse(paramiko.MissingHostKeyPolicy):
    """Refuse a node whose key is not known, and report its fingerprint; no key is ever added automatically."""

    def __init__(self, address: NodeAddress) -> None:
        self._address = address

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        where = self._address
        shown = f"{where.name} shows the key {fingerprint(key)}, and {where.known_hosts} has none for {hostname}"
        raise errors.HOST_KEY_UNKNOWN(where.fqrn, shown)


def fingerprint(key: paramiko.PKey) -> str:
    """Return type and SHA-256, as ``ssh-keygen -l`` prints them."""
    return f"{key.get_name()} {key.fingerprint}"
