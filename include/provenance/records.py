"""The provenance record: one change of a path, by whom, of what and how (docs/formats.md); kept in ledger and store.

Its document is signed twice (docs/decisions, "Who published what"). The gateway key's signature shows that a publisher
wrote it: every holder of that key can check it, and could have written it. The signature by the repository's own key
can be checked by all who have the certificate; it exists only where the publisher's machine has that key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from pydantic import Field, TypeAdapter
from sqlalchemy import BigInteger, Column, Connection, Index, RowMapping, Table, insert, select, update

from include.cvmfs.coordination.freeze import Instant, WholeNumber, read_document
from include.cvmfs.errors import CvmfsError, FormatError
from include.cvmfs.format.keys import KeyFile, load_signer, public_key_of
from include.cvmfs.format.paths import path_and_above
from include.ledger.engine import Bind, reading, writing
from include.ledger.errors import LedgerError
from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text, metadata
from include.settings.errors import SettingsError
from include.site.site import Site
from include.storage.errors import NotFound, StoreError

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


NAME = exact(128)

provenance = Table(
    "provenance",
    metadata,
    # one row a change of a path; never changed afterwards but for `document`
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("place", hexadecimal(64), nullable=False),
    Column("repository", NAME, nullable=False),
    Column("path", exact(1024), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("root_hash", hexadecimal(64)),
    Column("nested_hash", hexadecimal(64)),
    Column("changeset", hexadecimal(64)),
    Column("source", exact(2048)),
    Column("artifact_sha256", hexadecimal(64)),
    Column("slot", NAME),
    Column("build_id", NAME),
    Column("project", NAME),
    Column("platform", NAME),
    Column("run_id", exact(512), nullable=False),
    Column("holder", exact(512), nullable=False),
    Column("publisher", exact(32), nullable=False),
    Column("key_id", NAME, nullable=False),
    Column("published_at", UtcTime, nullable=False),
    # the key of the signed document in the repository's store, once it is there
    Column("document", exact(512)),
    # None: a tree
    Column("kind", exact(16)),
    Column("came_from", exact(1024)),
    Column("from_build", NAME),
    Column("leads_to", long_text()),
    Column("before", long_text()),
    Column("reason", long_text()),
    Index(None, "place"),
    Index(None, "repository", "revision"),
    **TABLE_OPTIONS,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckedRecord:
    """Worth of a record's document in the store: `verdict` in words, `good` None where it could not be checked."""

    good: bool | None
    verdict: str


def note(site: Site, record: ProvenanceRecord) -> bool:
    """Keep a record in the ledger, and its signed document in the store; the same record twice is one. Raises nothing.

    The publication stays, whatever becomes of this: what could not be written is logged, and the ledger's row has no
    document then. Returns whether both were written, or there before.
    """
    try:
        row = _row_of(site.ledger, record)
        if row["document"] is not None:
            return True
        record = _from_row(row)
        sealed = _sealed(site, record)
        site.repository_store(record.repository).put_if_absent(record.key, sealed.format())
        _set_document(site.ledger, int(row["id"]), record.key)
    except (LedgerError, StoreError, SettingsError, CvmfsError) as error:
        log.warning("who published %s%s is not recorded in full: %s", record.repository, record.path, error)
        return False
    return True


def key_of(site: Site, fqrn: str) -> str:
    """The id of the gateway's key with which a repository is published to; "" where its connection is not known."""
    try:
        return site.secrets.get(site.settings.repository(fqrn).gateway).login or ""
    except SettingsError:
        return ""


def begun(site: Site, fqrn: str, *, revision: int, run_id: str, holder: str, at: datetime) -> ProvenanceRecord:
    """Return what all records of one change have in common; each needs its path yet."""
    return ProvenanceRecord(
        repository=fqrn,
        path="",
        revision=revision,
        run_id=run_id,
        holder=holder,
        publisher=site.settings.repository(fqrn).publisher.value,
        key_id=key_of(site, fqrn),
        published_at=at,
    )


def nearest(
    bind: Bind, fqrn: str, path: str, *, limit: int = 1, until: int | None = None
) -> Sequence[tuple[ProvenanceRecord, str | None]]:
    """The newest records at the path and at those above it, each with its document's key; none is ().

    What is done above concerns all below: a tree replaces what was there, and what is taken away goes with all that
    it holds. `until`: none of a later revision.
    """
    query = (
        select(provenance)
        .where(provenance.c.place.in_([_place(fqrn, above) for above in path_and_above(path.rstrip("/"))]))
        .order_by(provenance.c.revision.desc(), provenance.c.id.desc())
        .limit(limit)
    )
    if until is not None:
        query = query.where(provenance.c.revision <= until)
    with reading(bind) as connection:
        return [(_from_row(row), row["document"]) for row in connection.execute(query).mappings()]


def newest(bind: Bind, fqrn: str, path: str) -> ProvenanceRecord | None:
    """The newest record at that very path."""
    query = select(provenance).where(provenance.c.place == _place(fqrn, path)).order_by(
        provenance.c.revision.desc(), provenance.c.id.desc()
    )  # fmt: skip
    with reading(bind) as connection:
        row = connection.execute(query.limit(1)).mappings().first()
    return None if row is None else _from_row(row)


def links_by_path(bind: Bind, fqrn: str) -> dict[str, str]:
    """Every link of a repository that we know to have been set, and where it led last; it may be gone since."""
    query = select(provenance.c.path, provenance.c.leads_to).where(
        provenance.c.repository == fqrn, provenance.c.kind == ChangeKind.LINK.value
    )
    with reading(bind) as connection:
        rows = connection.execute(query.order_by(provenance.c.revision, provenance.c.id)).all()
    return {path: leads_to or "" for path, leads_to in rows}


