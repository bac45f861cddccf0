"""`nightshift preflight`: could a night run now? Everything that is wrong at once, each with a hint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from include.cli.repository.open import AsJson, open_site, refusing

if TYPE_CHECKING:
    from include.care.preflight.findings import PreflightReport

_UNFOLDED = 10_000


def preflight(
    slot: Annotated[str | None, typer.Option(help="Only what this slot needs.")] = None,
    limit_s: Annotated[float, typer.Option("--limit", min=1, help="Seconds that one check may take.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Check everything that a night needs, and change nothing but probes. Exit code 1 if a night would fail.

    A probe object is put and deleted in each repository's store, a probe lease taken and given back at its gateway.
    """
    from include.care.preflight.checks import checks_of
    from include.care.preflight.run import run
    from include.cli.airflow_connections import defined_in_airflow

    with refusing():
        site = open_site()
        asked = defined_in_airflow(site.settings, site.secrets)
        report = run(checks_of(site, slot, asked=asked), limit_s=limit_s)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        _print(report)
    raise typer.Exit(0 if report.ready else 1)


def _print(report: PreflightReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from include.care.preflight.findings import Severity

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _UNFOLDED  # a line in a log or a pipe is neither folded nor cut
    marks = {Severity.OK: "[green]ok[/]", Severity.WARNING: "[yellow]warning[/]", Severity.ERROR: "[red]ERROR[/]"}
    table = Table("", "what", "of", "seen", "hint", box=None, pad_edge=False)
    for finding in report.findings:
        table.add_row(
            marks[finding.severity], finding.check, escape(finding.subject), escape(finding.seen), escape(finding.cure)
        )
    console.print(table)
    errors, warnings = (len(report.of_severity(severity)) for severity in (Severity.ERROR, Severity.WARNING))
    verdict = "a night can run" if report.ready else "a night would fail"
    console.print(f"{verdict}: {errors} errors, {warnings} warnings, {len(report.findings)} things checked")
