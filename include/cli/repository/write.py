"""`nightshift repo publish`, `remove`, `rename`, `symlink`, `dirtab`: by hand, each one lease and one revision."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

import typer

from include.cli.repository.open import AsJson, Configured, DryRun, bars, holder, open_site, printable, refusing
from include.cvmfs.errors import CollectionRunning, PrepareAgain

if TYPE_CHECKING:
    from include.cvmfs.commit.commit import NewTag
    from include.cvmfs.sources.source import TreeSource
    from include.publishers.base import Published
    from include.settings.prepare import ArtifactLimits
    from include.site.changes import SingleChange, TreePublication
    from include.site.site import Site


T = TypeVar("T")
_TRIES = 5
_LOOK_EVERY_S = 2.0


class Noted(Protocol):
    """Has it known who made a change."""

    def __call__(self, done: Published, *, holder: str, now: datetime) -> None: ...


Tag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="Name the new revision.")]
Message = Annotated[str, typer.Option("--message", "-m", help="Purpose of the tag.")]
Place = Annotated[str, typer.Argument(metavar="PATH", help="Absolute path inside the repository.")]


def publish(
    fqrn: Configured,
    path: Place,
    source: Annotated[
        Path, typer.Argument(help="A folder, a tar archive (.gz, .xz, .zst too) or a zip; - for standard input.")
    ],
    replace: Annotated[
        bool, typer.Option("--replace/--refuse", help="Replace what the path has already, or refuse to.")
    ] = False,
    special_bits: Annotated[
        Literal["strip", "keep"] | None,
        typer.Option("--special-bits", help="Set-uid, set-gid and sticky bits; default: from the settings."),
    ] = None,
    chunks: Annotated[
        Literal["stock", "data"] | None,
        typer.Option("--chunks", help="Pieces of large files: 4-16 MiB, or 48-64 MiB; default: from the settings."),
    ] = None,
    compression: Annotated[
        Literal["fast", "balanced", "stock", "none"] | None,
        typer.Option("--compression", help="Maker of objects; none: as they are. Default: from the settings."),
    ] = None,
    tag: Tag = None,
    message: Message = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Publish a tree as a nested catalog. What the store has already is not sent; the lease lasts a moment.

    Interrupted, run it again: what was sent stays sent.
    """
    from include.cvmfs.ingest.prepare import PrepareProgress
    from include.nightlies.records.damage import of_repository
    from include.provenance.single_changes import note_by_hand
    from include.site.changes import TreeToPrepare, publish_tree

    with refusing(), bars() as show:
        site = open_site()

        def progress(done: PrepareProgress) -> None:
            show("files", done.files, 0)

        now, settings = datetime.now(UTC), site.settings.repository(fqrn)
        given = {"special_bits": special_bits, "chunks": chunks, "compression": compression}
        chosen = settings.prepare.model_copy(update={name: value for name, value in given.items() if value})

        def attempt() -> TreePublication:
            tree = TreeToPrepare(
                path, source_at(source, settings.limits), now,
                damaged=[damage.key for damage in of_repository(site.ledger, fqrn)],
                prepare=chosen, progress=progress, dry_run=dry_run,
            )  # fmt: skip
            return publish_tree(site, fqrn, tree, holder=holder(), replaces=replace, tag=_tag(tag, message))

        done = attempt() if str(source) == "-" else beside_collections(site, fqrn, attempt)
        note_by_hand(site, done, source=str(source), holder=holder(), now=now)
    if as_json:
        typer.echo(json.dumps(done.to_json(), indent=1))
    else:
        _say_published(done)


