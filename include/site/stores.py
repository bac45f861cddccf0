"""The stores of a site as clients need them: with their credentials and options, and tried before they are trusted."""

from __future__ import annotations

from collections.abc import Iterable

from include.settings.errors import BadConnection
from include.settings.model import SiteSettings, StoreSettings
from include.settings.secrets import ConnectionSecrets, Secrets, connection_variable
from include.settings.urls import base_url
from include.storage import store as storage
from include.storage.errors import REPOSITORY_OBJECT
from include.storage.open import Credentials, StoreOptions, open_store
from include.storage.options import Traits
from include.storage.probe import probe
from include.storage.roles import Role


def credentials_of(store: StoreSettings, secrets: Secrets, role: Role = Role.PUBLISHER) -> Credentials | None:
    """The key of a role at a store; None if the store names no connection. Raises MissingConnection, BadConnection."""
    connection = connection_of(store, role)
    if connection is None:
        return None
    found = secrets.get(connection)
    return Credentials(found.login or "", found.password or "")


def connection_of(store: StoreSettings, role: Role) -> str | None:
    """The connection with a role's key; None for readers, who need none, and where the store names none.

    The settings may name one of its own for the gateway and one for the collector; else the publishers' is used.
    """
    match role:
        case Role.READER:
            return None
        case Role.GATEWAY:
            return store.gateway_connection or store.connection
        case Role.COLLECTOR:
            return store.collector_connection or store.connection
        case Role.PUBLISHER:
            return store.connection


def options_of(store: StoreSettings, *, traits: Traits | None = None, single_writer: bool = False) -> StoreOptions:
    """How the settings say that a store is spoken to. `traits`: what it was seen to keep."""
    return StoreOptions(
        endpoint=store.endpoint,
        region=store.region,
        addressing=store.addressing,
        connections=store.connections,
        timeout_s=store.timeout_s,
        retries=store.retries,
        acl=store.acl,
        traits=traits,
        single_writer=single_writer,
        fsync=store.fsync,
    )


def connected_store(secrets: Secrets, connection_id: str, url: str = "") -> storage.Store:
    """A store that only a connection describes: at ``url``, or in the bucket that the connection's extra names.

    Raises MissingConnection, BadConnection or StoreError.
    """
    connection = secrets.get(connection_id)
    where = url or str(connection.extra.get("url") or "")
    if not where:
        variable = connection_variable(connection_id)
        raise BadConnection(connection_id, variable, 'names no `url` in its extra, such as {"url": "s3://bucket"}')
    credentials = Credentials(connection.login, connection.password or "") if connection.login else None
    return open_store(where, credentials=credentials, options=connected_options(connection))


def connected_options(connection: ConnectionSecrets) -> StoreOptions:
    """How a store is spoken to, by its connection. Raises BadConnection."""
    return StoreOptions(
        endpoint=base_url(connection) if connection.host else None,
        region=str(connection.extra.get("region") or "us-east-1"),
        addressing="virtual" if connection.extra.get("addressing") == "virtual" else "path",
    )


def require_no_repository(settings: SiteSettings, store: storage.Store, keys: Iterable[str]) -> None:
    """Raises REPOSITORY_OBJECT for a key, or folder, that is part of a configured repository or holds one."""
    own = [
        f"{settings.store(repository.store).url.rstrip('/')}/{repository.fqrn}/"
        for repository in settings.repositories.values()
    ]
    for key in keys:
        url = f"{store.url.rstrip('/')}/{key}".rstrip("/") + "/"
        for repository in own:
            if url.startswith(repository) or repository.startswith(url):
                what = f"{url.rstrip('/')} is part of the repository at {repository.rstrip('/')}, or holds it"
                raise REPOSITORY_OBJECT(f"{what}; {REPOSITORY_OBJECT.hint}", key=key)


def plain_store(settings: SiteSettings, secrets: Secrets, name: str, role: Role = Role.PUBLISHER) -> storage.Store:
    """A store opened without what an earlier trial saw. Raises StoreError, MissingConnection or BadConnection."""
    store = settings.store(name)
    return open_store(store.url, credentials=credentials_of(store, secrets, role), options=options_of(store))


def try_store(settings: SiteSettings, secrets: Secrets, name: str) -> Traits | None:
    """What a store keeps under racing writers; None for one that can only be read, which is not tried.

    It is opened without what an earlier trial saw, or a store could never be seen to have improved. Raises StoreError,
    MissingConnection or BadConnection.
    """
    store = plain_store(settings, secrets, name)
    if not store.writable:
        return None
    # where a repository is public, a neighbouring folder of the same bucket need not be: try inside it
    inside = next((repository for repository in settings.repositories.values() if repository.store == name), None)
    return probe(store) if inside is None else probe(store.child(inside.fqrn), public_url=inside.public_url)
