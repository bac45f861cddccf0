"""`nightshift repo`: check, read and change repositories, by URL with nothing configured, or by configured name.

Tags and `rollback` need the signing key, so the gateway's machine. A publication can carry its tag by itself, from
anywhere: `nightshift repo publish --tag`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli.main import typeable
from include.cli.repository import admin, read, repair, write
from include.cli.repository.open import (
    AsJson,
    Configured,
    DryRun,
    Fqrn,
    Keys,
    TagName,
    Target,
    bars,
    by_hand,
    holder,
    open_site,
    open_target,
    printable,
    refusing,
    seconds_now,
    span,
    switching,
    time_text,
)
from include.publishers.capabilities import Operation

if TYPE_CHECKING:
    from include.cvmfs.check.check import CheckReport
    from include.cvmfs.format.database import Tag
    from include.cvmfs.revision.repository import Repository


def check(
    target: Target,
    key: Keys = None,
    fqrn: Fqrn = None,
    tag: TagName = None,
    quick: Annotated[bool, typer.Option("--quick", help="Catalogs only: no data objects are looked for.")] = False,
    contents: Annotated[
        bool, typer.Option("--contents", "--full", help="Read every data object and compare its hash.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend the reflog if it is wrong; needs the signing key, and a name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check all of it. Exit code 0: no problems; 1: problems, each printed; 2: unreadable or not trusted."""
    from include.cvmfs.check.findings import Subject

    if quick and contents:
        raise typer.BadParameter("--quick and --full exclude each other")
    with refusing():
        report = _checked(target, key, fqrn, quick=quick, contents=contents, tag=tag)
        if repair and any(problem.subject is Subject.REFLOG for problem in report.problems):
            _mend_reflog(target)
            report = _checked(target, key, fqrn, quick=quick, contents=contents, tag=tag)
        _note_damage(target, report, everything=not quick and tag is None)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=1))
    else:
        _print_report(report)
    raise typer.Exit(0 if report.ok else 1)


def info(target: Target, key: Keys = None, fqrn: Fqrn = None, as_json: AsJson = False) -> None:
    """Show the manifest, which keys confirm it, and how much the catalogs count."""
    from include.cvmfs.commit.create import expiry_warning

    with refusing():
        repository = open_target(target, key, fqrn)
        facts = _facts(repository)
        whitelist = repository.trusted.whitelist
        warning = expiry_warning(whitelist, datetime.now(UTC)) if whitelist else None
    if as_json:
        typer.echo(json.dumps({**facts, "warnings": [warning] if warning else []}, indent=1))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):{width}}  {'-' if value is None else value}")
    if warning:
        typer.echo(f"warning: {warning}", err=True)


def _checked(
    target: str, keys: list[Path] | None, fqrn: str | None, *, quick: bool, contents: bool, tag: str | None
) -> CheckReport:
    from include.cvmfs.check.check import CheckProgress, check as run_check

    with bars() as show:

        def progress(step: CheckProgress) -> None:
            show(step.step, step.done, step.total)

        repository = open_target(target, keys, fqrn)
        now = datetime.now(UTC)
        return run_check(repository, quick=quick, contents=contents, tag=tag, now=now, progress=progress)


def _note_damage(target: str, report: CheckReport, *, everything: bool) -> None:
    """Note lost objects of a configured repository in the ledger, for the preparations of its nights."""
    from include.ledger.errors import LedgerError
    from include.nightlies.records import damage
    from include.settings.load import load

    if "/" in target or Path(target).is_dir() or target not in load().repositories:
        return
    try:
        damage.note_report(open_site().ledger, report, everything=everything, now=datetime.now(UTC))
    except LedgerError as fault:
        typer.echo(f"nightshift: what was found is not noted for the next nights: {fault}", err=True)


def _mend_reflog(fqrn: str) -> None:
    from include.cvmfs.commit.repair import repair_reflog

    with switching(open_site(), fqrn, Operation.REPAIR) as (store, signer):
        _, added = repair_reflog(store, fqrn, signer=signer, now=seconds_now())
    typer.echo(f"mended the reflog of {fqrn}: {added} references added", err=True)


def _print_report(report: CheckReport) -> None:
    from include.cvmfs.check.findings import Subject

    for problem in report.problems:
        typer.echo(str(problem))
    if hidden := report.problem_count - len(report.problems):
        typer.echo(f"… and {hidden} problems more")
    for warning in report.warnings:
        typer.echo(f"warning: {warning}")
    if any(problem.subject is Subject.COUNTERS for problem in report.problems):
        typer.echo(
            f"wrong counters are counted again by: {typeable(f'nightshift repo repair {report.fqrn} --counters')}"
        )
    trust = "signatures verified" if report.verified else "NOT verified against a key: give one with --key"
    objects = f", {report.objects} data objects" if report.objects else ""
    typer.echo(
        f"{report.fqrn}, revision {report.revision}, root {report.root}: {report.entries} entries, "
        f"{report.catalogs} catalogs{objects}; {trust}"
    )
    typer.echo(report.verdict)


