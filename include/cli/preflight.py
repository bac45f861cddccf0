"""`nightshift preflight`: could a night run now? Everything that is wrong at once, each with a hint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from include.cli.repository.open import AsJson, open_site, refusing
from include.cli.terminal import console

if TYPE_CHECKING:
    from include.care.preflight.findings import PreflightReport

_SUBJECT = 30  # columns, so that what was seen has room


def preflight(
    slot: Annotated[str | None, typer.Option(help="Only what this slot needs.")] = None,
    limit_s: Annotated[float, typer.Option("--limit", min=1, help="Seconds that one check may take.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Check everything that a night needs, and change nothing but probes. Exit code 1 if a night would fail.

    A probe object is put and deleted in each repository's store, a probe lease taken and given back at its gateway.
    """
    from include.care.preflight.connections import checks_of
    from include.care.preflight.findings import Check, run
    from include.cli.airflow_connections import defined_in_airflow, look_at_lab

    with refusing():
        site = open_site()
        asked = defined_in_airflow(site.settings, site.secrets)
        checks = [Check("lab", "", look_at_lab, "See: nightshift lab status"), *checks_of(site, slot, asked=asked)]
        report = run(checks, limit_s=limit_s)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        _print(report)
    raise typer.Exit(0 if report.ready else 1)


def _print(report: PreflightReport) -> None:
    from rich.table import Table
    from rich.text import Text

    from include.care.preflight.findings import Severity
    from include.cli.main import typeable
    from include.dag_runs import UNPAUSE

    screen = console()
    marks = {Severity.OK: "[green]ok[/]", Severity.WARNING: "[yellow]warning[/]", Severity.ERROR: "[red]ERROR[/]"}
    paused = [finding for finding in report.findings if UNPAUSE in finding.cure]
    table = Table("", "what", "of", "seen", box=None, pad_edge=False)
    table.columns[2].max_width = _SUBJECT
    for finding in report.findings:
        # one hint for all that are paused
        cure = "" if len(paused) > 1 and finding in paused else typeable(finding.cure)
        seen = Text("\n".join(filter(None, (finding.seen, cure))), overflow="fold")
        table.add_row(marks[finding.severity], finding.check, Text(finding.subject, overflow="fold"), seen)
    screen.print(table)
    if len(paused) > 1:
        screen.print(f"To unpause these {len(paused)} DAGs: {typeable(UNPAUSE)} --all", soft_wrap=True)
    errors, warnings = (len(report.of_severity(severity)) for severity in (Severity.ERROR, Severity.WARNING))
    verdict = "a night can run" if report.ready else "a night would fail"
    screen.print(f"{verdict}: {errors} errors, {warnings} warnings, {len(report.findings)} things checked")
