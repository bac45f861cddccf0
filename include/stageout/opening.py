"""The tools of the components of stage-out: ledger, clients of FTS and storages, credentials of users."""

from __future__ import annotations

import base64
import json
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import requests
from cryptography import x509
from sqlalchemy import Engine
from urllib3.exceptions import HTTPError

from include.federation.records import SITE_FAILED, obstacles
from include.fts.client import FtsClient
from include.fts.errors import PROXY_EXPIRED, TOKEN_UNPROTECTED, FtsError
from include.fts.open import connected_credential, open_client, server_url
from include.fts.transport import BearerToken, Credential, X509Files
from include.http_calls import failure_of, may_carry_token, pooled_session
from include.settings.secrets import ConnectionSecrets, base_url
from include.settings.sites import CredentialSource, RemoteSite
from include.settings.stageout import CatalogueKind, StageoutSettings
from include.settings.text_types import name_fault
from include.site.site import Site
from include.stageout.claims import StageoutWorker
from include.stageout.errors import CREDENTIAL_MISSING, NO_SITE_URL
from include.stageout.places.facts import PlaceOptions, SitePlace
from include.stageout.places.open import open_place
from include.stageout.registration.catalogue import Catalogue, LedgerCatalogue
from include.stageout.registration.rucio import RucioCatalogue
from include.stageout.retry import RetryAlgorithm, exponential, retry_algorithm
from include.storage.buckets import Role

MOST_BYTES = 1 << 17
"""Of a file with a credential, and of the issuer's reply."""
ISSUER_TIMEOUT_S = 20.0
SHORTEST_TOKEN_LIFE = timedelta(minutes=5)
REFUSAL_KEPT = timedelta(seconds=30)
"""For how long an issuer that gave no token is not asked again: components ask for each file."""
_PROXY_EXTENSION = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14")


def credential_source(sites: Iterable[RemoteSite]) -> CredentialSource:
    """Return whose credential a job between these sites has: the user's own if one of them asks for it.

    Raises:
        CredentialNeeded: CREDENTIAL_MISSING where one asks for a proxy and the other for a token: a job has only one.
    """
    asked = {site.credential: site.name for site in sites}
    own = [source for source in asked if source is not CredentialSource.SERVICE]
    if len(own) > 1:
        names = " and ".join(asked[source] for source in own)
        raise _missing(f"sites {names}", "one asks for a proxy, the other for a token, and an FTS job has only one")
    return own[0] if own else CredentialSource.SERVICE


@dataclass(frozen=True, slots=True)
class OpenedCredential:
    """A credential; `version` differs when its file was renewed."""

    credential: Credential | None
    version: tuple[int, int] = (0, 0)


@dataclass
class UserCredentials:
    """Finds and checks the credentials of users. It may be used by several threads."""

    settings: StageoutSettings
    issuer: Callable[[], TokenIssuer]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _proxies: dict[str, tuple[tuple[int, int], datetime]] = field(default_factory=dict)
    """Version and end of those that were checked."""

    def of(self, owner: str, source: CredentialSource) -> OpenedCredential:
        """The credential of an Airflow user.

        Raises CredentialNeeded: CREDENTIAL_MISSING, PROXY_EXPIRED or CREDENTIAL_UNREADABLE. The message has no secret.
        """
        if source is CredentialSource.PROXY:
            return self._proxy(owner)
        if source is CredentialSource.TOKEN:
            return OpenedCredential(BearerToken(self._token(owner)))
        return OpenedCredential(None)

    def _proxy(self, owner: str) -> OpenedCredential:
        if self.settings.proxies is None:
            raise _missing(f"proxy of {owner}", "`stageout.proxies` names no folder")
        path, version = _private_file(Path(self.settings.proxies), owner, self.settings.user_of(owner), ".pem")
        known = self._proxies.get(str(path))
        if known is None or known[0] != version:
            credential = X509Files(str(path)).read()
            self._require_subject(owner, _identity(credential.chain))
            known = self._proxies[str(path)] = (version, credential.expires)
        if known[1] <= self.now():
            raise PROXY_EXPIRED(f"proxy of {owner}: it ended at {known[1]:%Y-%m-%dT%H:%M:%SZ}; {PROXY_EXPIRED.hint}")
        return OpenedCredential(X509Files(str(path)), version)

    def _token(self, owner: str) -> str:
        if self.settings.tokens is None:
            raise _missing(f"token of {owner}", "`stageout.tokens` names no issuer")
        token = self.issuer().token(owner, self.settings.user_of(owner), self.now())
        self._require_subject(owner, _claimed_subject(token))
        return token

    def _require_subject(self, owner: str, found: str) -> None:
        identity = self.settings.identities.get(owner)
        if identity is not None and identity.subject is not None and identity.subject != found:
            raise _missing(f"credential of {owner}", f"its subject is {found!r}, not {identity.subject!r}")


@dataclass(frozen=True, slots=True)
class _NoToken:
    """The reason for a missing token. `down`: it is the issuer, not the user."""

    why: str
    down: bool = False