def _facts(repository: Repository) -> dict[str, Any]:
    manifest, whitelist = repository.manifest, repository.trusted.whitelist
    total = repository.revision.root.statistics.total
    meta = repository.meta()
    return {
        "repository": manifest.fqrn,
        "url": repository.store.url,
        "verified": repository.verified,
        "revision": manifest.revision,
        "published": time_text(manifest.timestamp),
        "root_hash": str(manifest.root),
        "root_catalog_bytes": manifest.root_size,
        "ttl_s": manifest.ttl,
        "garbage_collectable": manifest.garbage_collectable,
        "certificate": str(manifest.certificate) if manifest.certificate else None,
        "whitelist_expires": whitelist.expires.isoformat() if whitelist else None,
        "history": str(manifest.history) if manifest.history else None,
        "tags": len(repository.tags()),
        "reflog": str(manifest.reflog) if manifest.reflog else None,
        "description": printable(meta.description) if meta else None,
        "files": total.regular,
        "symlinks": total.symlink,
        "directories": total.dir - total.nested,
        "nested_catalogs": total.nested,
        "file_bytes": total.file_size,
        "chunked_files": total.chunked,
    }


tag_commands = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The tag's name.")]


@tag_commands.command("list")
def listed(target: Target, key: Keys = None, fqrn: Fqrn = None, as_json: AsJson = False) -> None:
    """List the tags, latest revision first."""
    with refusing():
        listed = open_target(target, key, fqrn).tags()
    if as_json:
        typer.echo(json.dumps([_described(tag) for tag in listed], indent=1))
    else:
        _print(listed)


