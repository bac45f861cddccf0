"""Checks run side by side; one that hangs or breaks is reported and stops no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from include.monitoring.findings import Check, Finding, NotReady, PreflightReport, Severity, run

OK = Finding("store", "a", Severity.OK, "answers")


def check(name: str, found: list[Finding]) -> Check:
    return Check(name, "x", lambda: found, "cure it")


def test_all_findings_come_at_once_what_is_wrong_first() -> None:
    wrong = Finding("gateway", "b", Severity.ERROR, "away", "start it")
    soon = Finding("whitelist", "c", Severity.WARNING, "ends soon", "resign it")
    report = run([check("1", [OK]), check("2", [soon, wrong])])
    assert report.findings == (wrong, soon, OK)
    assert not report.ready
    assert report.lines() == ["error: gateway b: away. start it", "warning: whitelist c: ends soon. resign it"]
    assert report.to_json()["counts"] == {"ok": 1, "warning": 1, "error": 1}
    assert "1 things" in str(NotReady(report))
    assert PreflightReport.of([soon]).ready


def test_a_check_that_breaks_is_an_error_with_its_cure_and_the_others_count() -> None:
    def broken() -> Iterator[Finding]:
        yield OK
        raise ConnectionError("refused.")

    report = run([Check("store", "s", broken, "start it"), check("2", [OK])])
    assert report.findings == (Finding("store", "s", Severity.ERROR, "refused", "start it"), OK)


def test_checks_that_hang_are_left_behind_and_keep_nobody_waiting() -> None:
    never = threading.Event()

    def hangs() -> list[Finding]:
        never.wait()
        return [OK]

    stuck = [Check("store", f"s{number}", hangs, "look at it") for number in range(3)]
    report = run([*stuck, check("2", [OK])], limit_s=0.3, at_once=2)
    never.set()
    assert [one.subject for one in report.findings] == ["s0", "s1", "s2", "a"]
    assert report.findings[0].seen == "no answer within 0.3 s"