@dataclass
class TokenIssuer:
    """Exchanges the token of a user for one that FTS and the sites take.

    `connection`: where the token endpoint is (host), our client id and secret (login, password), and in the extra:
    `subjects`, a folder with one token a user, `<user>.token`; `audience` and `scope` of the tokens.
    """

    connection: ConnectionSecrets

    def __post_init__(self) -> None:
        self._url = base_url(self.connection, scheme="https")
        if not may_carry_token(self._url):
            raise TOKEN_UNPROTECTED(f"token issuer {self._url}: nothing sent; {TOKEN_UNPROTECTED.hint}")
        self._session = pooled_session(4)
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[str, datetime, tuple[int, int]]] = {}
        self._refusals: dict[str | None, tuple[str, datetime, tuple[int, int]]] = {}
        """By user; None: of the issuer, for every user."""

    def token(self, owner: str, user: str, now: datetime) -> str:
        """A token of the user that lasts for some minutes. Raises CREDENTIAL_MISSING."""
        folder = self.connection.extra.get("subjects")
        if not folder:
            raise _missing(f"token of {owner}", f"connection {self.connection.id} has no `subjects` in its extra")
        path, version = _private_file(Path(str(folder)), owner, user, ".token")
        with self._lock:
            known = self._tokens.get(user)
            if known is None or known[1] <= now or known[2] != version:
                exchanged = self._refused(user, version, now) or self._exchanged(path, now)
                if isinstance(exchanged, _NoToken):
                    refusal = (exchanged.why, now + REFUSAL_KEPT, version)
                    self._refusals.setdefault(None if exchanged.down else user, refusal)
                    raise _missing(f"token of {owner}", exchanged.why)
                known = self._tokens[user] = (*exchanged, version)
            return known[0]

    def _refused(self, user: str, version: tuple[int, int], now: datetime) -> _NoToken | None:
        """Return what the issuer said a moment ago."""
        for key in (None, user):
            why, until, of = self._refusals.get(key, ("", now, version))
            if now < until and (key is None or of == version):
                return _NoToken(why, down=key is None)
            self._refusals.pop(key, None)
        return None

    def _exchanged(self, path: Path, now: datetime) -> tuple[str, datetime] | _NoToken:
        """The token, and until when it is used."""
        try:
            subject = path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            return _NoToken(f"{path}: {error.strerror}")
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": subject,
            "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
        form |= {
            name: str(self.connection.extra[name]) for name in ("audience", "scope") if name in self.connection.extra
        }
        reply = self._post(form)
        if isinstance(reply, _NoToken):
            return reply
        token, life = reply.get("access_token"), reply.get("expires_in", 2 * SHORTEST_TOKEN_LIFE.total_seconds())
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
            return _NoToken(f"the reply of {self._url} has no token")
        if isinstance(life, bool) or not isinstance(life, int | float) or not 0 < life < 1e9:
            return _NoToken(f"the reply of {self._url} has no time for which its token lasts")
        lasts = timedelta(seconds=life)
        return token, now + lasts - min(SHORTEST_TOKEN_LIFE, lasts / 2)

    def _post(self, form: dict[str, str]) -> dict[str, Any] | _NoToken:
        fault, down = "", False
        try:
            with self._session.post(
                self._url, data=form, auth=(self.connection.login or "", self.connection.password or ""),
                timeout=ISSUER_TIMEOUT_S, allow_redirects=False, stream=True,
            ) as response:  # fmt: skip
                body = response.raw.read(MOST_BYTES, decode_content=True)
                if response.status_code == requests.codes.ok:
                    value = json.loads(body)
                    if isinstance(value, dict):
                        return value
                fault, down = f"HTTP {response.status_code}", response.status_code >= 500
        except (requests.RequestException, HTTPError) as error:
            fault, down = failure_of(error).why, True
        except (ValueError, RecursionError):
            fault = "the reply is not JSON"
        return _NoToken(f"{self._url} did not exchange it: {fault}", down=down)


