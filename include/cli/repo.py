"""`nightshift repo`: check and read repositories, by URL with nothing configured, or by name from the configuration."""

from __future__ import annotations

import contextlib
import json
import stat as modes
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from include.cli import keeper

if TYPE_CHECKING:
    from include.cvmfs.check import Progress, Report
    from include.cvmfs.dirent import Dirent
    from include.cvmfs.repository import Repository
    from include.cvmfs.walk import Tree

app = typer.Typer(no_args_is_help=True)
app.command()(keeper.create)
app.command()(keeper.repair)

UNREADABLE = 2
Target = Annotated[
    str, typer.Argument(metavar="URL_OR_FQRN", help="URL or folder of a repository, or a name from the configuration.")
]
Keys = Annotated[
    list[Path] | None, typer.Option("--key", metavar="FILE", help="Public master key; several may be given.")
]
Fqrn = Annotated[str | None, typer.Option("--fqrn", help="The name that the repository at a URL must have.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
TagName = Annotated[str | None, typer.Option("--tag", "-n", help="The revision of this tag instead of the newest.")]
InRepository = Annotated[str, typer.Argument(metavar="PATH", help="Absolute path inside the repository.")]


@app.command()
def check(
    target: Target,
    key: Keys = None,
    fqrn: Fqrn = None,
    tag: TagName = None,
    quick: Annotated[bool, typer.Option("--quick", help="Catalogs only: no data objects are looked for.")] = False,
    contents: Annotated[bool, typer.Option("--contents", help="Read every data object and compare its hash.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check all of it. Exit code 0: no problems; 1: problems, each printed; 2: unreadable or not trusted."""
    from include.cvmfs.check import check as run_check

    with _refusing(), _progress() as progress:
        repository = _open(target, key, fqrn)
        report = run_check(repository, quick=quick, contents=contents, tag=tag, progress=progress)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=1))
    else:
        _print_report(report, repository.store.url)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def info(target: Target, key: Keys = None, fqrn: Fqrn = None, as_json: AsJson = False) -> None:
    """Show what the manifest says, who vouches for it, and how much the catalogs count."""
    with _refusing():
        repository = _open(target, key, fqrn)
        facts = _facts(repository)
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):{width}}  {'-' if value is None else value}")


@app.command()
def ls(
    target: Target,
    path: InRepository = "/",
    key: Keys = None,
    fqrn: Fqrn = None,
    tag: TagName = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Mode, links, owner, size, time and target too.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", "-R", help="Everything below, by full path.")] = False,
    as_json: AsJson = False,
) -> None:
    """List a directory, or a single entry."""
    with _refusing():
        tree = _tree(target, key, fqrn, tag)
        found = _entries(tree, path, recursive)
        if as_json:
            typer.echo(json.dumps([_described(name, entry) for name, entry in found], indent=1))
            return
        for name, entry in found:
            typer.echo(_long(name, entry) if long else _printable(name))


@app.command()
def cat(target: Target, path: InRepository, key: Keys = None, fqrn: Fqrn = None, tag: TagName = None) -> None:
    """Write a file's content to standard output, each object verified."""
    with _refusing():
        for piece in _tree(target, key, fqrn, tag).stream(path):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


@app.command()
def stat(
    target: Target,
    path: InRepository,
    key: Keys = None,
    fqrn: Fqrn = None,
    tag: TagName = None,
    as_json: AsJson = False,
) -> None:
    """Show everything that the catalogs say of one entry, its chunks and its nested catalog included."""
    with _refusing():
        tree = _tree(target, key, fqrn, tag)
        facts = _described(path, tree.entry(path))
        nested, chunks = tree.nested_at(path), tree.chunks(path)
        if nested is not None:
            facts |= {"nested_catalog": str(nested.hash), "nested_catalog_bytes": nested.size}
        if chunks:
            facts["chunks"] = [{"offset": c.offset, "size": c.size, "object": c.hash.key} for c in chunks]
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for name, value in facts.items():
        if name == "chunks":
            for piece in facts["chunks"]:
                typer.echo(f"{'chunk':22}{piece['offset']:>12} {piece['size']:>10}  {piece['object']}")
        else:
            typer.echo(f"{name.replace('_', ' '):22}{'-' if value is None else value}")


@app.command()
def tags(target: Target, key: Keys = None, fqrn: Fqrn = None, as_json: AsJson = False) -> None:
    """List the tags, latest revision first."""
    with _refusing():
        found = _open(target, key, fqrn).tags()
    if as_json:
        document = [
            {
                "name": tag.name,
                "revision": tag.revision,
                "root_hash": str(tag.hash),
                "time": _time(tag.timestamp),
                "description": tag.description,
                "branch": tag.branch,
            }
            for tag in found
        ]
        typer.echo(json.dumps(document, indent=1))
        return
    width = max((len(tag.name) for tag in found), default=0)
    for tag in found:
        line = f"{tag.name:{width}}  {tag.revision:>8}  {_time(tag.timestamp)}  {tag.hash}  {tag.description}"
        typer.echo(_printable(line.rstrip()))


# -- opening


def _open(target: str, key_files: Sequence[Path] | None, fqrn: str | None) -> Repository:
    from include.cvmfs.repository import Repository

    url, keys = target, list(key_files or ())
    if "://" not in target:
        folder = Path(target)
        if "/" in target or folder.is_dir():
            url = folder.absolute().as_uri()
        else:
            from include.settings.load import load

            settings = load().repository(target)
            url, fqrn = settings.public_url, settings.fqrn
            keys = keys or [settings.public_key]
    return Repository.open(url, fqrn=fqrn, public_keys=[_read_key(file) for file in keys], now=datetime.now(UTC))


def _read_key(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as fault:
        raise typer.BadParameter(f"{file}: {fault.strerror}; give the .pub file of the master key") from None


def _tree(target: str, keys: Sequence[Path] | None, fqrn: str | None, tag: str | None) -> Tree:
    repository = _open(target, keys, fqrn)
    return repository if tag is None else repository.at(tag)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """What cannot be opened, trusted or read ends the command with the reason on one line."""
    from include.cvmfs.errors import CvmfsError
    from include.settings.errors import SettingsError
    from include.storage.errors import StoreError

    try:
        yield
    except (CvmfsError, StoreError, SettingsError) as fault:
        _refuse(fault)


def _refuse(fault: Exception) -> NoReturn:
    from include.cvmfs.trust import Failure, failure_of

    failure = failure_of(fault)
    words = "" if failure is Failure.UNKNOWN else f"[{failure}] "
    lines = "\n".join(_printable(line) for line in str(fault).split("\n"))
    typer.echo(f"nightshift: {words}{lines}", err=True)
    raise typer.Exit(UNREADABLE) from None


# -- showing


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error while a check runs, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        steps: dict[str, Any] = {}

        def show(progress: Progress) -> None:
            if progress.step not in steps:
                steps[progress.step] = bars.add_task(progress.step, total=None)
            bars.update(steps[progress.step], completed=progress.done, total=progress.total or None)

        yield show


def _print_report(report: Report, url: str) -> None:
    for problem in report.problems:
        typer.echo(str(problem))
    if hidden := report.problem_count - len(report.problems):
        typer.echo(f"… and {hidden} problems more")
    for warning in report.warnings:
        typer.echo(f"warning: {warning}")
    trust = "signatures verified" if report.verified else "NOT verified against a key: give one with --key"
    objects = f", {report.objects} data objects" if report.objects else ""
    typer.echo(
        f"{report.fqrn} at {url}, revision {report.revision}, root {report.root}: {report.entries} entries, "
        f"{report.catalogs} catalogs{objects}; {trust}"
    )
    typer.echo(report.verdict)


def _facts(repository: Repository) -> dict[str, Any]:
    manifest, whitelist = repository.manifest, repository.trusted.whitelist
    total = repository.catalog_at("").statistics.total
    meta = repository.meta()
    return {
        "repository": manifest.fqrn,
        "url": repository.store.url,
        "verified": repository.verified,
        "revision": manifest.revision,
        "published": _time(manifest.timestamp),
        "root_hash": str(manifest.root),
        "root_catalog_bytes": manifest.root_size,
        "ttl_s": manifest.ttl,
        "garbage_collectable": manifest.garbage_collectable,
        "certificate": str(manifest.certificate) if manifest.certificate else None,
        "whitelist_expires": whitelist.expires.isoformat() if whitelist else None,
        "history": str(manifest.history) if manifest.history else None,
        "tags": len(repository.tags()),
        "reflog": str(manifest.reflog) if manifest.reflog else None,
        "description": _printable(meta.description) if meta else None,
        "files": total.regular,
        "symlinks": total.symlink,
        "directories": total.dir - total.nested,
        "nested_catalogs": total.nested,
        "file_bytes": total.file_size,
        "chunked_files": total.chunked,
    }


def _entries(tree: Tree, path: str, recursive: bool) -> Iterator[tuple[str, Dirent]]:
    if recursive:
        yield from ((here or "/", entry) for here, entry in tree.walk(path))
        return
    entry = tree.entry(path)
    if entry.is_directory:
        yield from ((child.name, child) for child in tree.listing(path))
    else:
        yield entry.name, entry


def _long(name: str, entry: Dirent) -> str:
    target = f" -> {_printable(entry.symlink)}" if entry.is_symlink else ""
    owner = f"{entry.uid:>6} {entry.gid:>6}"
    mark = " [nested catalog]" if entry.mountpoint else ""
    size = f"{entry.size:>12}"
    mode = modes.filemode(entry.mode)
    return f"{mode} {entry.linkcount:>4} {owner} {size} {_time(entry.mtime)} {_printable(name)}{target}{mark}"


def _described(path: str, entry: Dirent) -> dict[str, Any]:
    return {
        "path": _printable(path),
        "mode": modes.filemode(entry.mode),
        "links": entry.linkcount,
        "uid": entry.uid,
        "gid": entry.gid,
        "size": entry.size,
        "mtime": _time(entry.mtime),
        "object": entry.hash.key if entry.hash else None,
        "compression": entry.compression.name.lower() if entry.is_regular else None,
        "symlink": _printable(entry.symlink) if entry.is_symlink else None,
        "hardlink_group": entry.hardlink_group or None,
        "nested": entry.mountpoint,
        "external": entry.external,
    }


def _time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def _printable(text: str) -> str:
    from include.cvmfs.source import printable

    return printable(text)
