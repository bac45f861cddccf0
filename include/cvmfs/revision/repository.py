"""Open a repository with full verification, read its revisions, tags and reflog, and begin to edit it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from include.cvmfs.errors import FormatError, ObjectMissing, ReflogError, TagError
from include.cvmfs.format import database as reflogs
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Reflog
from include.cvmfs.format.hashes import ObjectHash, hash_bytes
from include.cvmfs.format.history import History, Tag
from include.cvmfs.format.layout import MetaInfo
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import load
from include.cvmfs.format.paths import ancestors, parent_of
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.revision import Revision, require_size
from include.cvmfs.revision.trust import Trusted, fetch_trusted
from include.storage.errors import NotFound
from include.storage.open import open_store
from include.storage.store import Store


@dataclass(slots=True)
class OpenCatalog:
    """An opened catalog in its place: the node above, and its counters (self and below) as the parent knows them."""

    catalog: Catalog
    parent: OpenCatalog | None
    known: Counts
    dirty: bool = False

    @property
    def path(self) -> str:
        return self.catalog.path


class EditableRevision(Revision):
    """Reads what was changed, with catalogs of its own. Not for several threads at once.

    References to nested catalogs are the ones of before until the change is finished.
    """

    def __init__(self, catalogs: CatalogCache, root: ObjectHash) -> None:
        super().__init__(catalogs, root)
        catalog = self._opened_at("", root)
        self._nodes: dict[str, OpenCatalog] = {"": OpenCatalog(catalog, None, catalog.statistics.total)}
        self._within: dict[str, OpenCatalog] = {}  # by directory; emptied when it changes where catalogs begin

    def close(self) -> None:
        """Let go of the opened catalogs."""
        for node in self._nodes.values():
            node.catalog.close()

    def inside(self, path: str) -> Catalog:
        return self._node_inside(path).catalog

    def _open(self, reference: NestedRef) -> Catalog:
        return self._node_inside(reference.path).catalog

    @property
    def _root(self) -> OpenCatalog:
        return self._nodes[""]

    def _holder(self, path: str) -> OpenCatalog:
        """The node whose catalog has the row of ``path``."""
        return self._node_inside(parent_of(path)) if path else self._root

    def _node_inside(self, path: str) -> OpenCatalog:
        """The node whose catalog has the rows of what is in the directory ``path``."""
        if (known := self._nodes.get(path) or self._within.get(path)) is not None:
            return known
        node = self._root
        for step in ancestors(path):
            if (opened := self._nodes.get(step)) is not None:
                node = opened
            elif (reference := node.catalog.nested_at(step)) is not None:
                node = self._open_node(reference, node)
        self._within[path] = node
        return node

    def _open_node(self, reference: NestedRef, parent: OpenCatalog) -> OpenCatalog:
        catalog = self._opened_at(reference.path, reference.hash)
        require_size(reference, catalog)
        node = self._nodes[reference.path] = OpenCatalog(catalog, parent, catalog.statistics.total)
        return node

    def _opened_at(self, path: str, name: ObjectHash) -> Catalog:
        # Before anything is added to them: what an older revision does not count would be counted twice.
        return self.catalogs.completed(self.catalogs.open_nested(path, name))


class Repository:
    """A repository at the revision of the manifest that was read when it was opened; open it again for a newer one.

    ``revision``: reads the tree of that revision.
    """

    def __init__(self, store: Store, trusted: Trusted, catalogs: CatalogCache | None = None) -> None:
        self.store = store
        self.trusted = trusted
        self.catalogs = catalogs or CatalogCache(store)
        self.revision = Revision(self.catalogs, trusted.manifest.root)

    @classmethod
    def open(
        cls,
        store: Store | str,
        *,
        fqrn: str | None = None,
        public_keys: Sequence[bytes] | None = None,
        now: datetime | None = None,
        min_revision: int = 0,
        min_timestamp: int = 0,
        catalogs: CatalogCache | None = None,
    ) -> Self:
        """Read and verify the manifest at a store or URL: name, certificate, signature, whitelist, expiry, fingerprint.

        ``public_keys``: PEM texts of master keys; without any, only a local store is opened, and ``verified`` is false.
        ``fqrn``: the name that is expected; None takes the manifest's. ``now`` (aware; default: this moment) decides
        whether the whitelist is in force. ``min_revision``, ``min_timestamp`` (Unix s): what was seen before; older is
        refused. ``catalogs``: a cache to share with other openings. Raises what :func:`fetch_trusted` raises.
        """
        where = open_store(store) if isinstance(store, str) else store
        trusted = fetch_trusted(
            where, fqrn=fqrn, public_keys=public_keys, now=now or datetime.now(UTC),
            min_revision=min_revision, min_timestamp=min_timestamp,
        )  # fmt: skip
        return cls(where, trusted, catalogs)

    @property
    def manifest(self) -> Manifest:
        return self.trusted.manifest

    @property
    def fqrn(self) -> str:
        return self.manifest.fqrn

    @property
    def verified(self) -> bool:
        """Tell whether signatures were checked against a given master key."""
        return self.trusted.verified

    def history(self) -> History | None:
        """The tags; None for a repository without any. Raises ObjectMissing, ObjectDamaged, FormatError, StoreError."""
        name = self.manifest.history
        return None if name is None else History.load(load(self.store, name))

    def tags(self) -> list[Tag]:
        """All tags, latest revision first."""
        history = self.history()
        return [] if history is None else history.tags()

    def tag(self, name: str) -> Tag:
        """Raises TagError for an unknown name."""
        history = self.history()
        found = None if history is None else history.tag(name)
        if found is None:
            raise TagError(name, f"no such tag in {self.fqrn}; list them with: nightshift repo tags")
        return found

    def reflog(self, *, named: bool = True) -> Reflog:
        """The reflog, which has to be the one that the manifest names unless that is asked for with ``named=False``.

        Raises ReflogError if it is absent or another one, FormatError.
        """
        try:
            data = self.store.get(reflogs.KEY)
        except NotFound:
            raise ReflogError(self.fqrn, f"no {reflogs.KEY} in {self.store.url}") from None
        name = self.manifest.reflog
        if named and (name is None or hash_bytes(data, name.algorithm).digest != name.digest):
            raise ReflogError(self.fqrn, f"{reflogs.KEY} is not the one that the manifest names ({name})")
        return Reflog.load(data)

    def superseded_after(self, cutoff: int) -> int:
        """Return how many revisions before the current one were superseded after ``cutoff`` (Unix s).

        The reflog of a stock collection counts, too, which is not the one that the manifest names.
        """
        published = {ref.hash.digest: ref.timestamp for ref in self.reflog(named=False).refs()}
        root, count = self.manifest.root, 0
        while published.get(root.digest, cutoff) >= cutoff:
            try:
                before = self.at(root).root.previous_revision
            except ObjectMissing:  # collected
                if not count:
                    raise
                break
            if before is None:
                break
            root, count = before, count + 1
        return count

    def meta(self) -> MetaInfo | None:
        """The meta info; None if there is none. Raises ObjectMissing, ObjectDamaged, FormatError, StoreError."""
        name = self.manifest.meta
        return None if name is None else MetaInfo.parse(load(self.store, name))

    def at(self, revision: ObjectHash | str) -> Revision:
        """Another revision, by the hash of its root catalog (also as text) or by the name of a tag. Raises TagError."""
        root = revision if isinstance(revision, ObjectHash) else self._root_of(revision)
        return Revision(self.catalogs, root)

    def _root_of(self, text: str) -> ObjectHash:
        try:
            return ObjectHash.parse(text)
        except FormatError:
            return self.tag(text).hash