def _private_file(folder: Path, owner: str, user: str, suffix: str) -> tuple[Path, tuple[int, int]]:
    """The file of a user, which no other account can read or replace, and its version."""
    wrong = name_fault(user)
    if wrong:
        raise _missing(f"credential of {owner}", f"the user's name {wrong}")
    path = folder / f"{user}{suffix}"
    try:
        found = path.lstat()
    except OSError as error:
        raise _missing(f"credential of {owner}", f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        raise _missing(f"credential of {owner}", f"{path} is not a plain file of a credential's size")
    if found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
        raise _missing(f"credential of {owner}", f"{path} can be read by others; set its owner and mode 0600")
    return path, (found.st_mtime_ns, found.st_ino)


def _identity(chain: tuple[x509.Certificate, ...]) -> str:
    """Whom a proxy acts for: the subject of the first certificate that is no proxy, `/DC=org/CN=ann`."""
    for certificate in chain:
        if not any(extension.oid == _PROXY_EXTENSION for extension in certificate.extensions):
            return _slashed(certificate.subject)
    return _slashed(chain[-1].issuer)


def _slashed(name: x509.Name) -> str:
    return "".join(f"/{part.rfc4514_attribute_name}={part.value!s}" for part in name)


def _claimed_subject(token: str) -> str:
    """The subject that a token names; who gets it checks its signature."""
    try:
        payload = token.split(".")[1]
        value = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return str(value["sub"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _missing(what: str, why: str) -> FtsError:
    return CREDENTIAL_MISSING(f"{what}: {why}; {CREDENTIAL_MISSING.hint}")


class FtsClients(Protocol):
    """Opens clients of FTS servers; those of one identity are the same object."""

    def __call__(self, server: str, owner: str, *sites: str) -> FtsClient:
        """The client of a server.

        `server`: the id of its connection. `owner`: the user whom the jobs belong to. `sites`: source and destination:
        they say whose credential is used. None: that of the connection. Raises CredentialNeeded: CREDENTIAL_MISSING
        where the user has no credential that can be used.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Stageout:
    """The tools of a component. A process builds it once; its clients keep their connections.

    Attributes:
        ledger: Nightshift's database.
        settings: The block `stageout:` of the configuration.
        sites: The block `sites:`.
        worker: Who claims.
        fts: The client of an FTS server, by the id of its connection, for a user and the sites of a link.
        place: Opens the storage of a site for a user; each is opened once.
        retry: Whether and when a failed transfer is tried again.
        catalogue: Where files of data sets are registered; None: in the ledger's own tables.
        obstacles: Gives the sites that have failed or are held, each with the reason; ``place`` refuses them, too.
    """

    ledger: Engine
    settings: StageoutSettings
    sites: Mapping[str, RemoteSite]
    worker: StageoutWorker
    fts: FtsClients
    place: Callable[[str, str], SitePlace]
    retry: RetryAlgorithm = field(default=exponential)
    catalogue: Catalogue | None = None
    obstacles: Callable[[], Mapping[str, str]] = dict

    def site(self, name: str) -> RemoteSite:
        """A site by name. Raises NO_SITE_URL for one that is not configured any more."""
        if name not in self.sites:
            raise NO_SITE_URL(f"site {name}", "it is not configured")
        return self.sites[name]


HEALTH_KEPT_S = 10.0
"""For how long the health of sites counts without a look into the ledger."""
MOST_OPEN = 128
"""Clients that keep their connections; the one that was not used for the longest time is closed."""
TIMEOUT_S = 30.0
"""A component's pass is short; what a slow server did is found out by the next one."""


def rucio_of(site: Site, timeout_s: float = TIMEOUT_S) -> RucioCatalogue:
    """The Rucio server of the configuration; nothing is sent yet. `timeout_s`: for each of its answers."""
    settings = site.settings.stageout
    return RucioCatalogue(
        settings,
        site.settings.sites,
        lambda: site.secrets.get(settings.catalogue.connection or ""),
        folder=site.settings.paths.var / "rucio",
        timeout_s=timeout_s,
    )


CATALOGUES: Mapping[CatalogueKind, Callable[[Site], Catalogue]] = {
    CatalogueKind.LEDGER: lambda site: LedgerCatalogue(site.ledger),
    CatalogueKind.RUCIO: rucio_of,
}
"""By the setting `stageout.catalogue.kind`."""


def open_stageout(site: Site, worker: str) -> Stageout:
    """Ledger, settings and clients of a deployment; nothing is sent yet.

    `site`: the settings, and where secrets come from. `worker`: the name of the process in claims, for people.
    """
    clients = SiteClients(site)
    return Stageout(
        ledger=site.ledger,
        settings=site.settings.stageout,
        sites=site.settings.sites,
        worker=StageoutWorker(worker),
        fts=clients.fts,
        place=clients.place,
        retry=retry_algorithm(site.settings.stageout.retry),
        catalogue=CATALOGUES[site.settings.stageout.catalogue.kind](site),
        obstacles=clients.obstacles,
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


class SiteClients:
    """Clients of FTS servers and storages, each opened once for each identity."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._fts: _Kept[FtsClient] = _Kept()
        self._places: _Kept[SitePlace] = _Kept()
        self._obstacles: tuple[float, Mapping[str, str]] | None = None
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

    def obstacles(self) -> Mapping[str, str]:
        """See `Stageout`; asked again after some seconds."""
        now = time.monotonic()
        if self._obstacles is None or now - self._obstacles[0] > HEALTH_KEPT_S:
            self._obstacles = now, obstacles(self._site.ledger)
        return self._obstacles[1]

    def place(self, name: str, owner: str) -> SitePlace:
        """The storage of a site with the credential that it asks for.

        Raises as `fts`; PLACE_UNSUPPORTED; SITE_FAILED where nothing is sent to the site.
        """
        why = self.obstacles().get(name)
        if why is not None:
            raise SITE_FAILED(name, why)
        return self.any_place(name, owner)

    def any_place(self, name: str, owner: str) -> SitePlace:
        """The same, whatever the health of the site: for its probes."""
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
