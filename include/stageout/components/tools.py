"""What the components of stage-out work with: the ledger, the settings, and clients of FTS, sites and the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import Engine

from include.fts.client.client import FtsClient
from include.settings.transfers.sites import RemoteSite
from include.settings.transfers.stageout import StageoutSettings
from include.stageout.claims import StageoutWorker
from include.stageout.errors import NO_SITE_URL
from include.stageout.places.facts import SitePlace
from include.stageout.registration.catalogue import Catalogue
from include.stageout.retry import RetryAlgorithm, exponential


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
