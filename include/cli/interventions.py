"""Commands without a group: freeze and thaw a repository, check a site before a night, show who did what."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli.main import console, typeable
from include.cli.repository.open import AsJson, holder, open_site, refusing, span
from include.cvmfs.sources.source import printable
from include.dag_runs import UNPAUSE
from include.ledger.errors import LedgerError
from include.monitoring.findings import Check, Severity, run

if TYPE_CHECKING:
    from include.cvmfs.coordination.freeze import Freeze
    from include.monitoring.findings import PreflightReport
    from include.provenance.query import PathProvenance
    from include.site.site import Site

_SUBJECT = 30  # columns, so that what was seen has room


def preflight(
    slot: Annotated[str | None, typer.Option(help="Only what this slot needs.")] = None,
    limit_s: Annotated[float, typer.Option("--limit", min=1, help="Seconds that one check may take.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Check everything that a night needs, and change nothing but probes. Exit code 1 if a night would fail.

    A probe object is put and deleted in each repository's store, a probe lease taken and given back at its gateway.
    """
    from include.cli.airflow_connections import defined_in_airflow, look_at_lab
    from include.monitoring.checks import checks_of

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

    screen = console()
    marks = {Severity.OK: "[green]ok[/]", Severity.WARNING: "[yellow]warning[/]", Severity.ERROR: "[red]ERROR[/]"}
    paused = [finding for finding in report.findings if UNPAUSE in finding.cure]
    table = Table("", "what", "of", "seen", box=None, pad_edge=False)
    table.columns[2].max_width = _SUBJECT
    for finding in report.findings:
        # one hint for all that are paused
        cure = "" if len(paused) > 1 and finding in paused else typeable(finding.cure)
        text = Text("\n".join(filter(None, (finding.seen, cure))), overflow="fold")
        table.add_row(marks[finding.severity], finding.check, Text(finding.subject, overflow="fold"), text)
    screen.print(table)
    if len(paused) > 1:
        screen.print(f"To unpause these {len(paused)} DAGs: {typeable(UNPAUSE)}", soft_wrap=True)
    errors, warnings = (len(report.of_severity(severity)) for severity in (Severity.ERROR, Severity.WARNING))
    verdict = "a night can run" if report.ready else "a night would fail"
    screen.print(f"{verdict}: {errors} errors, {warnings} warnings, {len(report.findings)} things checked")


NOBODY = 1


