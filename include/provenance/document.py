"""The provenance record: one change of a path, by whom, of what and how (docs/formats.md).

Its document is signed twice (docs/decisions, "Who published what"). The gateway key's signature shows that a publisher
wrote it: every holder of that key can check it, and could have written it. The signature by the repository's own key
can be checked by all who have the certificate; it exists only where the publisher's machine has that key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC
from enum import StrEnum
from typing import Annotated, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from pydantic import Field, TypeAdapter

from include.cvmfs.coordination.freeze import Instant, WholeNumber, read_document

FOLDER = ".nightshift/provenance"
FORMAT = 1
BY_GATEWAY_KEY, BY_REPOSITORY_KEY = "hmac-sha256", "rsa-pkcs1v15-sha256"
_WHAT = "provenance"


class ChangeKind(StrEnum):
    """Change of the path."""

    TREE = "tree"
    LINK = "link"
    MOVED = "moved"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ProvenanceRecord:
    """Change of a path and its maker. `holder`: who held the lease; `publisher`: the way; `key_id`: of its key.

    `came_from`: where a tree was that was inherited, moved, or put in the place of another one, `from_build` the
    build that was named for it. `leads_to`: where a link leads, or where what was taken away is now. `before`: the
    nested hash, or of a link the path it led to, until then. `reason`: why, where a person or a program gave one.
    """

    repository: str
    path: str
    revision: WholeNumber
    run_id: str
    holder: str
    publisher: str
    key_id: str
    published_at: Instant
    root_hash: str | None = None
    nested_hash: str | None = None
    changeset: str | None = None
    source: str | None = None
    artifact_sha256: str | None = None
    slot: str | None = None
    build_id: str | None = None
    project: str | None = None
    platform: str | None = None
    kind: ChangeKind = ChangeKind.TREE
    came_from: str | None = None
    from_build: str | None = None
    leads_to: str | None = None
    before: str | None = None
    reason: str | None = None

    @property
    def key(self) -> str:
        """Return where its document is in the repository's store: one that no other record has."""
        run = hashlib.sha256(self.run_id.encode()).hexdigest()[:16]
        return f"{folder_of(self.path)}/{self.revision}-{run}.json"

    def to_json(self) -> dict[str, Any]:
        at = self.published_at.astimezone(UTC).isoformat(timespec="microseconds")
        return {"format": FORMAT, **asdict(self), "published_at": at}


@dataclass(frozen=True, slots=True)
class Sealed:
    """A record's document, exactly as it was signed, with its signatures by kind."""

    document: bytes
    signatures: Mapping[str, Annotated[str, Field(pattern="^[!-~]*$")]]
    key_id: str

    @property
    def record(self) -> ProvenanceRecord:
        """Raises FormatError."""
        return read_document(_RECORD, self.document, what=_WHAT, version=FORMAT, key="the document")

    def format(self) -> bytes:
        """The object of the store: the document as text within, since its very bytes are signed."""
        outer = {
            "format": FORMAT,
            "document": self.document.decode(),
            "key_id": self.key_id,
            "signatures": dict(self.signatures),
        }
        return json.dumps(outer, sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Sealed:
        """Read :meth:`format`; nothing is believed yet. Raises FormatError."""
        return read_document(_SEALED, data, what=_WHAT, version=FORMAT)

    def is_by_gateway_key(self, secret: str) -> bool:
        """Tell whether a holder of that gateway key wrote it."""
        given = self.signatures.get(BY_GATEWAY_KEY, "")
        # an empty key belongs to no publisher
        return bool(secret) and hmac.compare_digest(given.encode(), _mac(secret, self.document).encode())

    def is_by_repository_key(self, public_key: rsa.RSAPublicKey) -> bool | None:
        """Tell whether the repository's own key signed it; None if it carries no such signature."""
        given = self.signatures.get(BY_REPOSITORY_KEY)
        if given is None:
            return None
        try:
            public_key.verify(base64.b64decode(given, validate=True), self.document, padding.PKCS1v15(), SHA256())
        except (InvalidSignature, ValueError):
            return False
        return True


_RECORD, _SEALED = TypeAdapter(ProvenanceRecord), TypeAdapter(Sealed)


def folder_of(path: str) -> str:
    """Return where the documents of a path are in the repository's store."""
    place = hashlib.sha256(path.encode()).hexdigest()
    return f"{FOLDER}/{place[:2]}/{place}"


def seal(record: ProvenanceRecord, *, secret: str, private_key: rsa.RSAPrivateKey | None = None) -> Sealed:
    """Sign a record with the gateway's key, and with the repository's own one where it is at hand."""
    document = json.dumps(record.to_json(), sort_keys=True, separators=(",", ":")).encode()
    signatures = {BY_GATEWAY_KEY: _mac(secret, document)} if secret else {}
    if private_key is not None:
        signed = private_key.sign(document, padding.PKCS1v15(), SHA256())
        signatures[BY_REPOSITORY_KEY] = base64.b64encode(signed).decode()
    return Sealed(document, signatures, record.key_id)


def _mac(secret: str, document: bytes) -> str:
    # apart from what the same key signs at the gateway
    return hmac.new(secret.encode(), b"nightshift provenance\n" + document, hashlib.sha256).hexdigest()
