"""Runs the checks side by side, each for a bounded time; one that hangs or breaks is a finding and stops no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from include.care.preflight.findings import Finding, PreflightReport, Severity

AT_ONCE = 16
LIMIT_S = 30.0
"""How long one check may take; each request within it has a shorter time-out of its own."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of one thing. `cure`: the hint if the check itself fails, or does not end in time."""

    name: str
    subject: str
    look: Callable[[], Iterable[Finding]]
    cure: str


def run(checks: Sequence[Check], *, limit_s: float = LIMIT_S, at_once: int = AT_ONCE) -> PreflightReport:
    """What all checks found. A check that does not end within ``limit_s`` seconds is left behind and reported."""
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
