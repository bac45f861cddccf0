"""The command `nightshift`: its groups, each loaded when it is called, and what all of them need of a terminal."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from include.errors import NightshiftError

if TYPE_CHECKING:
    from rich.console import Console


def lab_part(module: str) -> ModuleType | None:
    """A module of the lab, or None where the lab is not installed."""
    return importlib.import_module(f"lab.{module}") if importlib.util.find_spec("lab") else None


NOT_A_TERMINAL = 100  # columns of a log, a pipe or a mail


def console() -> Console:
    """Return the console for tables: as wide as the terminal, elsewhere 100 columns."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = NOT_A_TERMINAL
    return made


def program() -> str:
    """The command `nightshift` as it can be typed here: with its path where the shell does not find it."""
    ours = Path(sys.executable).parent / "nightshift"
    path = shutil.which("nightshift")
    if path and Path(path).resolve() == ours.resolve():
        return "nightshift"
    here = Path.cwd()
    return str(ours.relative_to(here) if ours.is_relative_to(here) else ours)


def typed(text: str, commands: Collection[str]) -> str:
    """A text whose commands of `nightshift` can be typed as they are; the hints of the library do not know the path."""
    words = "|".join(map(re.escape, commands))
    return re.sub(rf"(?<![\w./-])nightshift(?= (?:{words})\b)", lambda _: program(), text)


HAS_LAB = importlib.util.find_spec("lab") is not None
# group -> the module that has it as `app` or by another name, and what it is for; those of the lab only where it is
GROUPS = {
    "settings": ("include.cli.settings", "Check the site configuration and the stores it names."),
    "repo": ("include.cli.repo", "Create, read, change and check repositories."),
    "store": ("include.cli.site:store_group", "Put a file into a store."),
    "cache": ("include.cli.cache", "Warm, trim and verify the shared caches of a site."),
    "site": ("include.cli.site", "Health of the storage sites: probe, hold and release them."),
    "gateway": ("include.cli.gateway", "Serve the lease protocol; list leases."),
    "fts": ("lab.commands.fts", "Serve the embedded FTS."),
    "lab": ("lab.commands.services", "Bring the embedded services up and down."),
    "backup": ("include.cli.backup", "Back up ledger, gateway state, keys and settings; restore them."),
    "nightly": ("include.cli.nightly", "Pack a build and run a night."),
    "stageout": ("include.cli.stageout", "Transfer users' files between sites."),
    "dags": ("include.cli.site:dags_group", "Unpause the DAGs that a site needs."),
    "notify": ("include.cli.site:notify_group", "Test how people are notified."),
    "storage-benchmark": ("include.cli.storage_benchmark", "Measure storage against its baseline."),
}
# group -> the module of the lab that adds commands to it
ADDED = {"nightly": "lab.commands.night", "storage-benchmark": "lab.commands.demonstration"}
# commands without a group -> the module that has the function of their name
COMMANDS = {
    "init": ("include.cli.init", "Write the first configuration of a site, and its connections."),
    "freeze": ("include.cli.interventions", "Stop all changes of a repository for a while."),
    "thaw": ("include.cli.interventions", "End a freeze; what waits goes on."),
    "upgrade": ("include.cli.backup", "Bring a site to this version; with --check, say what that changes."),
    "preflight": ("include.cli.interventions", "Could a night run now? All that is wrong, with a hint."),
    "audit": ("include.cli.interventions", "Show who removed, stopped or decided what, and why."),
    "who": ("include.cli.interventions", "Who and what published a path."),
}


def main(words: Sequence[str] | None = None) -> None:
    """The entry point; an error of Nightshift's own is one line, any other is a bug and shows its traceback."""
    words = sys.argv[1:] if words is None else words
    try:
        assemble(words)(list(words), prog_name="nightshift")
    except NightshiftError as error:
        typer.echo(f"nightshift: {typeable(str(error))}", err=True)
        sys.exit(1)


def typeable(text: str) -> str:
    """A text whose commands of `nightshift` can be typed in this shell."""
    return typed(text, {*GROUPS, *COMMANDS})


def assemble(words: Sequence[str]) -> typer.Typer:
    """The application for a command line: the group that it names in full, the others with their purpose only."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_root)
    chosen = next((word for word in words if not word.startswith("-")), None)
    # what the lab defines is not of the site that is to be made
    if chosen in {*GROUPS, *COMMANDS} - {"init"} and "--help" not in words:
        _adopt_lab()
    for name, (place, purpose) in GROUPS.items():
        if place.startswith("lab.") and not HAS_LAB:
            continue
        if name == chosen:
            module, _, attribute = place.partition(":")
            group = getattr(importlib.import_module(module), attribute or "app")
            if HAS_LAB and name in ADDED:
                importlib.import_module(ADDED[name]).add_to(group)
            app.add_typer(group, name=name, help=purpose)
        else:
            app.command(name, help=purpose)(_another)
    for name, (module, purpose) in COMMANDS.items():
        if name == chosen:
            app.command(name)(getattr(importlib.import_module(module), name))
        else:
            app.command(name, help=purpose)(_another)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"nightshift {importlib.metadata.version('nightshift')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Operate nightly software publication to CernVM-FS."""


def _another() -> None:
    raise AssertionError("a group that was not named was called")


def _adopt_lab() -> None:
    if lab := lab_part("environment"):
        lab.adopt()


if __name__ == "__main__":
    main()
