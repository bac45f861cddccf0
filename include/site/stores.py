"""The stores of a site as clients need them: with their credentials and options, and tried before they are trusted."""

from __future__ import annotations

from include.settings.model import SiteSettings, StoreSettings
from include.settings.secrets import Secrets
from include.storage import store as storage
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
    inside = next((one for one in settings.repositories.values() if one.store == name), None)
    return probe(store) if inside is None else probe(store.child(inside.fqrn), public_url=inside.public_url)
