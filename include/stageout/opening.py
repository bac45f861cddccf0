"""Opens what the components of stage-out work with, from the settings and a source of secrets."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Engine

from include.fts.client.client import FtsClient
from include.fts.client.open import connected_credential, open_client, server_url
from include.fts.client.transport import BearerToken, Credential
from include.settings.secrets import ConnectionSecrets
from include.settings.transfers.sites import CredentialSource, RemoteSite
from include.settings.transfers.stageout import StageoutSettings
from include.site.site import Site
from include.stageout.claims import StageoutWorker
from include.stageout.credentials import OpenedCredential, TokenIssuer, UserCredentials, credential_source
from include.stageout.errors import NO_SITE_URL
from include.stageout.places.facts import PlaceOptions, SitePlace
from include.stageout.places.open import open_place
from include.stageout.registration.catalogue import Catalogue
from include.stageout.retry import RETRY_ALGORITHMS, RetryAlgorithm, exponential
from include.storage.roles import Role


class FtsClients(Protocol):
    """Opens clients of FTS servers; those of one identity are the same object."""

    def __call__(self, server: str, owner: str, *sites: str) -> FtsClient:
        """The client of a server.

        Args:
            server: The id of its connection.
            owner: The user whom the jobs belong to.
            sites: Source and destination: they say whose credential is used. None: that of the connection.

        Raises:
            CredentialNeeded: CREDENTIAL_MISSING where the user has no credential that can be used.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Stageout:
    """What a component is given. A process builds it once; its clients keep their connections.

    Attributes:
        ledger: Nightshift's database.
        settings: The block `stageout:` of the configuration.
        sites: The block `sites:`.
        worker: Who claims.
        fts: The client of an FTS server, by the id of its connection, for a user and the sites of a link.
        place: Opens the storage of a site for a user; each is opened once.
        retry: Whether and when a failed transfer is tried again.
        catalogue: Where files of data sets are registered; None: in the ledger's own tables.
    """

    ledger: Engine
    settings: StageoutSettings
    sites: Mapping[str, RemoteSite]
    worker: StageoutWorker
    fts: FtsClients
    place: Callable[[str, str], SitePlace]
    retry: RetryAlgorithm = field(default=exponential)
    catalogue: Catalogue | None = None

    def site(self, name: str) -> RemoteSite:
        """A site by name. Raises NO_SITE_URL for one that is not configured any more."""
        if name not in self.sites:
            raise NO_SITE_URL(f"site {name}", "it is not configured")
        return self.sites[name]


MOST_OPEN = 128
"""Clients that keep their connections; the one that was not used for the longest time is closed."""
TIMEOUT_S = 30.0
"""A component's pass is short; what a slow server did is found out by the next one."""


def open_stageout(site: Site, worker: str) -> Stageout:
    """Ledger, settings and clients of a deployment; nothing is sent yet.

    Args:
        site: The settings, and where secrets come from.
        worker: The name of the process in claims, for people.
    """
    clients = _Clients(site)
    return Stageout(
        ledger=site.ledger,
        settings=site.settings.stageout,
        sites=site.settings.sites,
        worker=StageoutWorker(worker),
        fts=clients.fts,
        place=clients.place,
        retry=RETRY_ALGORITHMS[site.settings.stageout.retry],
    )


class _Closed(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closed)


def _service_credential(site: RemoteSite, connection: ConnectionSecrets) -> Credential | None:
    """That of the FTS server's connection, but for its token: that one is for FTS, which answers for `mock:` sites."""
    credential = connected_credential(connection)
    simulated = all(rule.protocol == "mock" for rule in (*site.read, *site.write))
    return credential if simulated or not isinstance(credential, BearerToken) else None


@dataclass
class _Kept(Generic[C]):
    """Clients by what they were opened with."""

    clients: OrderedDict[Hashable, C] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, opened: Callable[[], C]) -> C:
        with self.lock:
            client = self.clients.pop(key, None)
            if client is None:
                client = opened()
            self.clients[key] = client
            if len(self.clients) > MOST_OPEN:
                self.clients.popitem(last=False)[1].close()
            return client


class _Clients:
    """Clients of FTS servers and storages, each opened once for each identity."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._fts: _Kept[FtsClient] = _Kept()
        self._places: _Kept[SitePlace] = _Kept()
        self._credentials = UserCredentials(site.settings.stageout, lambda: self._issuer)

    @cached_property
    def _issuer(self) -> TokenIssuer:
        return TokenIssuer(self._site.secrets.get(self._site.settings.stageout.tokens or ""))

    def fts(self, server: str, owner: str, *sites: str) -> FtsClient:
        """See `FtsClients`."""
        configured = [self._site.settings.sites[name] for name in sites if name in self._site.settings.sites]
        own = self._own(owner, credential_source(configured))

        def opened() -> FtsClient:
            connection = self._site.secrets.get(server)
            credential = own.credential or connected_credential(connection)
            return open_client(connection, credential, timeout_s=TIMEOUT_S, retries=1)

        return self._fts.get((server, own), opened)

    def place(self, name: str, owner: str) -> SitePlace:
        """The storage of a site with the credential that it asks for. Raises as `fts`, and PLACE_UNSUPPORTED."""
        site = self._site.settings.remote_site(name)
        own = self._own(owner, site.credential)

        def opened() -> SitePlace:
            connection = self._site.secrets.get(self._site.settings.stageout.fts[0])
            authorities = connection.extra.get("authorities")
            options = PlaceOptions(
                store=self._site.store(site.store, Role.COLLECTOR) if site.store else None,
                fts_url=server_url(connection),
                authorities=str(authorities) if authorities else None,
            )
            return open_place(site, own.credential or _service_credential(site, connection), options)

        return self._places.get((name, own), opened)

    def _own(self, owner: str, source: CredentialSource) -> OpenedCredential:
        return self._credentials.of(owner, source)
