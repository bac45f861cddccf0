"""A host that a runner works on, over SSH: scripts for its shell, and its clock beside ours."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from include.benchmarks.errors import HOST_UNREACHABLE
from include.benchmarks.measure.programs import SHELL, run_program
from include.errors import NightshiftError
from include.publishers.server.connection import CommandResult, NodeAddress, SshConnection
from include.publishers.server.publisher import address_of
from include.settings.secrets import Secrets
from include.settings.ssh import SshLogin

MOST_LINES = 1_000_000
CLOCK_TRIES = 7
SCRIPT_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clock of a host beside ours: what to add to our time of day to have that of the host."""

    offset_s: float
    error_s: float
    """By how much the offset may be wrong: half the shortest round trip."""

    @classmethod
    def nearest(cls, looks: Iterable[tuple[float, float, float]]) -> HostClock:
        """Of several looks (our time before, the host's time, our time after) that with the shortest round trip."""
        before, theirs, after = min(looks, key=lambda look: look[2] - look[0])
        return cls(theirs - (before + after) / 2, (after - before) / 2)


class BenchmarkHost:
    """A host by its name in the configuration. Connections last for one call."""

    def __init__(self, name: str, address: NodeAddress) -> None:
        self.name = name
        self._address = address

    def script(self, text: str, *arguments: str, limit_s: float = SCRIPT_LIMIT_S) -> CommandResult:
        """Run a script with its arguments in the host's shell. Raises BenchmarkError (HOST_UNREACHABLE)."""
        with self._reached(), SshConnection(self._address) as connection:
            return connection.run(
                ["sh", "-c", text, "nightshift", *arguments], limit_s=limit_s, quiet=True, keep=MOST_LINES
            )

    def require(self, text: str, *arguments: str, limit_s: float = SCRIPT_LIMIT_S) -> tuple[str, ...]:
        """The output of a script that has to succeed. Raises BenchmarkError (HOST_UNREACHABLE)."""
        done = self.script(text, *arguments, limit_s=limit_s)
        if done.code:
            last = " | ".join(done.lines[-3:])[-300:] or "it wrote nothing"
            raise HOST_UNREACHABLE(self.name, f"the host ended a command with {done.code}: {last}")
        return done.lines

    def repeated(self, text: str, moments: Iterable[None]) -> Iterator[tuple[str, ...]]:
        """The output of a script at each moment, over one connection. Raises BenchmarkError (HOST_UNREACHABLE)."""
        with self._reached(), SshConnection(self._address) as connection:
            for _ in moments:
                yield connection.run(["sh", "-c", text], limit_s=SCRIPT_LIMIT_S, quiet=True, keep=MOST_LINES).lines

    def clock(self) -> HostClock:
        """Its clock, over one connection. Raises BenchmarkError (HOST_UNREACHABLE)."""
        with self._reached(), SshConnection(self._address) as connection:
            return HostClock.nearest(self._looks(connection))

    def _looks(self, connection: SshConnection) -> Iterator[tuple[float, float, float]]:
        for _ in range(CLOCK_TRIES):
            before = time.time()
            lines = connection.run(["date", "+%s.%N"], limit_s=SCRIPT_LIMIT_S, quiet=True).lines
            after = time.time()
            try:
                yield before, float(lines[-1]), after
            except (IndexError, ValueError):
                raise HOST_UNREACHABLE(self.name, "the host does not report its time") from None

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except NightshiftError as error:
            if error.code == HOST_UNREACHABLE.code:
                raise
            raise HOST_UNREACHABLE(self.name, f"{error.code}: {error}") from error


def hosts_of(logins: Mapping[str, SshLogin], secrets: Secrets) -> tuple[BenchmarkHost, ...]:
    """The hosts of a block of the configuration, by name."""
    return tuple(BenchmarkHost(name, address_of(name, login, secrets)) for name, login in sorted(logins.items()))


class LocalHost(BenchmarkHost):
    """This machine."""

    def __init__(self, name: str) -> None:
        self.name = name

    def script(self, text: str, *arguments: str, limit_s: float = SCRIPT_LIMIT_S) -> CommandResult:
        """As on any host. Raises BenchmarkError (RUNNER_FAILED)."""
        done = run_program(SHELL, ("-c", text, "nightshift", *arguments), subject=self.name, limit_s=limit_s)
        return CommandResult(done.code, tuple((done.stdout + done.stderr).splitlines()))
