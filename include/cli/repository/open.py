"""The common part of the commands of `nightshift repo`: options, opening a repository, output."""

from __future__ import annotations

import contextlib
import getpass
import logging
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from include.cli.main import typeable
from include.errors import NightshiftError

if TYPE_CHECKING:
    from include.cvmfs.format.keys import Signer
    from include.cvmfs.revision.repository import Repository
    from include.cvmfs.revision.revision import Revision
    from include.publishers.capabilities import Operation
    from include.site.site import Site
    from include.storage.store import Store

UNREADABLE = 2
Target = Annotated[
    str, typer.Argument(metavar="URL_OR_FQRN", help="URL or folder of a repository, or a name from the configuration.")
]
Configured = Annotated[str, typer.Argument(metavar="FQRN", help="The name of a repository of the configuration.")]
Keys = Annotated[
    list[Path] | None, typer.Option("--key", metavar="FILE", help="Public master key; several may be given.")
]
Fqrn = Annotated[str | None, typer.Option("--fqrn", help="The name that the repository at a URL must have.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Report what would be done; change nothing.")]
TagName = Annotated[str | None, typer.Option("--tag", "-n", help="The revision of this tag instead of the newest.")]
InRepository = Annotated[str, typer.Argument(metavar="PATH", help="Absolute path inside the repository.")]
log = logging.getLogger(__name__)
_SPAN = re.compile(r"([0-9]{1,9})([hdw]?)")
_LONGEST_HOURS = 100 * 366 * 24


def open_target(target: str, key_files: Sequence[Path] | None, fqrn: str | None) -> Repository:
    """The repository at a URL, in a folder, or of that name in the configuration, as readers see it."""
    from include.cvmfs.revision.repository import Repository

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
    return Repository.open(url, fqrn=fqrn, public_keys=[read_key(file) for file in keys], now=datetime.now(UTC))


def read_key(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as fault:
        raise typer.BadParameter(f"{file}: {fault.strerror}; give the .pub file of the master key") from None


def tree_of(target: str, keys: Sequence[Path] | None, fqrn: str | None, tag: str | None) -> Revision:
    repository = open_target(target, keys, fqrn)
    return repository.revision if tag is None else repository.at(tag)


def open_site() -> Site:
    """Stores, gateways and repositories of the configuration, with the secrets of the environment."""
    from include.settings.load import load
    from include.settings.secrets import EnvSecrets
    from include.site.site import Site

    return Site(load(), EnvSecrets())


def switching(
    site: Site, fqrn: str, operation: Operation, *, leased: bool | None = None
) -> contextlib.AbstractContextManager[tuple[Store, Signer]]:
    """The store and signing key of a repository, for who replaces its manifest beside the gateway."""
    from include.site.site import switching

    return switching(site, fqrn, operation, holder=holder(), leased=leased)


def holder() -> str:
    """Return the name of the holder of a lease."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def by_hand(site: Site, kind: str, what: str, why: str = "by hand", *, dry_run: bool = False) -> None:
    """Record a destructive act of this command for the audit. `kind`: the name of an `ActKind`. Raises nothing."""
    from include.ledger.acts import Act, ActKind, note_act

    act = Act(datetime.now(UTC), ActKind[kind], what, holder(), why, dry_run=dry_run)
    try:
        note_act(site.ledger, act)
    except NightshiftError as error:
        log.warning("this act is not in the audit: %s", error)


def seconds_now() -> int:
    """Unix time."""
    return int(datetime.now(UTC).timestamp())


def span(text: str) -> timedelta:
    """`36h`, `14d`, `2w`; a bare number counts days."""
    match = _SPAN.fullmatch(text)
    if not match:
        raise typer.BadParameter(f"{text!r} is no time span; write 36h, 14d or 2w")
    hours = int(match[1]) * {"h": 1, "d": 24, "": 24, "w": 168}[match[2]]
    if hours > _LONGEST_HOURS:
        raise typer.BadParameter(f"{text!r} is more than a hundred years")
    return timedelta(hours=hours)


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """End the command with the reason on one line if something cannot be opened, trusted, read or changed."""
    try:
        yield
    except NightshiftError as fault:
        refuse(fault)


def refuse(fault: Exception) -> NoReturn:
    from include.cvmfs.errors import ObjectError
    from include.cvmfs.revision.repository import OpenFailure, failure_of

    failure = failure_of(fault)
    words = "" if failure is OpenFailure.UNKNOWN else f"[{failure}] "
    lines = "\n".join(printable(line) for line in str(fault).split("\n"))
    typer.echo(f"nightshift: {words}{typeable(lines)}", err=True)
    if isinstance(fault, ObjectError):
        cure = typeable("nightshift repo repair FQRN --dry-run")
        typer.echo(f"nightshift: if the repository lost it, this names the cure: {cure}", err=True)
    raise typer.Exit(UNREADABLE) from None


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on standard error while something long runs, if that is a terminal: step, done, total (0: not known)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        steps: dict[str, Any] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in steps:
                steps[step] = shown.add_task(step, total=None)
            shown.update(steps[step], completed=done, total=total or None)

        yield show


def time_text(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def printable(text: str) -> str:
    from include.cvmfs.sources.source import printable

    return printable(text)
