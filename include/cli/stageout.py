"""`nightshift stageout`: users' files between sites: submit, status, kill, resubmit, close, census, export and more."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli.file_lists import ListFault, check_files, read_file, requests_of
from include.cli.repository.open import AsJson, holder, open_site, refusing
from include.cvmfs.sources.source import printable
from include.errors import NightshiftError
from include.stageout.errors import TRANSFER_UNKNOWN
from include.stageout.states import TransferState

if TYPE_CHECKING:
    from include.site.site import Site
    from include.stageout.status import FileCopy, TransferFilter, TransferStatus


app = typer.Typer(no_args_is_help=True)

REFUSED = 2
SHOWN_FAULTS = 20
Owner = Annotated[
    str | None, typer.Option("--owner", help="The user whom the transfers belong to; you, if it is not given.")
]
Workflow = Annotated[str | None, typer.Option("--workflow", "-w", help="All transfers of this workflow.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Transfers, as `status --list` shows them.")]
Day = Annotated[str | None, typer.Option(metavar="DATE", help="Date, for example 2026-11-23, in UTC.")]


@app.command()
def submit(
    listed: Annotated[str, typer.Argument(metavar="FILE", help="CSV with a head or JSON lines; - is standard input.")],
    workflow: Annotated[str, typer.Option("--workflow", "-w", help="Workflow of the files.")],
    owner: Owner = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The idempotency key; without one the same files are the same request.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the list; record nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask for the transfer of files. Run it again with the same files: nothing is recorded twice.

    The fields are source, source_name, destination and destination_name (site and logical name), and if wanted kind,
    activity, size, checksum, dataset and user_job. With a fault in any line nothing is recorded, and the exit code
    is 2.
    """
    from include.stageout.requests import record_request

    with refusing():
        files, faults = read_file(listed)
        site = open_site()
        requests = requests_of(owner or getpass.getuser(), key, workflow, files)
        faults = sorted([*faults, *check_files(site.settings, requests, files)], key=lambda fault: fault.line)
        if faults or not files:
            _refuse_list(faults, as_json=as_json)
        done = []
        for request in [] if dry_run else requests:
            receipt = record_request(site.ledger, request, now=datetime.now(UTC))
            done.append({"key": request.key, "files": receipt.files, "repeated": receipt.repeated})
    if as_json:
        typer.echo(json.dumps({"files": len(files), "recorded": not dry_run, "requests": done}, indent=1))
    elif dry_run:
        typer.echo(f"{len(files)} files can be transferred; nothing is recorded")
    for row in [] if as_json else done:
        what = "were recorded before" if row["repeated"] else "are recorded"
        typer.echo(f"{row['files']} files {what}, with the key {row['key']}")


