"""`nightshift store`: put a file into a store of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from include.cli.repository.open import open_site, refusing
from include.storage.objects import put_object

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Stores of the site configuration."""


@app.command()
def put(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store of the configuration.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="File to store.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its key in the store; default: the file's name.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace another content under the key.")] = False,
) -> None:
    """Store a file, which is held in memory, and print its URL. Run again with the same file it changes nothing."""
    with refusing():
        stored = put_object(open_site().store(store), key or file.name, file.read_bytes(), replaces=replace)
    typer.echo(f"{stored.url}: {stored.size} bytes{', there already' if stored.unchanged else ''}")
