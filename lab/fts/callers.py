"""Who calls: by bearer token, by certificate, or, where neither is configured, the lab's own user."""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lab.fts.config import FtsServiceConfig
from lab.fts.errors import FtsRequestRefused, FtsServiceError

BASE_ID = uuid.UUID("01874efb-4735-4595-bc9c-591aef8240c9")
"""FTS's own; ids of VOs are made from it."""
LAB = "lab"
ANONYMOUS = "anon"
_SHORT_NAMES = {
    "domainComponent": "DC", "countryName": "C", "stateOrProvinceName": "ST", "localityName": "L",
    "organizationName": "O", "organizationalUnitName": "OU", "commonName": "CN", "emailAddress": "emailAddress",
}  # fmt: skip
_PROXY = re.compile(r"(/CN=(\d+|proxy|limited proxy))+$")


@dataclass(frozen=True)
class Caller:
    """Who a request comes from. ``method``: certificate, oauth2, unauthenticated, or lab."""

    user: str
    method: str
    admin: bool = False

    @cached_property
    def delegation_id(self) -> str:
        return hashlib.sha1(self.user.encode(), usedforsecurity=False).hexdigest()[:16]

    @cached_property
    def vo_id(self) -> uuid.UUID:
        return uuid.uuid5(BASE_ID, self.delegation_id)

    @property
    def delegates(self) -> bool:
        """Tell whether a proxy must be delegated before jobs are submitted."""
        return self.method == "certificate"

    def document(self) -> dict[str, Any]:
        """The reply to `GET /whoami`."""
        known = self.method != "unauthenticated"
        level = {"transfer": "vo", "datamanagement": "all"} | ({"config": "all"} if self.admin else {})
        return {
            "user_dn": self.user, "dn": [self.user], "base_id": str(BASE_ID), "voms_cred": [], "is_root": False,
            "vos": [self.delegation_id] if known else [], "vos_id": [str(self.vo_id)] if known else [],
            "roles": [], "level": level if known else [], "delegation_id": self.delegation_id if known else None,
            "method": self.method,
        }  # fmt: skip


class UnknownToken(FtsRequestRefused):
    """FTS replies with a page in place of JSON."""

    code = "fts-service-token-unknown"


@dataclass(slots=True)
class Callers:
    """Those that a configuration knows. ``tokens``: by SHA-256, their users and whether these may ban."""

    open_to_all: bool
    admins: frozenset[str]
    tokens: Mapping[bytes, tuple[str, bool]] = field(repr=False)

    @classmethod
    def of(cls, config: FtsServiceConfig) -> Callers:
        """Raises FtsServiceError for a token file that cannot be read."""
        return cls(config.open_to_all, config.admins, _tokens(config))

    def caller(self, authorization: str | None, subject: str | None) -> Caller:
        """Return who sent a request with this header and certificate. Raises UnknownToken."""
        if self.open_to_all:
            return Caller(LAB, "lab", admin=True)
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            digest = _digest(token)
            found = None
            # every one is compared, so that the time reveals nothing
            for known, user in self.tokens.items():
                if hmac.compare_digest(known, digest):
                    found = user
            if scheme.lower() != "bearer" or found is None:
                raise UnknownToken(400, "Unsupported authentication method: method=OAuth2")
            return Caller(found[0], "oauth2", found[1] or found[0] in self.admins)
        if subject is not None:
            return Caller(subject, "certificate", subject in self.admins)
        return Caller(ANONYMOUS, "unauthenticated")


def subject_of(certificate: Mapping[str, Any]) -> str:
    """The subject of `SSLSocket.getpeercert()` as `/DC=ch/CN=user`; a proxy acts as the one who made it."""
    parts: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
    subject = "".join(f"/{_SHORT_NAMES.get(name, name)}={value}" for part in parts for name, value in part)
    return _PROXY.sub("", subject) or subject


def _tokens(config: FtsServiceConfig) -> dict[bytes, tuple[str, bool]]:
    if config.tokens is None:
        return {}
    try:
        lines = config.tokens.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise FtsServiceError(f"token file {config.tokens} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        token, *rest = line.split() or [""]
        if not token or token.startswith("#"):
            continue
        admin = rest[1:] == ["admin"]
        if not rest or (len(rest) > 1 and not admin):
            raise FtsServiceError(f"token file {config.tokens}, line {number}: expected `<token> <user> [admin]`")
        found[_digest(token)] = (rest[0], admin)
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
