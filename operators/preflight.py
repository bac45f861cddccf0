"""Look before a night whether it could run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from operators.base import NightshiftOperator, log_folder

if TYPE_CHECKING:
    from airflow.sdk import Context


class RunPreflightOperator(NightshiftOperator):
    """Checks everything that the slots need; fails with every error at once, each with its hint. Warnings are logged.

    Notifies the recipients under `notify:` of the configuration. Returns how many findings there are of each kind.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> dict[str, int]:
        from include.care.preflight.connections import checks_of
        from include.care.preflight.findings import NotReady, Severity, run
        from include.care.watch.alerts import tell

        site = self.site()
        report = run(checks_of(site, context["params"].get("slot"), logs=log_folder()))
        for line in report.lines(all_of_them=True):
            (self.log.info if line.startswith(Severity.OK.value) else self.log.warning)("%s", line)
        tell(site, report)
        if not report.ready:
            raise NotReady(report)
        return {severity.value: len(report.of_severity(severity)) for severity in Severity}
