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
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from include.cvmfs.errors import FormatError

FOLDER = ".nightshift/provenance"
FORMAT = 1
BY_GATEWAY_KEY, BY_REPOSITORY_KEY = "hmac-sha256", "rsa-pkcs1v15-sha256"
_WHAT = "provenance"


class ChangeKind(StrEnum):
    """What was done to the path."""

    TREE = "tree"
    LINK = "link"
    MOVED = "moved"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ProvenanceRecord:
    """Who published what, or took it away. `holder`: who held the lease; `publisher`: the way; `key_id`: of the
    gateway's key.

    `came_from`: where a tree was that was inherited, moved, or put in the place of another one, `from_build` the
    build that was named for it. `leads_to`: where a link leads, or where what was taken away is now. `before`: the
    nested hash, or of a link the path it led to, until then. `reason`: why, where a person or a program gave one.
    """

    repository: str
    path: str
    revision: int
    run_id: str
    holder: str
    publisher: str
    key_id: str
    published_at: datetime
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
        """Where its document is in the repository's store: one that no other record has."""
        run = hashlib.sha256(self.run_id.encode()).hexdigest()[:16]
        return f"{folder_of(self.path)}/{self.revision}-{run}.json"

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "repository": self.repository,
            "path": self.path,
            "revision": self.revision,
            "run_id": self.run_id,
            "holder": self.holder,
            "publisher": self.publisher,
            "key_id": self.key_id,
            "published_at": self.published_at.astimezone(UTC).isoformat(timespec="microseconds"),
            "root_hash": self.root_hash,
            "nested_hash": self.nested_hash,
            "changeset": self.changeset,
            "source": self.source,
            "artifact_sha256": self.artifact_sha256,
            "slot": self.slot,
            "build_id": self.build_id,
            "project": self.project,
            "platform": self.platform,
            "kind": self.kind,
            "came_from": self.came_from,
            "from_build": self.from_build,
            "leads_to": self.leads_to,
            "before": self.before,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProvenanceRecord:
        """Raises ValueError, KeyError or TypeError for another shape."""
        if value.get("format") != FORMAT:
            raise ValueError(f"is not of format {FORMAT}")
        at = datetime.fromisoformat(value["published_at"])
        if at.tzinfo is None or not isinstance(value["revision"], int):
            raise ValueError("has no time with a zone, or no revision")
        return cls(
            repository=value["repository"],
            path=value["path"],
            revision=value["revision"],
            run_id=value["run_id"],
            holder=value["holder"],
            publisher=value["publisher"],
            key_id=value["key_id"],
            published_at=at,
            # what can be left out is in no document of before it was known
            root_hash=value.get("root_hash"),
            nested_hash=value.get("nested_hash"),
            changeset=value.get("changeset"),
            source=value.get("source"),
            artifact_sha256=value.get("artifact_sha256"),
            slot=value.get("slot"),
            build_id=value.get("build_id"),
            project=value.get("project"),
            platform=value.get("platform"),
            kind=ChangeKind(value.get("kind", ChangeKind.TREE)),
            came_from=value.get("came_from"),
            from_build=value.get("from_build"),
            leads_to=value.get("leads_to"),
            before=value.get("before"),
            reason=value.get("reason"),
        )


@dataclass(frozen=True, slots=True)
class Sealed:
    """A record's document, exactly as it was signed, with its signatures by kind."""

    document: bytes
    signatures: Mapping[str, str]
    key_id: str

    @property
    def record(self) -> ProvenanceRecord:
        """Raises FormatError."""
        try:
            return ProvenanceRecord.from_json(json.loads(self.document))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
            raise FormatError(_WHAT, f"the document cannot be read: {fault}") from None

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
        try:
            outer = json.loads(data)
            if outer["format"] != FORMAT:
                raise ValueError(f"is not of format {FORMAT}")
            signatures = {str(kind): str(value) for kind, value in dict(outer["signatures"]).items()}
            return cls(str(outer["document"]).encode(), signatures, str(outer["key_id"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
            raise FormatError(_WHAT, f"cannot be read: {fault}") from None

    def is_by_gateway_key(self, secret: str) -> bool:
        """Whether a holder of that gateway key wrote it."""
        given = self.signatures.get(BY_GATEWAY_KEY, "")
        # an empty key belongs to no publisher
        return bool(secret) and hmac.compare_digest(given.encode(), _mac(secret, self.document).encode())

    def is_by_repository_key(self, public_key: rsa.RSAPublicKey) -> bool | None:
        """Whether the repository's own key signed it; None if it carries no such signature."""
        given = self.signatures.get(BY_REPOSITORY_KEY)
        if given is None:
            return None
        try:
            public_key.verify(base64.b64decode(given, validate=True), self.document, padding.PKCS1v15(), SHA256())
        except (InvalidSignature, ValueError):
            return False
        return True


def folder_of(path: str) -> str:
    """Where the documents of a path are in the repository's store."""
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
