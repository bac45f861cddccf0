"""Commands that go on without us: started on a machine once, joined if they run already, watched, and ended.

A job lasts for hours, a connection does not. The job runs in a session of its own. Its files in the spool folder,
`nightshift.<job>.*`, are a lock that is held until it has ended, who started it, its output, and its exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from include.cvmfs.errors import FormatError
from include.publishers.server.connection import CommandResult, NodeAddress, SshConnection
from include.publishers.server.errors import COMMAND_FAILED, NodeLost
from include.publishers.server.outcomes import Verb, failure

_ATTEMPTS = 3
_SHORT_S = 60
_SIGNAL = 128

# $1 prefix of the files, $2 who starts it, the rest: the job. The lock is inherited by what waits for the job's end.
# Looks take the lock too, shared and for a moment: two seconds tell them from a job.
_START = """
job=$1 token=$2; shift 2
exec 9>>"$job.lock" || exit 73
if ! flock --wait 2 9; then echo joined; cat -- "$job.token"; exit 0; fi
rm -f -- "$job.code" "$job.pid"
: >"$job.log" && printf '%s\\n' "$token" >"$job.token" || exit 73
setsid sh -c '
job=$1; shift
setsid "$@" >"$job.log" 2>&1 </dev/null 9>&- &
printf "%s\\n" "$!" >"$job.pid"
wait "$!"; code=$?
rm -f -- "$job.pid"
printf "%s\\n" "$code" >"$job.code.new" && mv -- "$job.code.new" "$job.code"
' nightshift "$job" "$@" >/dev/null 2>&1 </dev/null &
echo started
"""
_LOOK = """
job=$1
running() {
    [ -e "$job.lock" ] || return 1
    flock --shared --nonblock --conflict-exit-code=75 "$job.lock" true
    [ $? = 75 ]
}
if running; then echo running; elif [ -r "$job.code" ]; then cat -- "$job.code"; else echo lost; fi
[ ! -r "$job.log" ] || tail -c 16384 -- "$job.log"
"""
_END = """
job=$1 token=$2
[ "$(cat -- "$job.token")" = "$token" ] || { echo other; exit 0; }
flock --shared --nonblock --conflict-exit-code=75 "$job.lock" true
[ $? = 75 ] && [ -r "$job.pid" ] || { echo over; exit 0; }
kill -s TERM -- "-$(cat -- "$job.pid")" && echo ended
"""


class Stage(Enum):
    """Where a job is."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """It does not run, and left no exit code: it was killed, or the machine was started again."""


@dataclass(frozen=True, slots=True)
class JobLook:
    """A job at one moment. `code`: its exit code once it has ended; `lines`: the last of its output."""

    stage: Stage
    code: int | None = None
    lines: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"stage": self.stage.value, "code": self.code, "lines": list(self.lines)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> JobLook:
        return cls(Stage(value["stage"]), value["code"], tuple(value["lines"]))

    @classmethod
    def parse(cls, output: Sequence[str]) -> JobLook:
        """What the look printed. Raises FormatError."""
        first, lines = (output[0] if output else ""), tuple(output[1:])
        if first in (Stage.RUNNING.value, Stage.LOST.value):
            return cls(Stage(first), lines=lines)
        if not first.isdigit() or len(first) > 3:
            raise FormatError("state of a job", f"{first[:80]!r} is no state of a job")
        return cls(Stage.ENDED, int(first), lines)


@dataclass(frozen=True, slots=True)
class DetachedJob:
    """A command of `cvmfs_server` on a machine, one of its `verb` at a time. Each call is a connection of its own."""

    address: NodeAddress
    verb: Verb
    spool: str
    command: tuple[str, ...] = field(repr=False)

    def start(self, token: str) -> bool:
        """Start it, unless it runs already; whether the one that runs is `token`'s. Raises NodeError.

        After a connection was lost the same request is sent again: it joins what the one before has started.
        """
        command = ["sh", "-c", _START, "nightshift", self._files, token, *self.command]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = self._run(command).lines
                break
            except NodeLost:
                if attempt == _ATTEMPTS:
                    raise
        return answer[:1] == ("started",) or answer[1:2] == (token,)

    def look(self) -> JobLook:
        """Raises NodeError."""
        return JobLook.parse(self._run(["sh", "-c", _LOOK, "nightshift", self._files]).lines)

    def end(self, token: str) -> bool:
        """End it if `token` started it; whether that was done. Raises NodeError."""
        return self._run(["sh", "-c", _END, "nightshift", self._files, token]).lines[-1:] == ("ended",)

    def require_success(self, seen: JobLook) -> None:
        """Raises NodeError unless a job has ended well; the error has its last words."""
        if seen.stage is Stage.LOST:
            words = " | ".join(seen.lines[-3:]) or "no output"
            where = self.address.name
            raise COMMAND_FAILED(self.address.fqrn, f"{self.verb.value} on {where} left no exit code: {words}")
        if seen.code is not None and seen.code > _SIGNAL:
            signal, where = seen.code - _SIGNAL, self.address.name
            raise COMMAND_FAILED(self.address.fqrn, f"{self.verb.value} on {where} was ended by signal {signal}")
        if seen.code:
            raise failure(self.address.fqrn, self.verb, seen.code, seen.lines)

    @property
    def _files(self) -> str:
        return f"{self.spool}/nightshift.{self.verb.value}"

    def _run(self, command: list[str]) -> CommandResult:
        with SshConnection(self.address) as connection:
            ended = connection.run(command, limit_s=_SHORT_S, quiet=True)
        if ended.code:
            raise failure(self.address.fqrn, Verb.LOOK, ended.code, ended.lines, limit_s=_SHORT_S)
        return ended