def unknown_documents(site: Site, fqrn: str, path: str) -> Sequence[tuple[ProvenanceRecord, str, CheckedRecord]]:
    """Documents in the store of the path and those above it that the ledger does not have, the newest first."""
    found: list[tuple[ProvenanceRecord, str, CheckedRecord]] = []
    for above in path_and_above(path.rstrip("/")):
        with reading(site.ledger) as connection:
            known = connection.scalars(
                select(provenance.c.document).where(provenance.c.place == _place(fqrn, above))
            ).all()
        found += documents(site, fqrn, above, known=known)
    return sorted(found, key=_newest_first, reverse=True)


def documents(
    site: Site, fqrn: str, path: str, *, known: Collection[str | None] = ()
) -> Sequence[tuple[ProvenanceRecord, str, CheckedRecord]]:
    """Documents in the store of that very path, the newest first; those of a key in `known` are left out.

    A folder that cannot be listed counts as empty. A document that is no record of its own path, or cannot be read, is
    left out; what its signature is worth is in the `CheckedRecord`.
    """
    store, found = site.repository_store(fqrn), []
    try:
        keys = {meta.key for meta in store.list(folder_of(path))}
    except StoreError as error:
        log.info("documents of %s%s cannot be listed: %s", fqrn, path, error)
        return ()
    for key in sorted(keys - set(known)):
        try:
            sealed = Sealed.parse(store.get(key))
            record = sealed.record
        except (StoreError, CvmfsError) as error:
            log.warning("%s of %s: %s", key, fqrn, error)
            continue
        if (record.repository, record.path, record.key) == (fqrn, path, key):
            found.append((record, key, _worth(site, fqrn, sealed)))
    return sorted(found, key=_newest_first, reverse=True)


def _newest_first(found: tuple[ProvenanceRecord, str, CheckedRecord]) -> tuple[int, str]:
    return found[0].revision, found[1]


def check(site: Site, record: ProvenanceRecord, key: str | None) -> CheckedRecord:
    """Read a record's document from the store and check its signatures with the keys that are at hand."""
    if key is None:
        return CheckedRecord(False, "no document in the store")
    try:
        sealed = Sealed.parse(site.repository_store(record.repository).get(key))
        if sealed.record != record:
            return CheckedRecord(False, "the document in the store differs from the ledger")
    except NotFound:
        return CheckedRecord(False, "the document is gone from the store")
    except FormatError as error:
        return CheckedRecord(False, f"the document in the store cannot be read: {error}")
    except (StoreError, SettingsError) as error:
        return CheckedRecord(None, f"the document cannot be checked: {error}")
    return _worth(site, record.repository, sealed)


def _worth(site: Site, fqrn: str, sealed: Sealed) -> CheckedRecord:
    """Return what its signatures are worth. That of the repository's own key anybody can check; else the gateway's
    decides."""
    if not sealed.signatures:
        return CheckedRecord(False, "NOT signed at all")
    try:
        trusted = site.head(fqrn).trusted.certificate
        by_own = sealed.is_by_repository_key(public_key_of(trusted)) if trusted is not None else None
        if by_own is not None:
            return CheckedRecord(by_own, f"{'signed' if by_own else 'NOT signed'} by the repository's own key")
        found = site.secrets.get(site.settings.repository(fqrn).gateway)
    except (StoreError, CvmfsError, SettingsError, OSError) as error:
        return CheckedRecord(None, f"the document cannot be checked: {error}")
    if found.login != sealed.key_id:
        return CheckedRecord(None, f"signed by gateway key {sealed.key_id}, which is not at hand")
    good = sealed.is_by_gateway_key(found.password or "")
    return CheckedRecord(good, f"{'signed' if good else 'NOT signed'} by gateway key {sealed.key_id}")


def _sealed(site: Site, record: ProvenanceRecord) -> Sealed:
    found = site.secrets.get(site.settings.repository(record.repository).gateway)
    folder = site.settings.gateway.keys
    own = KeyFile.REPOSITORY.path(folder, record.repository).exists()
    private = load_signer(folder, record.repository).private_key if own else None
    return seal(record, secret=found.password or "", private_key=private)


def _row_of(bind: Bind, record: ProvenanceRecord) -> RowMapping:
    place = _place(record.repository, record.path)
    where = (
        provenance.c.place == place,
        provenance.c.revision == record.revision,
        provenance.c.run_id == record.run_id,
    )

    def work(connection: Connection) -> RowMapping:
        found = connection.execute(select(provenance).where(*where)).mappings().first()
        if found is None:
            connection.execute(insert(provenance).values(place=place, **asdict(record)))
            found = connection.execute(select(provenance).where(*where)).mappings().one()
        return found

    return writing(bind, work)


def _set_document(bind: Bind, row: int, key: str) -> None:
    def work(connection: Connection) -> None:
        connection.execute(update(provenance).where(provenance.c.id == row).values(document=key))

    writing(bind, work)


def _from_row(row: RowMapping) -> ProvenanceRecord:
    values = {field.name: row[field.name] for field in fields(ProvenanceRecord)}
    return ProvenanceRecord(**{**values, "kind": ChangeKind(row["kind"] or ChangeKind.TREE)})


def _place(fqrn: str, path: str) -> str:
    return hashlib.sha256(f"{fqrn}\0{path}".encode()).hexdigest()
