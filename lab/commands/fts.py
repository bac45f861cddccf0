"""`nightshift fts`: serve the embedded FTS of a lab."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def fts() -> None:
    """The embedded FTS (docs/fts-service.md)."""


@app.command()
def serve(
    port: Annotated[int, typer.Option(help="0 takes any.", envvar="NIGHTSHIFT_FTS_PORT")] = 8446,
    state: Annotated[
        Path | None, typer.Option(help="SQLite file; without it, fts/fts.sqlite below the lab's folder.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="A line `<token> <user> [admin]` for each caller.", envvar="NIGHTSHIFT_FTS_TOKENS"),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="PEM; serve https.")] = None,
    key: Annotated[Path | None, typer.Option(help="PEM; the certificate's key.")] = None,
    authorities: Annotated[Path | None, typer.Option(help="PEM bundle; callers are known by certificates.")] = None,
    admin: Annotated[list[str] | None, typer.Option(help="A user who may ban; may be repeated.")] = None,
    active_per_link: Annotated[int, typer.Option(min=1, help="Files of a link that are copied at a time.")] = 60,
    tick: Annotated[float, typer.Option(min=0.01, help="Seconds between two steps of the scheduler.")] = 0.1,
    archive_after: Annotated[float, typer.Option(min=0, help="Seconds; ended jobs go to the archive.")] = 7 * 86400.0,
    mean: Annotated[float, typer.Option(min=0, help="Mean seconds of a simulated copy.")] = 20.0,
    spread: Annotated[float, typer.Option(min=0, help="Sigma of their log-normal distribution.")] = 0.6,
    fail: Annotated[
        list[str] | None, typer.Option(help="`network=0.01`: fraction of simulated copies; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Make simulated copies repeatable.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Copy files below it, as file://localhost/<path>.")] = None,
    webdav: Annotated[bool, typer.Option(help="Copy between http, https, dav and davs storages.")] = False,
    storage_authorities: Annotated[Path | None, typer.Option(help="PEM bundle for their certificates.")] = None,
    s3_endpoint: Annotated[
        str | None, typer.Option(help="Endpoint of s3://…; keys: see below.", envvar="NIGHTSHIFT_FTS_S3_ENDPOINT")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Real copies at a time.")] = 16,
    faults: Annotated[bool, typer.Option(help="Accept POST /simulated/faults.")] = False,
) -> None:
    """Serve until stopped, on loopback. Simulated copies are between `mock://` URLs.

    S3's keys come from NIGHTSHIFT_S3_ACCESS_KEY and NIGHTSHIFT_S3_SECRET_KEY; without them, S3 is not served.
    """
    from include.storage.kinds import Credentials
    from lab.environment import LabFolders
    from lab.fts.config import FtsServiceConfig
    from lab.fts.copies.simulated import SimulationModel, parsed_fractions
    from lab.fts.http.app import serve_fts

    access, secret = (os.environ.get(f"NIGHTSHIFT_S3_{name}_KEY") for name in ("ACCESS", "SECRET"))
    config = FtsServiceConfig(
        state or LabFolders.from_environment(os.environ).fts / "fts.sqlite", port=port, tokens=tokens,
        certificate=certificate, key=key, authorities=authorities, admins=frozenset(admin or ()),
        active_per_link=active_per_link, tick_s=tick, archive_after_s=archive_after, with_faults=faults,
        folder=folder, webdav=webdav, storage_authorities=storage_authorities, threads=threads,
        s3_endpoint=s3_endpoint, s3_credentials=Credentials(access, secret) if access and secret else None,
        model=SimulationModel(mean, spread, parsed_fractions(fail or ()), seed),
    )  # fmt: skip
    serve_fts(config, ready=lambda url: typer.echo(f"FTS service on {url}", err=True))
