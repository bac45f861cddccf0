"""Users' own credentials: proxies in a folder, and tokens that the issuer gives in exchange for the user's (RFC 8693).

Which site asks for which is `credential` in `sites:`. What renews proxies and users' tokens is not ours.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests
from cryptography import x509
from urllib3.exceptions import HTTPError

from include.fts.client.transport import BearerToken, Credential, X509Files
from include.fts.errors import PROXY_EXPIRED, TOKEN_UNPROTECTED, FtsError
from include.http_calls import failure_of, may_carry_token, pooled_session
from include.settings.names import name_fault
from include.settings.secrets import ConnectionSecrets
from include.settings.transfers.sites import CredentialSource, RemoteSite
from include.settings.transfers.stageout import StageoutSettings
from include.settings.urls import base_url
from include.stageout.errors import CREDENTIAL_MISSING

MOST_BYTES = 1 << 17
"""Of a file with a credential, and of the issuer's reply."""
TIMEOUT_S = 20.0
SHORTEST_TOKEN_LIFE = timedelta(minutes=5)
REFUSAL_KEPT = timedelta(seconds=30)
"""For how long an issuer that gave no token is not asked again: components ask for each file."""
_PROXY_EXTENSION = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14")


def credential_source(sites: Iterable[RemoteSite]) -> CredentialSource:
    """Whose credential a job between these sites has: the user's own if one of them asks for it.

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

        Raises:
            CredentialNeeded: CREDENTIAL_MISSING, PROXY_EXPIRED or CREDENTIAL_UNREADABLE. The message has no secret.
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
    """Why there is no token. `down`: it is the issuer, not the user."""

    why: str
    down: bool = False


@dataclass
class TokenIssuer:
    """Exchanges the token of a user for one that FTS and the sites take.

    Args:
        connection: Where the token endpoint is (host), our client id and secret (login, password), and in the extra:
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
        """What the issuer said a moment ago."""
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
                timeout=TIMEOUT_S, allow_redirects=False, stream=True,
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
