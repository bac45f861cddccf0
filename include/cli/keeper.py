"""`nightshift repo create` and `repair`: what the keeper of a repository's keys does, beside reading and checking."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

Configured = Annotated[str, typer.Argument(metavar="FQRN", help="The name of a repository of the configuration.")]


def create(fqrn: Configured) -> None:
    """Create a repository of the configuration: bucket, public reading, keys, whitelist and first revision.

    What is there already stays as it is; a creation that died half way is finished.
    """
    from include.publishers.connect import Connections
    from include.publishers.found import found_repository, found_stores
    from include.settings.load import load
    from include.settings.secrets import EnvSecrets

    connections = Connections(load(), EnvSecrets())
    found_stores(connections, {connections.site.repository(fqrn).store}, say=typer.echo)
    if not found_repository(connections, fqrn, say=typer.echo):
        typer.echo(f"{fqrn} is there already")


def repair(
    fqrn: Configured,
    reflog: Annotated[
        bool, typer.Option("--reflog", help="Rebuild the reflog from what the manifest leads to.")
    ] = False,
) -> None:
    """Mend a repository whose reflog is lost or does not match; needs the repository's signing key on this machine."""
    from include.cvmfs.keys import load_signer
    from include.cvmfs.repair import repair_reflog
    from include.publishers.connect import Connections
    from include.settings.load import load
    from include.settings.secrets import EnvSecrets

    if not reflog:
        raise typer.BadParameter("say what to repair: --reflog")
    site = load()
    store = Connections(site, EnvSecrets()).manifest_store(fqrn)
    signer = load_signer(site.gateway.keys, fqrn)
    head, added = repair_reflog(store, fqrn, signer=signer, now=int(datetime.now(UTC).timestamp()))
    typer.echo(f"reflog of {fqrn} matches revision {head.manifest.revision} again; {added} references added")
