"""`nightshift gateway`: serve the lease protocol for the site's repositories, and list the leases."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from include.settings.errors import MissingConnection
from include.settings.load import load
from include.settings.model import RepositorySettings, SiteSettings
from include.settings.secrets import ConnectionSecrets, EnvSecrets, Secrets

if TYPE_CHECKING:
    from include.cvmfs.format.keys import Signer
    from include.gateway.service.config import AcceptedKey, ServiceConfig

app = typer.Typer(no_args_is_help=True)

ADMIN_KEY = "gateway-admin.gw"


@app.command()
def serve(
    port: Annotated[int | None, typer.Option(help="Another port than the configuration's; 0 takes any.")] = None,
) -> None:
    """Serve until stopped. Keys: <fqrn>.gw of the keys folder, and the repository's gateway connection.

    SIGHUP reads keys and repositories again; what cannot be served is refused, and the old ones stay.
    """
    from include.gateway.service.http.server import serve as serve_gateway
    from include.gateway.service.telemetry import log_to

    log_to()
    serve_gateway(partial(_served, port))


@app.command()
def leases(
    url: Annotated[str | None, typer.Option(help="Another gateway than the configuration's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    """Show who holds which path, and for how long yet."""
    from include.gateway.client.client import GatewayClient

    settings = load()
    authorities = settings.gateway.certificate if url is None else None
    with GatewayClient(
        url or gateway_url(settings), "", "", authorities=str(authorities) if authorities else None, timeout_s=10
    ) as client:
        held = client.leases()
    now = datetime.now(UTC)
    rows = [
        {
            "path": lease.full_path,
            "key": lease.key_id,
            "holder": lease.hostname,
            "expires": lease.expires.isoformat(timespec="seconds"),
            "seconds_left": max(0, round((lease.expires - now).total_seconds())),
        }
        for lease in held
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("path", "key", "holder", "expires", "seconds left")
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    Console(soft_wrap=True).print(table if rows else "no leases")


def gateway_url(settings: SiteSettings) -> str:
    """Return the address of the embedded gateway."""
    host = settings.gateway.host
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared with, not bound to
        host = "127.0.0.1"
    scheme = "https" if settings.gateway.certificate else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.gateway.port}"


def _served(port: int | None) -> ServiceConfig:
    """The configuration for the site of this process's environment.

    It is pickled for the process that commits, which reads it itself: a function of the module, and no lambda.
    """
    return service_config(load(), EnvSecrets(), port=port)


def service_config(settings: SiteSettings, secrets: Secrets, *, port: int | None = None) -> ServiceConfig:
    """The service for those repositories of a site that have a key here. Raises ConfigError if there is none.

    Signing keys and store credentials are read at a repository's first commit: they may be made after the start.
    """
    from include.gateway.service.config import ConfigError, RepositoryConfig, ServiceConfig
    from include.site.site import Site

    site = Site(settings, secrets)
    served, not_served = {}, {}
    for fqrn, repository in settings.repositories.items():
        keys = _keys(settings, repository, secrets)
        if keys:
            store = partial(site.manifest_store, fqrn)
            masters = partial(_public_keys, repository.public_key, settings.gateway.keys / f"{fqrn}.pub")
            quick = partial(site.manifest_store, fqrn, quick=True)
            served[fqrn] = RepositoryConfig(store, _signer(settings, repository), keys, masters, quick)
        else:
            not_served[fqrn] = _without_key(settings, repository, secrets)
    if not served:
        raise ConfigError(
            f"no repository of the configuration has a gateway key: create {settings.gateway.keys}/<fqrn>.gw,"
            " or define the repository's gateway connection for this gateway's port"
        )
    return ServiceConfig(
        state=settings.gateway.state,
        repositories=served,
        host=settings.gateway.host,
        port=settings.gateway.port if port is None else port,
        certificate=settings.gateway.certificate,
        private_key=settings.gateway.private_key,
        insecure=settings.gateway.insecure,
        max_lease_time_s=settings.gateway.max_lease_time_s,
        max_payload_bytes=settings.gateway.max_payload_mib << 20,
        keys=_admin_keys(settings, list(served), secrets),
        not_served=not_served,
    )


def _public_keys(*files: Path) -> list[bytes]:
    """The master keys that may confirm a manifest which another certificate signed, as far as they are here."""
    return [file.read_bytes() for file in dict.fromkeys(files) if file.exists()]


def _keys(settings: SiteSettings, repository: RepositorySettings, secrets: Secrets) -> tuple[AcceptedKey, ...]:
    """The key of the file and the key of the connection, once if they are the same."""
    from include.gateway.service.config import AcceptedKey

    keys = []
    file = settings.gateway.keys / f"{repository.fqrn}.gw"
    if file.exists():
        keys.append(_key_file(file))
    try:
        connection = secrets.get(repository.gateway)
    except MissingConnection:
        connection = None
    if connection and connection.login and connection.password and is_here(settings, connection):
        key = (connection.login, connection.password)
        keys += [key] if key not in keys else []
    return tuple(AcceptedKey(key_id, secret) for key_id, secret in keys)


def is_here(settings: SiteSettings, connection: ConnectionSecrets) -> bool:
    """Tell whether a connection leads to the gateway of these settings; without a port it does, as for its clients."""
    from include.http_calls import is_loopback

    # one that has a URL as its host is for a gateway elsewhere
    host, port = connection.host or "", connection.port or settings.gateway.port
    return (is_loopback(host) or host == settings.gateway.host) and port == settings.gateway.port


def _without_key(settings: SiteSettings, repository: RepositorySettings, secrets: Secrets) -> str:
    """Return the reason why ``_keys`` found none."""
    name, file = repository.gateway, settings.gateway.keys / f"{repository.fqrn}.gw"
    try:
        connection = secrets.get(name)
    except MissingConnection:
        return f"no gateway key: there is neither {file} nor the connection {name!r}; create one of them"
    if not (connection.login and connection.password):
        return f"no gateway key: there is no {file}, and the connection {name!r} has no login and password"
    place = f"{connection.host}:{connection.port or settings.gateway.port}"
    return f"its connection {name!r} names the gateway {place}, not this one; if it is to be served here, create {file}"


def _admin_keys(settings: SiteSettings, served: list[str], secrets: Secrets) -> tuple[AcceptedKey, ...]:
    """Return the keys of the file and of administrators' connections; they take no lease."""
    from include.gateway.service.config import AcceptedKey

    file = settings.gateway.keys / ADMIN_KEY
    keys = [_key_file(file)] if file.exists() else []
    named = {settings.repository(fqrn).gateway_admin for fqrn in served}
    for connection_id in sorted(filter(None, named)):
        try:
            connection = secrets.get(connection_id)
        except MissingConnection:
            continue
        if connection.login and connection.password and (connection.login, connection.password) not in keys:
            keys.append((connection.login, connection.password))
    return tuple(AcceptedKey(key_id, secret, admin=True) for key_id, secret in keys)


def _key_file(file: Path) -> tuple[str, str]:
    from include.cvmfs.format.keys import load_gateway_key

    key = load_gateway_key(file)
    return key.key_id, key.secret


def _signer(settings: SiteSettings, repository: RepositorySettings) -> Callable[[], Signer]:
    def read() -> Signer:
        from include.cvmfs.format.keys import load_signer

        return load_signer(settings.gateway.keys, repository.fqrn, reflog_checksum=repository.reflog_checksum)

    return read