def remove(
    fqrn: Configured,
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Absolute paths inside the repository.")],
    tag: Tag = None,
    message: Message = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take away files, directories and nested catalogs, all in one revision. The old revision stays until collected."""
    from include.provenance.single_changes import note_removed
    from include.site.changes import contents_of, removal

    with refusing():
        change, site = removal(paths), open_site()
        head = site.head(fqrn)
        by_path = {path: contents_of(head.revision, path) for path in paths}
        noted = partial(note_removed, site, fqrn, paths)
        outcome = _made(site, fqrn, change, _tag(tag, message), noted, dry_run=dry_run)
    if as_json:
        removed = [
            {
                "path": path,
                "files": contents.files,
                "directories": contents.directories,
                "others": contents.others,
                "bytes": contents.bytes,
            }
            for path, contents in by_path.items()
        ]
        typer.echo(json.dumps({**outcome, "removed": removed}, indent=1))
        return
    for path, contents in by_path.items():
        what = f"{contents.files} files ({contents.bytes} bytes), {contents.directories} directories"
        what += f", {contents.others} others"
        typer.echo(f"{'would remove' if dry_run else 'removed'} {printable(path)}: {what}")
    typer.echo(_said(outcome))


def rename(
    fqrn: Configured,
    source: Annotated[str, typer.Argument(metavar="FROM", help="Absolute path to move.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Its new absolute path; nothing may be there.")],
    tag: Tag = None,
    message: Message = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Move a file or tree. Its catalogs are rewritten; no data is moved."""
    from include.provenance.single_changes import note_renamed
    from include.site.changes import renaming

    with refusing():
        site = open_site()
        noted = partial(note_renamed, site, fqrn, source, target)
        outcome = _made(site, fqrn, renaming(source, target), _tag(tag, message), noted, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps({**outcome, "from": source, "to": target}, indent=1))
        return
    typer.echo(f"{'would move' if dry_run else 'moved'} {printable(source)} to {printable(target)}")
    typer.echo(_said(outcome))


def symlink(
    fqrn: Configured,
    path: Place,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Target of the link; not checked.")],
    tag: Tag = None,
    message: Message = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a symlink, or let one that is there lead elsewhere. Anything else in its place is refused."""
    from include.provenance.single_changes import note_linked
    from include.site.changes import linking

    with refusing():
        site, change = open_site(), linking(path, target, now=datetime.now(UTC))
        noted = partial(note_linked, site, fqrn, path, target)
        outcome = _made(site, fqrn, change, _tag(tag, message), noted, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps({**outcome, "path": path, "target": target}, indent=1))
        return
    typer.echo(f"{printable(path)} {'would lead' if dry_run else 'leads'} to {printable(target)}")
    typer.echo(_said(outcome))


def dirtab(
    fqrn: Configured,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="The new rules, in a file; - for standard input. Default: show the present ones."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Show the rules that cut trees into catalogs (/.cvmfsdirtab), or publish new ones, which are read first."""
    from include.cvmfs.sources.dirtab import Dirtab
    from include.provenance.single_changes import note_written
    from include.site.changes import DIRTAB, cutting, matching_directories

    if file is None:
        if dry_run:
            raise typer.BadParameter("--dry-run is for new rules: give a FILE")
        _show_dirtab(fqrn, as_json=as_json)
        return
    name = "standard input" if str(file) == "-" else str(file)
    with refusing():
        content = sys.stdin.buffer.read() if str(file) == "-" else _content_of(file)
        site, change, rules = open_site(), cutting(content, name, now=datetime.now(UTC)), Dirtab.parse(content, name)
        noted = partial(note_written, site, fqrn, DIRTAB, content, name)
        outcome = _made(site, fqrn, change, None, noted, dry_run=dry_run)
        directories = sorted(matching_directories(site.head(fqrn).revision, rules)) if dry_run else []
    if not site.settings.repository(fqrn).prepare.dirtab:
        typer.echo(f"note: no preparation reads it: set `prepare: {{dirtab: true}}` for {fqrn}", err=True)
    texts = [rule.text for rule in rules.rules]
    if as_json:
        matches = (
            {"directories": [{"path": printable(path), "nested": entry.mountpoint} for path, entry in directories]}
            if dry_run
            else {}
        )
        typer.echo(json.dumps({**outcome, "path": DIRTAB, "rules": texts, **matches}, indent=1))
        return
    if dry_run:
        for text in texts:
            typer.echo(f"rule: {printable(text)}")
        for path, entry in directories:
            state = "is a nested catalog" if entry.mountpoint else "becomes one when it is published again"
            typer.echo(f"{printable(path)}: {state}")
    typer.echo(f"{DIRTAB} {'would have' if dry_run else 'has'} {len(texts)} rule{'' if len(texts) == 1 else 's'}")
    typer.echo(_said(outcome))


def beside_collections(site: Site, fqrn: str, attempt: Callable[[], T]) -> T:
    """Make a change, and make it again where a collection took what it needs, or when one has swept that."""
    from include.cvmfs.coordination.generation import look

    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except PrepareAgain as stale:
            typer.echo(f"nightshift: {printable(str(stale))}", err=True)
        except CollectionRunning as running:
            typer.echo(f"nightshift: {printable(str(running))}; waiting for that", err=True)
            until = time.monotonic() + running.time_remaining_s
            while (state := look(site.repository_store(fqrn)).generation) is not None:
                if state.has_swept(running.number, running.shards):
                    break
                if time.monotonic() >= until:
                    raise
                time.sleep(_LOOK_EVERY_S)
    return attempt()


def source_at(path: Path, limits: ArtifactLimits) -> TreeSource:
    """A folder or an archive of this machine, or `-` for an archive on standard input."""
    from include.cvmfs.sources.artifact import open_artifact, open_path
    from include.nightlies.steps.sources import source_limits

    allowed = source_limits(limits)
    if str(path) == "-":
        return open_artifact(sys.stdin.buffer, "standard input", limits=allowed)
    return open_path(path, limits=allowed)


def _content_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as fault:
        raise typer.BadParameter(f"{file}: {fault.strerror}") from None


def _show_dirtab(fqrn: str, *, as_json: bool) -> None:
    """Exits with 1 if there is none."""
    from include.site.changes import DIRTAB

    with refusing():
        tree = open_site().head(fqrn).revision
        content = tree.read(DIRTAB) if tree.lookup(DIRTAB) is not None else None
    if as_json:
        text = None if content is None else content.decode(errors="replace")
        typer.echo(json.dumps({"repository": fqrn, "path": DIRTAB, "content": text}, indent=1))
    elif content is not None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    if content is None:
        typer.echo(f"{fqrn} has no {DIRTAB}; give a FILE of rules to make one", err=True)
        raise typer.Exit(1)


def _tag(name: str | None, message: str) -> NewTag | None:
    from include.cvmfs.commit.commit import NewTag
    from include.cvmfs.format.database import check_tag_name

    return NewTag(check_tag_name(name), message) if name else None


def _made(
    site: Site, fqrn: str, change: SingleChange, tag: NewTag | None, noted: Noted, *, dry_run: bool
) -> dict[str, Any]:
    """Make a change and have it noted who did, or only rehearse it; returns what to report of it."""
    if dry_run:
        catalogs = change.rehearse(site, fqrn)
        return {"dry_run": True, "lease": change.lease or "/", "catalogs": catalogs, "unchanged": catalogs == 0}
    now = datetime.now(UTC)
    done = beside_collections(site, fqrn, lambda: change.commit(site, fqrn, holder=holder(), now=now, tag=tag))
    noted(done, holder=holder(), now=now)
    return {"dry_run": False, "lease": change.lease or "/", **done.to_json()}


def _said(outcome: dict[str, Any]) -> str:
    if outcome["unchanged"]:
        return "nothing to do: the repository is so already"
    if outcome["dry_run"]:
        return f"dry run: {outcome['catalogs']} catalogs would be rewritten, under a lease on {outcome['lease']}"
    return f"revision {outcome['revision']}, lease on {outcome['lease']} held {outcome['lease_held_s']} s"


def _say_published(done: TreePublication) -> None:
    changeset = done.changeset
    for note in changeset.notes:
        typer.echo(f"note: {note}", err=True)
    sent = "would be sent" if done.published is None else "sent"
    typer.echo(
        f"{changeset.files} files ({changeset.bytes} bytes) in {changeset.catalogs} catalogs; {changeset.objects_new} "
        f"objects ({changeset.bytes_uploaded} bytes) {sent}, {changeset.objects_reused} were there"
    )
    if done.created:
        typer.echo(f"{'would create' if done.published is None else 'created'} {', '.join(done.created)}")
    if done.published is not None:
        typer.echo(_said({**done.published.to_json(), "dry_run": False, "lease": changeset.destination}))