@app.command()
def status(
    number: Annotated[int | None, typer.Argument(metavar="[ID]", help="One transfer, with its history.")] = None,
    owner: Owner = None,
    everyone: Annotated[bool, typer.Option("--all", help="Transfers of all users.")] = False,
    workflow: Workflow = None,
    job: Annotated[str | None, typer.Option("--job", help="Only transfers of this job of the workflow.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The file of this logical name.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="From this site.")] = None,
    destination: Annotated[str | None, typer.Option("--destination", help="To this site.")] = None,
    states: Annotated[list[str] | None, typer.Option("--state", help="In this state; may be repeated.")] = None,
    listed: Annotated[bool, typer.Option("--list", "-l", help="List the transfers, the newest first.")] = False,
    links: Annotated[bool, typer.Option("--links", help="Count by link, with the limits that FTS decided.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Number of transfers to list.")] = 50,
    after: Annotated[int | None, typer.Option("--after", help="Go on after the list that ended with this.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count transfers by state or link, list them with their reasons, or show one with its whole history."""
    from include.stageout.status import TransferFilter

    by_name = {state.value: state for state in TransferState}
    unknown = [state for state in states or () if state not in by_name]
    if unknown:
        raise typer.BadParameter(f"there is no state {unknown[0]!r}; there are {', '.join(by_name)}")
    whose = None if everyone else owner or getpass.getuser()
    chosen = tuple(by_name[state] for state in states or ())
    chosen_by = TransferFilter(whose, workflow, job, source, destination, name=name, states=chosen)
    with refusing():
        site = open_site()
        if number is not None:
            _show_transfer(site, number, as_json=as_json)
        elif listed or job or name or after is not None:
            _show_list(site, chosen_by, after, limit, as_json=as_json)
        else:
            (_show_links if links else _show_counts)(site, chosen_by, as_json=as_json)


@app.command()
def copies(
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="Workflow of the files.")],
    owner: Owner = None,
    urls: Annotated[bool, typer.Option("--urls", help="Write the URLs of verified copies, one a line.")] = False,
) -> None:
    """Write where the files of a workflow are, as JSON for the next job: site, URL, size, checksum, data set.

    Exit code 1 as long as a file has no verified copy; `registered` says whether it is in its data set.
    """
    from include.stageout.rest.questions import ListFormat, copy_lines
    from include.stageout.status import TransferFilter, copies_of

    missing = 0

    def counted(copies: Iterator[FileCopy]) -> Iterator[FileCopy]:
        nonlocal missing
        for copy in copies:
            missing += copy.url is None
            yield copy

    with refusing():
        site = open_site()
        chosen = TransferFilter(owner=owner or getpass.getuser(), workflow=workflow)
        files = counted(copies_of(site.ledger, site.settings.sites, chosen))
        for line in copy_lines(files, ListFormat.URLS if urls else ListFormat.JSON):
            typer.echo(line, nl=False)
    if missing:
        typer.echo(f"nightshift: {missing} files have no verified copy", err=True)
        raise typer.Exit(1)


@app.command()
def kill(ids: Ids = None, workflow: Workflow = None, owner: Owner = None, as_json: AsJson = False) -> None:
    """Kill transfers. What FTS has is killed when FTS confirms it; what is copied already goes on.

    With --workflow the workflow is closed first: it gets no further files, and cannot be opened again.
    """
    from include.stageout.components import retry_manager

    whose, chosen = owner or getpass.getuser(), _chosen(ids, workflow)
    with refusing():
        ledger, now = open_site().ledger, datetime.now(UTC)
        if workflow is not None:
            done = retry_manager.kill_workflow(ledger, whose, workflow, by=holder(), now=now)
        else:
            done = retry_manager.kill(ledger, by=holder(), now=now, ids=chosen, owner=whose)
    text = f"{len(done.killed)} transfers of {whose} are killed, {len(done.killing)} wait for FTS"
    _tell(as_json, {"killed": sorted(done.killed), "killing": sorted(done.killing)}, text)


@app.command()
def resubmit(ids: Ids = None, workflow: Workflow = None, owner: Owner = None, as_json: AsJson = False) -> None:
    """Try failed and killed transfers again, with all their retries."""
    from include.stageout.components.retry_manager import resubmit as resubmit_transfers

    whose, chosen = owner or getpass.getuser(), _chosen(ids, workflow)
    with refusing():
        ledger, now = open_site().ledger, datetime.now(UTC)
        done = resubmit_transfers(ledger, by=holder(), now=now, ids=chosen, owner=whose, workflow=workflow)
    _tell(as_json, {"resubmitted": sorted(done)}, f"{len(done)} transfers of {whose} are new again")


@app.command()
def keep(ids: Ids = None, workflow: Workflow = None, owner: Owner = None, as_json: AsJson = False) -> None:
    """Keep the sources of transfers: they are not removed after the copy. It cannot be undone."""
    from include.stageout.components.retry_manager import keep as keep_sources

    whose, chosen = owner or getpass.getuser(), _chosen(ids, workflow)
    with refusing():
        kept = keep_sources(open_site().ledger, by=holder(), ids=chosen, owner=whose, workflow=workflow)
    _tell(as_json, {"kept": sorted(kept)}, f"the sources of {len(kept)} transfers of {whose} are kept")


@app.command()
def close(
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="It gets no further files.")],
    owner: Owner = None,
    as_json: AsJson = False,
) -> None:
    """Close a workflow: it gets no further files, and what waits for a full block is registered now.

    Transfers that are on the way go on. A closed workflow cannot be opened again.
    """
    from include.stageout.blocks import close_workflow

    whose = owner or getpass.getuser()
    with refusing():
        changed = close_workflow(open_site().ledger, whose, workflow, now=datetime.now(UTC))
    text = f"workflow {workflow} of {whose} is {'' if changed else 'already '}closed"
    _tell(as_json, {"owner": whose, "workflow": workflow, "changed": changed}, text)


@app.command()
def dead(
    fts_id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id at FTS.")], as_json: AsJson = False
) -> None:
    """Declare that the FTS server of a job does not run it any more; its files are tried again.

    Do this only when it is certain. The files are tried again when the time is over that a copy may take.
    """
    from include.stageout.jobs import declare_dead

    with refusing():
        site = open_site()
        margin = site.settings.stageout.copy_margin
        moved = declare_dead(site.ledger, fts_id, by=holder(), now=datetime.now(UTC), margin=margin)
    document = {"job": fts_id, "transfers": sorted(moved)}
    _tell(as_json, document, f"job {fts_id} is dead; {len(moved)} transfers are tried again")


@app.command()
def restored(
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Time of the backup, as 2026-11-23T12:00:00Z.")],
) -> None:
    """Record that the ledger was restored from a backup: files that requests after it may have named stay."""
    from include.stageout.components.retry_manager import note_restore

    with refusing():
        site, now = open_site(), datetime.now(UTC)
        margin = timedelta(days=site.settings.stageout.unknown_days)
        at = note_restore(site.ledger, since, by=holder(), now=now, margin=margin)
    typer.echo(f"the census reports unknown files written from {at.isoformat()} until now, and deletes none of them")


@app.command()
def census(
    deletes: Annotated[
        bool, typer.Option("--delete", help="Delete old unknown files at sites with `clean_unknown`.")
    ] = False,
    last: Annotated[bool, typer.Option("--last", help="Show what the last census found; check nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find what is stuck or does not fit between ledger, FTS and storages, and repair what is safe.

    Without --delete no file is removed. Exit code 1 if anything was found that is not repaired.
    """
    from include.stageout.components.census import take_census
    from include.stageout.findings import FindingOutcome, last_findings
    from include.stageout.opening import open_stageout
    from include.stageout.requests import document_of

    with refusing():
        site = open_site()
        if last:
            findings = last_findings(site.ledger)
        else:
            stageout = open_stageout(site, f"census by {holder()}")
            findings = take_census(stageout, now=lambda: datetime.now(UTC), deletes=deletes).findings
    if as_json:
        typer.echo(json.dumps([*map(document_of, findings)], indent=1))
    for finding in [] if as_json else findings:
        where = finding.name or (f"transfer {finding.transfer}" if finding.transfer else f"job {finding.job}")
        at = f" at {finding.site}" if finding.site else ""
        typer.echo(printable(f"{finding.kind.value:14}  {finding.outcome.value:9}  {where}{at}: {finding.reason}"))
    if not findings and not as_json:
        typer.echo("nothing is stuck")
    if any(finding.outcome is not FindingOutcome.REPAIRED for finding in findings):
        raise typer.Exit(1)


@app.command()
def register(
    since: Annotated[str, typer.Option("--since", metavar="DATE", help="The first day, as 2026-11-23, in UTC.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the blocks; ask nothing of the catalogue.")] = False,
) -> None:
    """Register in Rucio what was registered in the ledger only, before `catalogue:` named a Rucio server.

    Running it again changes nothing. Exit code 1 if Rucio refuses a file; it is named with the reason.
    """
    from include.settings.stageout import CatalogueKind
    from include.stageout.components.register import register_again
    from include.stageout.opening import rucio_of

    files = refused = blocks = 0
    with refusing():
        site = open_site()
        if site.settings.stageout.catalogue.kind is not CatalogueKind.RUCIO:
            raise typer.BadParameter(
                "the configuration names no Rucio server; set `kind: rucio` in `stageout.catalogue`"
            )
        catalogue = None if dry_run else rucio_of(site)
        for block in register_again(site.ledger, catalogue, since=_day(since), now=datetime.now(UTC)):
            blocks, files, refused = blocks + 1, files + block.files, refused + len(block.refusals)
            typer.echo(printable(f"{block.block}  {block.files} files"))
            for name, why in block.refusals.items():
                typer.echo(printable(f"  {name}: {why}"), err=True)
    verb = "would be registered" if dry_run else "are registered in Rucio"
    typer.echo(f"{files - refused} files of {blocks} blocks {verb}, {refused} are refused")
    if refused:
        raise typer.Exit(1)


@app.command()
def retract(
    ids: Annotated[list[int], typer.Argument(metavar="ID...", help="Transfers, as `status --list` shows them.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; for the history and the audit.")],
    owner: Owner = None,
    remove_copies: Annotated[
        bool, typer.Option("--remove-copies", help="Remove the copies at their sites afterwards, too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only show what would be done.")] = False,
) -> None:
    """Take registered files out of the catalogue again: a data set does not have them afterwards.

    First their replicas leave the catalogue, then the transfers become *retracted*. Run it again after an error.
    It cannot be undone: where the source was removed, a removed copy was the last one. Exit code 1 if one is left.
    """
    from include.stageout.components.register import retract as retract_files
    from include.stageout.opening import open_stageout

    with refusing():
        stageout = open_stageout(open_site(), f"retraction by {holder()}")
        done = retract_files(
            stageout, ids, owner=owner or getpass.getuser(), by=holder(), why=reason, now=datetime.now(UTC),
            removes=remove_copies, dry_run=not yes,
        )  # fmt: skip
    for number, file in done.files.items():
        typer.echo(printable(f"{number:>10}  {file.site}:{file.name}"))
    verb = "are retracted" if yes else "would be retracted; run it again with --yes"
    typer.echo(f"{len(done.files)} files {verb}")
    for number, why in {**done.refusals, **done.left}.items():
        what = "the copy is left" if number in done.left else "not retracted"
        typer.echo(printable(f"nightshift: transfer {number}: {what}: {why}"), err=True)
    if done.refusals or done.left:
        raise typer.Exit(1)


@app.command()
def export(
    since: Annotated[str, typer.Option("--since", metavar="DATE", help="The first day, as 2026-11-23, in UTC.")],
    until: Annotated[str | None, typer.Option("--until", metavar="DATE", help="The last day; today.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only transfers of this user.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output.")] = None,
) -> None:
    """Write daily sums by user, workflow, link, state and class of failure as CSV.

    A transfer is in the sums when it is archived: `archive_hours` after it was complete, `resubmit_days` after it
    failed.
    """
    from include.stageout.sums import export_csv

    first = _day(since)
    last = _day(until) if until else datetime.now(UTC)
    with refusing():
        lines = export_csv(open_site().ledger, since=first, until=last + timedelta(days=1), owner=owner)
        if output is None:
            for line in lines:
                typer.echo(line, nl=False)
            return
        try:
            with output.open("w", encoding="utf-8", newline="") as file:
                file.writelines(lines)
        except OSError as error:
            raise typer.BadParameter(f"{output}: {error.strerror}") from None


def _refuse_list(faults: Sequence[ListFault], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"faults": [{"line": fault.line, "what": fault.what} for fault in faults]}, indent=1))
    else:
        for fault in faults[:SHOWN_FAULTS]:
            typer.echo(printable(f"nightshift: {fault}"), err=True)
        if (more := len(faults) - SHOWN_FAULTS) > 0:
            typer.echo(f"nightshift: {more} more lines have faults; --json shows all", err=True)
        what = f"{len(faults)} lines have faults" if faults else "the list has no files"
        typer.echo(f"nightshift: {what}; nothing is recorded. Hint: correct the list and run it again.", err=True)
    raise typer.Exit(REFUSED)


def _show_transfer(site: Site, number: int, *, as_json: bool) -> None:
    from include.stageout.archive import history
    from include.stageout.requests import document_of
    from include.stageout.status import copy_of, transfer_status

    if (transfer := transfer_status(site.ledger, number)) is None:
        raise TRANSFER_UNKNOWN(f"transfer {number}", "the ledger does not have it")
    moves, copy = history(site.ledger, number), copy_of(site.settings.sites, transfer)
    document = document_of(transfer) | {"url": copy.url, "registered": copy.registered}
    if as_json:
        typer.echo(json.dumps(document | {"history": [*map(document_of, moves)]}, indent=1))
        return
    for name, value in document.items():
        if value is not None:
            typer.echo(printable(f"{name:17} {value}"))
    for move in moves:
        when = f"{move.moved_at:%Y-%m-%dT%H:%M:%SZ}"
        typer.echo(printable(f"{when}  {move.before} -> {move.state}, by the {move.component}: {move.reason}"))


def _show_list(site: Site, chosen: TransferFilter, after: int | None, limit: int, *, as_json: bool) -> None:
    from include.stageout.requests import document_of
    from include.stageout.status import list_transfers

    page = list_transfers(site.ledger, chosen, after=after, limit=limit)
    if as_json:
        typer.echo(json.dumps({"transfers": [*map(document_of, page.rows)], "after": page.after}, indent=1))
        return
    for row in page.rows:
        typer.echo(printable(_line(row)))
    if page.after is not None:
        typer.echo(f"there may be more: --after {page.after}")


def _line(row: TransferStatus) -> str:
    where = f"{row.source} -> {row.destination}:{row.destination_name}"
    return f"{row.id:>10}  {row.state.value:16}  {row.owner}  {row.workflow}  {where}  {row.reason}"


def _show_counts(site: Site, chosen: TransferFilter, *, as_json: bool) -> None:
    from include.stageout.requests import document_of
    from include.stageout.status import count_archived, count_transfers, sum_counts, workflow_status

    live = sum_counts(count_transfers(site.ledger, chosen), lambda count: count.state.value)
    archived = sum_counts(count_archived(site.ledger, chosen), lambda count: count.state.value)
    whole = None
    if chosen.owner is not None and chosen.workflow is not None:
        whole = workflow_status(site.ledger, chosen.owner, chosen.workflow)
    if as_json:
        document = {"transfers": live, "archived": archived} | ({"workflow": document_of(whole)} if whole else {})
        typer.echo(json.dumps(document, indent=1))
        return
    if whole is not None:
        closed = f"closed at {whole.closed_at:%Y-%m-%dT%H:%M:%SZ}" if whole.closed_at else "open"
        typer.echo(printable(f"workflow {whole.name} of {whole.owner}: {whole.files} files, {closed}"))
    for state in dict.fromkeys([*live, *archived]):
        typer.echo(f"{state:16}  {live.get(state, 0):>10}  archived {archived.get(state, 0):>10}")
    if not live and not archived:
        typer.echo("there are no such transfers")


def _show_links(site: Site, chosen: TransferFilter, *, as_json: bool) -> None:
    from include.stageout.attempts.queues import ask_optimizers, decisions_by_link
    from include.stageout.status import count_transfers, sum_counts

    files = sum_counts(count_transfers(site.ledger, chosen), lambda count: (count.source, count.destination))
    answers = ask_optimizers(site)
    faults = {server: str(error) for server, error in answers.items() if isinstance(error, NightshiftError)}
    decisions = decisions_by_link(files, site.settings.sites, answers)
    rows = [
        {"source": link[0], "destination": link[1], "files": count, "active": decision.active if decision else None,
         "decided_at": decision.at.isoformat() if decision and decision.at else None}
        for link, count in sorted(files.items()) for decision in [decisions.get(link)]
    ]  # fmt: skip
    if as_json:
        typer.echo(json.dumps({"links": rows, "faults": faults}, indent=1))
        return
    for row in rows:
        limit = "no limit is known" if row["active"] is None else f"FTS: at most {row['active']} active"
        decided = f", decided at {row['decided_at']}" if row["decided_at"] else ""
        typer.echo(printable(f"{row['source']} -> {row['destination']}  {row['files']:>10} files  {limit}{decided}"))
    for server, fault in faults.items():
        typer.echo(printable(f"nightshift: limits of {server} are unknown: {fault}"), err=True)
    if not rows:
        typer.echo("there are no such transfers")


def _tell(as_json: bool, document: Mapping[str, Any], text: str) -> None:
    typer.echo(json.dumps(document) if as_json else printable(text))


def _chosen(ids: Sequence[int] | None, workflow: str | None) -> list[int] | None:
    """The ids that were given; None: the whole workflow."""
    if bool(ids) == (workflow is not None):
        raise typer.BadParameter("name transfers by their ids, or a workflow with --workflow")
    return list(ids) if ids else None


def _day(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a date; write 2026-11-23") from None
