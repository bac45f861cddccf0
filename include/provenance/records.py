"""Deeds in the ledger, and their signed documents in the repositories' stores."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from sqlalchemy import Connection, RowMapping, insert, select, update

from include.cvmfs.errors import CvmfsError
from include.cvmfs.keys import KeyFile, load_signer, public_key_of
from include.ledger.engine import Bind, reading, writing
from include.ledger.errors import LedgerError
from include.provenance.deed import Deed, Sealed, seal
from include.provenance.tables import provenance
from include.publishers.connect import Connections
from include.settings.errors import SettingsError
from include.storage.errors import NotFound, StoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checked:
    """What a deed's document in the store is worth: `verdict` in words, `good` None where nothing could be checked."""

    good: bool | None
    verdict: str


def note(connections: Connections, deed: Deed) -> bool:
    """Have a deed in the ledger, and its signed document in the store; the same deed twice is one. Raises nothing.

    The publication stands whatever becomes of this: what could not be written is logged, and the ledger's row without
    a document says so. Returns whether both were written, or there before.
    """
    try:
        row = _record(connections.ledger, deed)
        if row["document"] is not None:
            return True
        deed = _deed(row)
        sealed = _sealed(connections, deed)
        connections.repository_store(deed.repository).put_if_absent(deed.key, sealed.format())
        _set_document(connections.ledger, int(row["id"]), deed.key)
    except (LedgerError, StoreError, SettingsError, CvmfsError) as error:
        log.warning("who published %s%s is not recorded in full: %s", deed.repository, deed.path, error)
        return False
    return True


def key_of(connections: Connections, fqrn: str) -> str:
    """The id of the gateway's key with which a repository is published to; "" where its connection is not known."""
    try:
        return connections.secrets.get(connections.site.repository(fqrn).gateway).login or ""
    except SettingsError:
        return ""


def nearest(bind: Bind, repository: str, path: str, *, limit: int = 1) -> Sequence[tuple[Deed, str | None]]:
    """The newest deeds at the path, or else at the nearest one above it, each with its document's key; none is ()."""
    here = path.rstrip("/")
    above = [here]
    while here:
        here = here.rpartition("/")[0]
        above.append(here)
    places = {_place(repository, one): one for one in above}
    query = select(provenance).where(provenance.c.place.in_(places)).order_by(
        provenance.c.revision.desc(), provenance.c.id.desc()
    )  # fmt: skip
    with reading(bind) as connection:
        rows = connection.execute(query).mappings().all()
    deepest = max((len(row["path"]) for row in rows), default=0)
    return [(_deed(row), row["document"]) for row in rows if len(row["path"]) == deepest][:limit]


def check(connections: Connections, deed: Deed, key: str | None) -> Checked:
    """Read a deed's document from the store and check its signatures with the keys that are at hand."""
    if key is None:
        return Checked(False, "no document in the store")
    try:
        sealed = Sealed.parse(connections.repository_store(deed.repository).get(key))
        if sealed.deed != deed:
            return Checked(False, "the document in the store says otherwise than the ledger")
        trusted = connections.head(deed.repository).trusted.certificate
        by_own = sealed.is_by_repository_key(public_key_of(trusted)) if trusted is not None else None
    except NotFound:
        return Checked(False, "the document is gone from the store")
    except (StoreError, CvmfsError, SettingsError) as error:
        return Checked(None, f"the document cannot be checked: {error}")
    if by_own is not None:
        return Checked(by_own, f"{'signed' if by_own else 'NOT signed'} by the repository's own key")
    try:
        found = connections.secrets.get(connections.site.repository(deed.repository).gateway)
    except SettingsError as error:
        return Checked(None, f"the document cannot be checked: {error}")
    if found.login != sealed.key_id:
        return Checked(None, f"signed by gateway key {sealed.key_id}, which is not at hand")
    good = sealed.is_by_gateway_key(found.password or "")
    return Checked(good, f"{'signed' if good else 'NOT signed'} by gateway key {sealed.key_id}")


def _sealed(connections: Connections, deed: Deed) -> Sealed:
    found = connections.secrets.get(connections.site.repository(deed.repository).gateway)
    folder = connections.site.gateway.keys
    own = KeyFile.REPOSITORY.path(folder, deed.repository).exists()
    private = load_signer(folder, deed.repository).private_key if own else None
    return seal(deed, secret=found.password or "", private_key=private)


def _record(bind: Bind, deed: Deed) -> RowMapping:
    place = _place(deed.repository, deed.path)
    where = (
        provenance.c.place == place,
        provenance.c.revision == deed.revision,
        provenance.c.run_id == deed.run_id,
    )

    def work(connection: Connection) -> RowMapping:
        found = connection.execute(select(provenance).where(*where)).mappings().first()
        if found is None:
            connection.execute(insert(provenance).values(place=place, **asdict(deed)))
            found = connection.execute(select(provenance).where(*where)).mappings().one()
        return found

    return writing(bind, work)


def _set_document(bind: Bind, row: int, key: str) -> None:
    def work(connection: Connection) -> None:
        connection.execute(update(provenance).where(provenance.c.id == row).values(document=key))

    writing(bind, work)


def _deed(row: RowMapping) -> Deed:
    return Deed(**{one.name: row[one.name] for one in fields(Deed)})


def _place(repository: str, path: str) -> str:
    return hashlib.sha256(f"{repository}\0{path}".encode()).hexdigest()