def who(
    where: Annotated[
        str,
        typer.Argument(
            metavar="[FQRN:]PATH",
            help="Path, for example r.example.org:/sw/app, /cvmfs/r.example.org/sw/app or /sw/app.",
        ),
    ],
    history: Annotated[
        int, typer.Option("--history", "-n", min=1, help="Number of publications, the newest first.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Say who and what published a path, or the nearest tree above it, who moved a link, or who took it away.

    A link on the way is followed, and what was inherited or moved is traced to where it was published first. The
    signed document in the store is compared with the ledger and checked with the keys that are at hand. Exit code 1
    if no publisher is known, 2 if that cannot be found out.
    """
    from include.provenance.query import ask, lines

    with refusing():
        site = open_site()
        fqrns, path = _place(site, where)
        asked = [ask(site, fqrn, path, limit=history) for fqrn in fqrns]
    answers = [answer for each in asked for answer in each.answers]
    if as_json:
        typer.echo(json.dumps([answer.to_json() for answer in answers], indent=1))
    for line in lines(answers) if not as_json else ():
        typer.echo(printable(line))
    if not answers:
        typer.echo(printable(_nobody(asked, path or "/")), err=as_json)
    raise typer.Exit(0 if answers else NOBODY)


def _nobody(asked: Sequence[PathProvenance], path: str) -> str:
    repositories = ", ".join(reply.repository for reply in asked if reply.stands)
    unread = ", ".join(reply.repository for reply in asked if reply.stands is None)
    message = f"no publisher is known for {path} or anything above it"
    message += (
        f"; it is in {repositories} all the same: not by Nightshift, or before it kept this" if repositories else ""
    )
    message += f"; {unread} cannot be read" if unread else ""
    return message if repositories or unread else f"{message}; the path does not exist"


def _place(site: Site, where: str) -> tuple[list[str], str]:
    """The repositories that are meant, and the path in them."""
    fqrn, colon, path = where.partition(":")
    if not colon:
        fqrn, path = "", where
        if where.startswith("/cvmfs/"):
            fqrn, _, rest = where.removeprefix("/cvmfs/").partition("/")
            path = f"/{rest}"
    if not path.startswith("/"):
        raise typer.BadParameter(f"{where!r}: write an absolute path, as r.example.org:/sw/app")
    clean = "/" + "/".join(part for part in path.split("/") if part)
    fqrns = [site.settings.repository(fqrn).fqrn] if fqrn else sorted(site.settings.repositories)
    return fqrns, "" if clean == "/" else clean


Repository = Annotated[
    str | None, typer.Argument(metavar="FQRN", help="The name of a repository of the configuration.")
]
_FROZEN_BUT_UNKNOWN = 1


def freeze(
    fqrn: Repository = None,
    reason: Annotated[str | None, typer.Option("--reason", "-m", help="Reason, shown to everyone who waits.")] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="WHEN", help="When it ends by itself: 4h, 2d, or 2026-11-22T06:00+01:00."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the frozen repositories, and who froze them.")] = False,
    history: Annotated[bool, typer.Option("--history", help="List who froze and thawed, the newest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop all changes of a repository: no publication, reservation, link, tag, undo or collection begins.

    Runs that are under way wait without holding a worker, and go on by themselves when it ends. Leases that were
    granted before may be used to their end; the command lists them. Run again, it changes nothing.
    """
    if listed or history:
        _show(fqrn, as_json=as_json, history=history)
        return
    if fqrn is None or reason is None:
        raise typer.BadParameter("name the repository and the reason: nightshift freeze FQRN --reason TEXT; or --list")
    from include.provenance import interventions

    now = datetime.now(UTC).replace(microsecond=0)
    with refusing():
        site = open_site()
        ends = _moment(until, now) if until else None
        try:
            done = interventions.freeze(site, fqrn, reason=reason, who=holder(), until=ends, now=now)
        except LedgerError as error:
            typer.echo(f"nightshift: {fqrn} is frozen, but the ledger does not know it yet. Run this again. {error}")
            raise typer.Exit(_FROZEN_BUT_UNKNOWN) from None
        busy = interventions.open_leases(site, fqrn)
    if as_json:
        facts: dict[str, Any] = {"repository": fqrn, "changed": done.changed, "leases": busy}
        typer.echo(json.dumps(facts | {"frozen": _described(done.after)}, indent=1))
        return
    typer.echo(printable(f"{fqrn} is {'' if done.changed else 'already '}{done.after}"))
    if busy is None:
        typer.echo("who still has a lease is not known: the gateway does not answer")
    for lease in busy or ():
        typer.echo(printable(f"still at work, to its end: {lease}"))
    if busy == []:
        typer.echo("no lease is open: nothing changes it from now on")


def thaw(
    fqrn: Annotated[str, typer.Argument(metavar="FQRN", help="The name of a repository of the configuration.")],
    as_json: AsJson = False,
) -> None:
    """End a repository's freeze. What waits for it goes on by itself. Run again, it changes nothing."""
    from include.provenance import interventions

    with refusing():
        done = interventions.thaw(open_site(), fqrn, who=holder(), now=datetime.now(UTC).replace(microsecond=0))
    if as_json:
        typer.echo(json.dumps({"repository": fqrn, "changed": done.changed, "was": _described(done.before)}, indent=1))
    elif done.changed:
        typer.echo(printable(f"{fqrn} is thawed; it was {done.before}"))
    else:
        typer.echo(f"{fqrn} is not frozen")


def audit(
    since: Annotated[
        str | None, typer.Option("--since", metavar="SPAN", help="Only what is newer: 36h, 14d, 2w.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only acts of this kind, as the list names it.")] = None,
    who: Annotated[str | None, typer.Option("--who", help="Only acts of this person.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Number of acts, the newest.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List destructive acts and decisions of people, the newest first: when, what, who, why, dry run or not."""
    from include.monitoring.audit import KINDS, AuditChoice, audit as read_audit

    if kind is not None and kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} is no kind; write one of: {', '.join(KINDS)}")
    began = datetime.now(UTC) - span(since) if since else None
    with refusing():
        entries = read_audit(open_site().ledger, AuditChoice(kind, who, began), limit=limit)
    if as_json:
        typer.echo(json.dumps([entry.to_json() for entry in entries], indent=1))
        return
    for entry in entries:
        act = f"{entry.kind} (dry run)" if entry.dry_run else entry.kind
        name = entry.who or entry.run
        by = f"by {name}" if name else "by whom is not recorded"
        typer.echo(printable(f"{entry.at:%Y-%m-%dT%H:%M:%SZ}  {act}: {entry.what}; {by}: {entry.why}"))
    if not entries:
        typer.echo("no such act is recorded")


def _show(fqrn: str | None, *, as_json: bool, history: bool) -> None:
    from include.provenance import interventions

    with refusing():
        site = open_site()
        if fqrn is not None:
            site.settings.repository(fqrn)
        if history:
            done = interventions.interventions_of(site.ledger, fqrn)
            if as_json:
                typer.echo(json.dumps([intervention.to_json() for intervention in done], indent=1))
                return
            for intervention in done:
                when = f"{intervention.done_at:%Y-%m-%dT%H:%M:%SZ}"
                row = f"{when}  {intervention.kind:6}  {intervention.repository}"
                typer.echo(printable(f"{row}  {intervention.who}  {intervention.reason}"))
            return
        rows = [state for state in interventions.standings(site, datetime.now(UTC)) if fqrn in (None, state.repository)]
    if as_json:
        document = [
            {"repository": state.repository, "frozen": _described(state.frozen), "unknown": state.unknown}
            for state in rows
        ]
        typer.echo(json.dumps(document, indent=1))
    for state in rows if not as_json else ():
        answer = f"not known: {state.unknown}" if state.unknown else str(state.frozen or "not frozen")
        typer.echo(printable(f"{state.repository}: {answer}"))
    if any(state.unknown for state in rows):
        raise typer.Exit(1)


def _described(freeze: Freeze | None) -> dict[str, Any] | None:
    if freeze is None:
        return None
    return {name: value for name, value in json.loads(freeze.format()).items() if name != "format"}


def _moment(text: str, now: datetime) -> datetime:
    if re.fullmatch(r"[0-9]+[hdw]", text):
        return now + span(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; write 4h, 2d, or 2026-11-22T06:00+01:00") from None
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone; write {text}Z, {text}+01:00, or a span as 4h")
    if moment - now > timedelta(days=366):
        raise typer.BadParameter(f"{text!r} is more than a year away")
    return moment.astimezone(UTC)
