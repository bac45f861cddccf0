"""What was checked before a night: each thing with its state, and with the hint that puts it right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from include.errors import NightshiftError


class Severity(Enum):
    """`error`: a night would fail. `warning`: it would not, but something is going to."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked. A finding that is not `ok` has a hint."""

    check: str
    subject: str
    severity: Severity
    seen: str
    cure: str = ""

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
        """Whether a night can run."""
        return not self.of_severity(Severity.ERROR)

    def to_json(self) -> dict[str, Any]:
        counts = {severity.value: len(self.of_severity(severity)) for severity in Severity}
        return {"ready": self.ready, "counts": counts, "findings": [finding.to_json() for finding in self.findings]}

    def lines(self, *, all_of_them: bool = False) -> list[str]:
        """What is wrong, a line each with its hint; with `all_of_them` what is right, too."""
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
