"""Checks of a deployment, how they are run, and their findings, each with its state and its hint."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from include.errors import NightshiftError

AT_ONCE = 16
LIMIT_S = 30.0
"""Time-out of one check; each request within it has a shorter time-out of its own."""


class Depth(Enum):
    """Depth of a check: what the configuration says, whether each part answers and takes our keys, or what a store
    keeps when writers race."""

    FILE = "file"
    REACH = "reach"
    RACE = "race"


@dataclass(frozen=True, slots=True)
class Check:
    """Check of a thing. `cure`: the hint if the check itself fails, or does not end in time."""

    name: str
    subject: str
    look: Callable[[], Iterable[Finding]]
    cure: str


def run(checks: Sequence[Check], *, limit_s: float = LIMIT_S, at_once: int = AT_ONCE) -> PreflightReport:
    """Return what all checks found. A check that does not end within ``limit_s`` seconds is left behind and
    reported."""
    slots, done = threading.Semaphore(at_once), queue.SimpleQueue[tuple[int, list[Finding]]]()
    begun: dict[int, float] = {}

    def work(number: int, check: Check) -> None:
        with slots:
            begun[number] = time.monotonic()
            try:
                found = list(check.look())
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one thing, the others are checked
                found = [Finding(check.name, check.subject, Severity.ERROR, f"{error}".rstrip("."), check.cure)]
        done.put((number, found))

    for number, check in enumerate(checks):
        # not a pool: its threads would keep a command from ending that does not wait for them any more
        threading.Thread(target=work, args=(number, check), daemon=True, name=f"check-{check.name}").start()
    left, findings = dict(enumerate(checks)), list[Finding]()
    while left:
        try:
            number, found = done.get(timeout=0.05)
        except queue.Empty:  # only then: what has ended is not late, however busy the machine is
            now = time.monotonic()
            for number in [number for number in left if now - begun.get(number, now) >= limit_s]:
                check = left.pop(number)
                slots.release()  # its place is free for the next check that waits
                what = f"no answer within {limit_s:g} s"
                findings.append(Finding(check.name, check.subject, Severity.ERROR, what, check.cure))
        else:
            if left.pop(number, None) is not None:
                findings += found
    return PreflightReport.of(findings)


class Severity(Enum):
    """`error`: a night would fail. `warning`: it would not, but something is going to."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check. A finding that is not `ok` has a hint; `notes`: what follows from what was seen."""

    check: str
    subject: str
    severity: Severity
    seen: str
    cure: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "subject": self.subject,
            "severity": self.severity.value,
            "seen": self.seen,
            "cure": self.cure,
        }


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """Everything that was checked, what is wrong first."""

    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> PreflightReport:
        order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.OK: 2}
        return cls(
            tuple(sorted(findings, key=lambda finding: (order[finding.severity], finding.check, finding.subject)))
        )

    def of_severity(self, severity: Severity) -> Sequence[Finding]:
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def ready(self) -> bool:
        """Tell whether a night can run."""
        return not self.of_severity(Severity.ERROR)

    def to_json(self) -> dict[str, Any]:
        counts = {severity.value: len(self.of_severity(severity)) for severity in Severity}
        return {"ready": self.ready, "counts": counts, "findings": [finding.to_json() for finding in self.findings]}

    def lines(self, *, all_of_them: bool = False) -> list[str]:
        """Return what is wrong, a line each with its hint; with `all_of_them` what is right, too."""
        shown = (
            self.findings
            if all_of_them
            else [finding for finding in self.findings if finding.severity is not Severity.OK]
        )
        return [
            f"{finding.severity.value}: {finding.check} {finding.subject}: "
            f"{finding.seen}{f'. {finding.cure}' if finding.cure else ''}"
            for finding in shown
        ]


class NotReady(NightshiftError):
    """A night would fail: every error, each with its hint."""

    code = "preflight-failed"

    def __init__(self, report: PreflightReport) -> None:
        self.report = report
        lines = [line for line in report.lines() if line.startswith(Severity.ERROR.value)]
        super().__init__(f"{len(lines)} things would make a night fail:\n" + "\n".join(f"- {line}" for line in lines))
