"""From names of the site configuration to open stores and clients; the caller hands in the secrets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from include.cvmfs.coordination.freeze import require_thawed
from include.cvmfs.errors import KeyFileError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.keys import KeyFile, Signer, load_signer
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.repository import Repository
from include.gateway.client.client import GatewayClient, open_gateway
from include.publishers.base import Publisher
from include.publishers.capabilities import Loss, Operation, PublishRoute, require
from include.publishers.errors import NotSupported, PublisherError
from include.publishers.gateway import NightshiftGateway, RepositoryGateway, StockGateway, WriterSide
from include.publishers.native import NativePublisher
from include.settings.errors import BadConnection
from include.settings.model import GatewayKind, PublisherKind, RepositorySettings, SiteSettings, StoreSettings
from include.settings.secrets import ConnectionSecrets, Secrets, base_url, connection_variable
from include.settings.traits import open_site_ledger, recorded_traits, require_single_writer
from include.storage import store as storage
from include.storage.buckets import Role
from include.storage.errors import REPOSITORY_OBJECT
from include.storage.kinds import Traits
from include.storage.open import Credentials, StoreOptions, open_store
from include.storage.probe import probe
from include.storage.store import Store

if TYPE_CHECKING:  # paramiko is imported only where there is a node
    from include.publishers.server.pack import Packing
    from include.publishers.server.publisher import ServerPublisher


def credentials_of(store: StoreSettings, secrets: Secrets, role: Role = Role.PUBLISHER) -> Credentials | None:
    """The key of a role at a store; None if the store names no connection. Raises MissingConnection, BadConnection."""
    connection = connection_of(store, role)
    if connection is None:
        return None
    secret = secrets.get(connection)
    return Credentials(secret.login or "", secret.password or "")


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
    """Return how the settings say that a store is spoken to. `traits`: what it was seen to keep."""
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
    """Return how a store is spoken to, by its connection. Raises BadConnection."""
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
    """Return what a store keeps under racing writers; None for one that can only be read, which is not tried.

    It is opened without what an earlier trial saw, or a store could never be seen to have improved. Raises StoreError,
    MissingConnection or BadConnection.
    """
    store = plain_store(settings, secrets, name)
    if not store.writable:
        return None
    # where a repository is public, a neighbouring folder of the same bucket need not be: try inside it
    inside = next((repository for repository in settings.repositories.values() if repository.store == name), None)
    return probe(store) if inside is None else probe(store.child(inside.fqrn), public_url=inside.public_url)


@contextlib.contextmanager
def switching(
    site: Site, fqrn: str, operation: Operation, *, holder: str, leased: bool | None = None
) -> Iterator[tuple[Store, Signer]]:
    """The store and signing key of a repository, for callers that replace its manifest beside the gateway.

    Where the store does not keep conditions on a replacement, everything is leased meanwhile, as ``holder``: then no
    commit is made; ``leased`` decides it, whatever the store keeps. Raises RepositoryFrozen, KeyFileError where the key
    is not, NotSupported behind a gateway that does not bear it, GatewayError where that cannot be found out, and what
    leasing raises.
    """
    site.require_thawed(fqrn)
    store, signer = require_switchable(site, fqrn, operation)
    traits = recorded_traits(site.ledger, site.settings.store(site.settings.repository(fqrn).store))
    if leased is None:
        leased = not (store.is_local or (traits is not None and traits.replace))
    if not leased:
        yield store, signer
        return
    with site.gateway(fqrn).lease(fqrn, "", hostname=holder):
        yield store, signer


def require_switchable(site: Site, fqrn: str, operation: Operation) -> tuple[Store, Signer]:
    """The store and signing key, if this machine may replace the manifest; whatever is frozen or leased.

    Raises KeyFileError, NotSupported and GatewayError as :func:`switching`.
    """
    folder = site.settings.gateway.keys
    path = KeyFile.REPOSITORY.path(folder, site.settings.repository(fqrn).fqrn)
    if not path.exists():
        cure = "run this where the gateway is, or import the keys there: nightshift repo import-keys"
        raise KeyFileError(str(path), f"the signing key of {fqrn} is not on this machine; {cure}")
    checksum = site.settings.repository(fqrn).reflog_checksum
    store, signer = site.manifest_store(fqrn), load_signer(folder, fqrn, reflog_checksum=checksum)
    require(site.way_of_switching(fqrn), operation, fqrn=fqrn, path="")
    return store, signer


QUICK_S = 4.0
OBJECT_STORE = "object_store_default"
"""The connection of a store that is neither named nor given one."""


def native_publisher(
    settings: RepositorySettings, store: Store, client: GatewayClient, read_manifest: Callable[[], Manifest]
) -> NativePublisher:
    """The native publisher of a repository as its settings want it: the one that nights, benchmarks and tests use."""
    repository = WriterSide(settings.fqrn, store, CatalogCache(store), read_manifest)

    def choose() -> RepositoryGateway:
        if _is_stock(settings, lambda: client):
            return StockGateway(repository, client, frozenset(Loss(loss) for loss in settings.allow_lossy))
        return NightshiftGateway(repository, client)

    return NativePublisher(
        repository,
        client,
        choose,
        catalog_entries=settings.prepare.catalog_entries,
        root_entries=settings.prepare.root_entries,
    )


def _is_stock(settings: RepositorySettings, gateway: Callable[[], GatewayClient]) -> bool:
    if settings.gateway_kind is GatewayKind.AUTO:
        return not gateway().judges_bases()
    return settings.gateway_kind is GatewayKind.STOCK


class Site:
    """Opens each store, gateway and ledger of a site at most once. Every error names the setting and has a hint."""

    def __init__(self, settings: SiteSettings, secrets: Secrets) -> None:
        self.settings = settings
        self.secrets = secrets
        self._stores: dict[tuple[str, Role, bool, bool], Store] = {}

    def store(self, name: str, role: Role = Role.PUBLISHER) -> Store:
        """The store of that name, with the credentials of a role and what it was seen to keep."""
        return self._opened(name, role)

    def chosen_store(self, name: str | None, connection: str | None) -> Store:
        """The store of that name, or else the one that a connection describes."""
        if name is not None:
            return self.store(name)
        return connected_store(self.secrets, connection or OBJECT_STORE)

    def with_gateway(self, fqrn: str, connection: str) -> Site:
        """The same site with another key, or gateway, for one repository."""
        repository = self.settings.repository(fqrn).model_copy(update={"gateway": connection})
        repositories = {**self.settings.repositories, fqrn: repository}
        return Site(self.settings.model_copy(update={"repositories": repositories}), self.secrets)

    def repository_store(self, fqrn: str, *, quick: bool = False) -> Store:
        """Return where a repository's objects lie: its store, below its name.

        ``quick``: with short time-outs and no repetitions, for a look.
        """
        return self._opened(self.settings.repository(fqrn).store, Role.PUBLISHER, quick=quick).child(fqrn)

    def gateway_store(self, fqrn: str) -> Store:
        """The same with the gateway's credentials, for who founds the repository."""
        return self.store(self.settings.repository(fqrn).store, Role.GATEWAY).child(fqrn)

    def collector_store(self, fqrn: str) -> Store:
        """The same with the credentials of who deletes objects."""
        return self.store(self.settings.repository(fqrn).store, Role.COLLECTOR).child(fqrn)

    def manifest_store(self, fqrn: str, *, quick: bool = False) -> Store:
        """A repository's store for the one who switches its manifest. Raises PublisherError.

        ``quick``: with short time-outs and no repetitions, for a look.
        """
        settings = self.settings.repository(fqrn)
        traits = recorded_traits(self.ledger, self.settings.store(settings.store))
        writers = [f"writer {number + 1}" for number in range(settings.manifest_writers)]
        verdict = require_single_writer(traits, store=settings.store, fqrn=fqrn, writers=writers)
        if not verdict.allowed:
            raise PublisherError(fqrn, verdict.reason)
        return self._opened(settings.store, Role.GATEWAY, single_writer=len(writers) == 1, quick=quick).child(fqrn)

    def repository(self, fqrn: str) -> Repository:
        """The repository as its readers see it: through the public URL, trusted by the public key alone."""
        settings = self.settings.repository(fqrn)
        keys = [settings.public_key.read_bytes()]
        return Repository.open(settings.public_url, fqrn=fqrn, public_keys=keys, now=datetime.now(UTC))

    def head(self, fqrn: str) -> Repository:
        """The repository from the writer's side of the store, where no cache is in between; as strictly verified."""
        keys = [self.settings.repository(fqrn).public_key.read_bytes()]
        return Repository.open(self.repository_store(fqrn), fqrn=fqrn, public_keys=keys, now=datetime.now(UTC))

    def gateway(self, fqrn: str) -> GatewayClient:
        """The client of a repository's gateway, with the key of its connection."""
        return open_gateway(self.secrets.get(self.settings.repository(fqrn).gateway), port=self.settings.gateway.port)

    def gateway_admin(self, fqrn: str) -> GatewayClient:
        """The same with the administrator's key, if the settings name one; else with the publishers'."""
        settings = self.settings.repository(fqrn)
        if settings.gateway_admin is None:
            return self.gateway(fqrn)
        address, key = self.secrets.get(settings.gateway), self.secrets.get(settings.gateway_admin)
        return open_gateway(address, key=key, port=self.settings.gateway.port)

    def require_thawed(self, fqrn: str) -> None:
        """Call this before any change of the repository. Raises RepositoryFrozen."""
        require_thawed(self.repository_store(fqrn), fqrn, datetime.now(UTC))

    def way_of_switching(self, fqrn: str) -> PublishRoute:
        """The gateway in front of the repository, for a caller that replaces its manifest on the gateway's machine.

        Raises GatewayError where the gateway has to be asked for its kind and does not answer.
        """
        settings = self.settings.repository(fqrn)
        if settings.server is not None and settings.server.behind != "nightshift":
            return PublishRoute.SERVER_LOCAL if settings.server.behind == "none" else PublishRoute.SERVER_STOCK
        if settings.server is None and _is_stock(settings, partial(self.gateway, fqrn)):
            return PublishRoute.NATIVE_STOCK
        return PublishRoute.NATIVE_OURS

    def publisher(self, fqrn: str) -> Publisher:
        """The way to publish that the repository's settings choose. Raises RepositoryFrozen."""
        self.require_thawed(fqrn)
        settings = self.settings.repository(fqrn)
        if settings.publisher is PublisherKind.CVMFS_SERVER:
            return self.server(fqrn)
        store, gateway = self.repository_store(fqrn), self.gateway(fqrn)
        return native_publisher(settings, store, gateway, lambda: self.head(fqrn).manifest)

    def server(self, fqrn: str) -> ServerPublisher:
        """The publisher on a node, with what only such a one can do. Raises NotSupported for other repositories."""
        settings = self.settings.repository(fqrn)
        if settings.server is None:
            raise NotSupported(
                fqrn, "has no publisher node; set `publisher: cvmfs-server` and `server:` in the settings"
            )
        from include.publishers.server.publisher import open_server

        return open_server(settings, settings.server, self.secrets, self.settings.paths.var, lambda: self.head(fqrn))

    def packing(self, fqrn: str, repository: Repository) -> Packing | None:
        """Return what prepares trees for a repository with a node; None where they are prepared into the store."""
        settings = self.settings.repository(fqrn)
        if settings.server is None:
            return None
        from include.publishers.server.publisher import packing_for

        return packing_for(settings, repository, self.settings.paths.var)

    @cached_property
    def ledger(self) -> Engine:
        """Nightshift's own database, its tables up to date."""
        return open_site_ledger(self.settings, self.secrets)

    def _opened(self, name: str, role: Role, *, single_writer: bool = False, quick: bool = False) -> Store:
        """``single_writer``: no other process writes mutable objects there, so replacing needs no help of the store."""
        key = (name, role, single_writer, quick)
        if key not in self._stores:
            settings = self.settings.store(name)
            traits = recorded_traits(self.ledger, settings)
            if traits is not None and role is Role.COLLECTOR and settings.collector_connection is not None:
                traits = replace(traits, bulk_delete=True)  # it was tried by a key that may not delete objects
            options = options_of(settings, traits=traits, single_writer=single_writer)
            if quick:
                options = replace(options, timeout_s=min(options.timeout_s, QUICK_S), retries=0)
            credentials = credentials_of(settings, self.secrets, role)
            self._stores[key] = open_store(settings.url, credentials=credentials, options=options)
        return self._stores[key]