@tag_commands.command()
def add(
    fqrn: Configured,
    name: Name,
    revision: Annotated[
        str | None, typer.Argument(help="Tag or root hash of the revision to name; default: the newest.")
    ] = None,
    description: Annotated[str, typer.Option("--message", "-m", help="Purpose of the tag.")] = "",
    move: Annotated[bool, typer.Option("--move", help="Move an existing tag to this revision.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a revision a name, which keeps it from being collected. No revision is made."""
    from include.cvmfs.commit.tags import add_tag

    with refusing():
        site, now = open_site(), seconds_now()
        with switching(site, fqrn, Operation.TAG_ADD) as (store, signer):
            tag = add_tag(store, fqrn, name, revision, signer=signer, now=now, description=description, move=move)
    typer.echo(
        json.dumps(_described(tag), indent=1) if as_json else f"{name} names revision {tag.revision}, {tag.hash}"
    )


@tag_commands.command()
def remove(
    fqrn: Configured,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="The tags' names.")],
    dry_run: DryRun = False,
) -> None:
    """Take names away; revisions that nothing else names may then be collected. An absent name is no error."""
    from include.cvmfs.commit.tags import remove_tags

    with refusing():
        site = open_site()
        if dry_run:
            present = {tag.name for tag in site.head(fqrn).tags()}
            for name in names:
                typer.echo(f"{printable(name)}: {'would be removed' if name in present else 'is not there'}")
            return
        with switching(site, fqrn, Operation.TAG_REMOVE) as (store, signer):
            removed = remove_tags(store, fqrn, names, signer=signer, now=seconds_now())
        if removed:
            by_hand(site, "TAGS", f"{fqrn}: {', '.join(names)}")
    typer.echo(f"{removed} of {len(names)} tags removed from {fqrn}")


@tag_commands.command()
def prune(
    fqrn: Configured,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Number of matching tags that stay, the newest ones.")] = 0,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="SPAN", help="Only what is older: 36h, 14d, 2w.")
    ] = None,
    match: Annotated[str, typer.Option("--match", metavar="GLOB", help="Only tags with such names.")] = "*",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove tags by rule, and say of each why it goes or stays.

    The tags that commits keep always stay, and those that `care.protect_tags` of the repository names.
    """
    from include.cvmfs.commit.tags import PruneRule, decide, prune_by_rule

    if keep == 0 and older_than is None:
        raise typer.BadParameter("name what to keep: --keep N, --older-than SPAN, or both")
    older = span(older_than) if older_than else None
    with refusing():
        site = open_site()
        rule = PruneRule(keep, older, match, site.settings.repository(fqrn).care.protect_tags)
        decisions = decide(site.head(fqrn).tags(), rule, now := datetime.now(UTC))
        if any(decision.remove for decision in decisions) and not dry_run:
            with switching(site, fqrn, Operation.TAG_REMOVE) as (store, signer):
                decisions = prune_by_rule(store, fqrn, rule, signer=signer, now=now)
        gone = [decision.tag.name for decision in decisions if decision.remove]
        if gone:
            rule_text = f"nightshift repo tag prune --keep {keep} --older-than {older_than} --match {match}"
            by_hand(site, "TAGS", f"{fqrn}: {', '.join(gone)}", rule_text, dry_run=dry_run)
    if as_json:
        document = [
            {"name": decision.tag.name, "removed": decision.remove, "reason": decision.reason} for decision in decisions
        ]
        typer.echo(json.dumps({"dry_run": dry_run, "tags": document}, indent=1))
        return
    verb = "would go" if dry_run else "removed"
    for decision in decisions:
        typer.echo(f"{printable(decision.tag.name)}: {verb if decision.remove else 'stays'}: {decision.reason}")
    typer.echo(f"{len(gone)} of {len(decisions)} tags {verb}")


def rollback(
    fqrn: Configured,
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", help="Tag to return to; default: the revision before the newest.")
    ] = None,
    revision: Annotated[
        int | None, typer.Option("--revision", "-r", min=1, help="Revision number to return to.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason, kept in the ledger.")] = "by hand",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a new revision with the content of an earlier one. The tags of later revisions go, as with the stock tools.

    What goes counts as undone: no night installs it again before `nightshift nightly redo`.
    """
    from include.cvmfs.commit.tags import UNDO
    from include.nightlies.removal.rollback import record_rollback, require_possible, roll_back, unrecorded
    from include.nightlies.removal.rollback_preview import RollbackWish, preview_rollback, require_whole
    from include.nightlies.steps.values import Attempt

    if tag is not None and revision is not None:
        raise typer.BadParameter("give --tag or --revision, not both")
    with refusing(), bars() as show:
        site, wish = open_site(), RollbackWish(fqrn, revision or tag or UNDO, reason)
        if not dry_run:
            require_possible(site, fqrn)
        preview = preview_rollback(site, wish)
        plan, made = preview.plan, preview.plan.head.manifest
        number, root = made.revision, str(made.root)
        if not dry_run:
            require_whole(preview)
            attempt = Attempt(f"by hand/{holder()}", holder(), 1, lambda: datetime.now(UTC))
            done = unrecorded(site, preview)
            if not preview.changes_nothing:
                done = roll_back(
                    site, attempt, wish, seen=preview.seen, verified=lambda count: show("catalogs", count, 0)
                )
                number, root = done.revision, done.root
            if done is not None:
                record_rollback(site, attempt, done, reason)
    lost = list(preview.seen.tags_lost)
    if as_json:
        facts: dict[str, Any] = {
            "dry_run": dry_run, "tag": plan.tag.name, "from_revision": made.revision, "to_revision": plan.tag.revision,
            "revision": number, "root_hash": root, "tags_removed": lost, "preview": list(preview.lines()),
        }  # fmt: skip
        typer.echo(json.dumps(facts, indent=1))
        return
    if preview.changes_nothing:
        typer.echo(f"{fqrn} has the content of {printable(plan.goal)} already; nothing to do")
        return
    where = f"the tree of {plan.tag.name or plan.goal} (revision {plan.tag.revision}, {time_text(plan.tag.timestamp)})"
    gone = f"; tags that {'would go' if dry_run else 'went'}: {', '.join(lost)}" if lost else ""
    if dry_run:
        for line in preview.lines():
            typer.echo(printable(line))
        where = f"{fqrn} would go from revision {made.revision} back to {where}{gone}"
    else:
        where = f"{fqrn} is at revision {number}, with {where}{gone}"
    typer.echo(printable(where))


def _described(tag: Tag) -> dict[str, Any]:
    return {
        "name": tag.name,
        "revision": tag.revision,
        "root_hash": str(tag.hash),
        "time": time_text(tag.timestamp),
        "description": tag.description,
        "branch": tag.branch,
    }


def _print(tags: Sequence[Tag]) -> None:
    width = max((len(tag.name) for tag in tags), default=0)
    for tag in tags:
        line = f"{tag.name:{width}}  {tag.revision:>8}  {time_text(tag.timestamp)}  {tag.hash}  {tag.description}"
        typer.echo(printable(line.rstrip()))


app = typer.Typer(no_args_is_help=True)
COMMANDS: tuple[Callable[..., None], ...] = (
    admin.create, admin.repair, admin.resign, admin.import_keys,
    read.ls, read.cat, read.stat, read.get, read.diff,
    read.replicas, read.client_config, read.redirect_config,
    read.check_servers,
    write.publish, write.remove, write.rename, write.symlink, write.dirtab, rollback,
    repair.gc,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)
app.add_typer(tag_commands, name="tag", help="Name revisions, and take names away.")
app.command("tags")(listed)
app.command()(check)
app.command()(info)
