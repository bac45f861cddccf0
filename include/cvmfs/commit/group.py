"""Changes of several publishers on the way into one revision: merged one after another, each refused alone.

Two changes of a group never have to do with each other if both of their leases are held at the switch; a caller
that finds that one is not takes it out and merges the group again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from include.cvmfs.commit.edit import Edit, Savepoint
from include.cvmfs.commit.merge import Bases, is_touched, merge, merge_into
from include.cvmfs.commit.metadata_objects import Records
from include.cvmfs.errors import (
    BaseChanged,
    CatalogError,
    FormatError,
    HeadDamaged,
    MergeError,
    ObjectError,
    ObjectMissing,
    TagError,
    UnknownBase,
)
from include.cvmfs.format.catalog import NestedRef, PackedCatalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import check_tag_description, check_tag_name
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.schema import Counts, Statistics
from include.cvmfs.revision.needed_objects import Lineage
from include.errors import NightshiftError
from include.storage.store import Store


@dataclass(frozen=True, slots=True)
class Rebased:
    """A tree for its new place. ``reference``: what a parent must state of it; ``bytes``: of its catalogs, stored."""

    reference: NestedRef
    root_entry: Dirent
    statistics: Statistics
    catalogs: int
    bytes: int


def rebase(
    catalogs: CatalogCache, tree: NestedRef, path: str, keep: Callable[[PackedCatalog], None], *, layout: Layout
) -> Rebased:
    """Write the catalogs of ``tree`` for ``path``; ``keep`` is given each, those below before those above them.

    ``layout``: of the repository's root catalog; a tree that has another one takes it.

    Raises ObjectMissing, ObjectDamaged, CatalogError for what cannot be read.
    """
    catalog = catalogs.completed(catalogs.open_nested(tree.path, tree.hash))
    try:
        catalog.make_writable()
        if catalog.layout is not layout:
            catalog.convert(layout)
        below = [
            rebase(catalogs, nested, path + nested.path[len(tree.path) :], keep, layout=layout)
            for nested in catalog.nested()
        ]
        catalog.move_to(path)
        for child in below:
            catalog.set_nested(child.reference, Counts())
        if catalog.get_property("previous_revision") is not None:
            # it would name a catalog of the other place; stock tools write the null hash where there is none
            catalog.set_property("previous_revision", ObjectHash(bytes(20), tree.hash.algorithm))
        entry, statistics = catalog.root_entry, catalog.statistics
        packed = PackedCatalog.of(catalog.to_bytes(), tree.hash.algorithm)
    finally:
        catalog.close()
    keep(packed)
    return Rebased(
        NestedRef(path, packed.hash, packed.size),
        entry,
        statistics,
        1 + sum(child.catalogs for child in below),
        len(packed.data) + sum(child.bytes for child in below),
    )


STEPS = 32  # intermediate roots that a publisher may have made on its way


def true_base(
    catalogs: CatalogCache, *, told: ObjectHash, new: ObjectHash, is_revision: Callable[[ObjectHash], bool]
) -> ObjectHash:
    """The root that ``new`` was derived from: ``told``, or the revision that its catalogs name instead.

    Roots in between that never were a revision are steps of the same publisher. ``told`` counts where the catalog names
    no predecessor. Raises BaseChanged when none of the roots named is a revision, ObjectMissing for an unknown ``new``.
    """
    if new.digest == told.digest:
        return told
    at = _before(catalogs, new)
    if at is None:
        return told
    for _ in range(STEPS):
        if at.digest == told.digest or is_revision(at):
            return at
        try:
            before = _before(catalogs, at)
        except ObjectMissing:
            break
        if before is None:
            break
        at = before
    raise BaseChanged(
        "",
        f"the new root catalog was derived from {at}, not from {told} as in the request, and that is no revision of "
        "this repository; derive the change from the current revision",
    )


def _before(catalogs: CatalogCache, root: ObjectHash) -> ObjectHash | None:
    catalog = catalogs.open(root)
    try:
        return catalog.previous_revision
    finally:
        catalog.close()


@dataclass(frozen=True, slots=True)
class NewTag:
    """A tag to put on the new revision. Raises TagError for a description that is not one line of text."""

    name: str
    description: str = ""

    def __post_init__(self) -> None:
        check_tag_description(self.name, self.description)


@dataclass(frozen=True, slots=True)
class Change:
    """A publisher's request: the difference of two roots inside ``lease_path`` (``""``: the whole repository)."""

    lease_path: str
    old_root: ObjectHash
    new_root: ObjectHash
    tag: NewTag | None = None


class _Stands(NightshiftError):
    """The current revision holds the change already, with its tag."""

    code = "change-present"


@dataclass(slots=True)
class Group:
    """Outcome of each change, by its number: ``members`` are in the edit, ``standing`` need no new revision."""

    edit: Edit
    members: list[int] = field(default_factory=list)
    standing: list[int] = field(default_factory=list)
    refused: dict[int, Exception] = field(default_factory=dict)
    tags: list[NewTag] = field(default_factory=list)

    @classmethod
    def merged(
        cls,
        store: Store,
        catalogs: CatalogCache,
        head: Manifest,
        changes: Mapping[int, Change],
        *,
        records: Records,
        lineage: Lineage | None = None,
    ) -> Group:
        """Merge changes into the revision ``head``. Raises HeadDamaged, and what reading that revision raises."""
        try:
            edit = Edit(catalogs, head.root)
        except ObjectError:
            require_root(catalogs, head)
            raise
        with closing(Bases(catalogs)) as bases:
            merging = _Merging(store, bases, head, records, lineage, cls(edit))
            for number, change in changes.items():
                merging.take(number, change)
        return merging.group


def require_root(catalogs: CatalogCache, head: Manifest) -> None:
    """Raise HeadDamaged if the root catalog of the current revision is lost or cannot be read."""
    try:
        catalogs.open_nested("", head.root).close()
    except (ObjectError, CatalogError, FormatError) as fault:
        cure = f"run: nightshift repo rollback {head.fqrn}"
        raise HeadDamaged(head.fqrn, f"the root catalog of revision {head.revision} is lost: {fault}; {cure}") from None


@dataclass(frozen=True, slots=True)
class _Merging:
    store: Store
    bases: Bases
    head: Manifest
    records: Records
    lineage: Lineage | None
    group: Group

    def take(self, number: int, change: Change) -> None:
        group = self.group
        try:
            with group.edit.attempt() as attempt:
                self._merge(change, attempt)
        except _Stands:
            group.standing.append(number)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one change is not the others' fault
            group.refused[number] = self._cause(error)
        else:
            group.members.append(number)
            if change.tag is not None:
                group.tags.append(change.tag)

    def _cause(self, error: Exception) -> Exception:
        """The error, or that of the current revision where this is what cannot be read."""
        if isinstance(error, ObjectError):
            try:
                require_root(self.bases.catalogs, self.head)
            except HeadDamaged as damaged:
                return damaged
        return error

    def _merge(self, change: Change, attempt: Savepoint) -> None:
        if self.lineage is not None:
            self.lineage.require(change.old_root, self.head, self._in_reflog)
        # With the base that the publisher reports, a change that was derived from another revision would look as if it
        # took back what was published between the two.
        change = replace(change, old_root=self._derived_from(change))
        base, new, path = change.old_root, change.new_root, change.lease_path
        others = self.group.edit.changed
        merge_into(self.group.edit, self.bases, base=base, new=new, lease_path=path)
        changed = attempt.changed
        # The merge accepts what others did beside the entries of this change. But a publisher that was at the leased
        # path since then made a tree of it, and a mix of two trees is what neither publisher has made.
        if changed and self.lineage is not None and self._is_touched(change):
            raise BaseChanged(
                path, "another publication changed something there since; take its result as the base and try again"
            )
        # Nothing was left to do: either the current revision holds the change, or earlier members of this group do,
        # whose work is not published yet and may still be taken out. Only the first needs no revision.
        stands = not changed and (not others or self._holds(self.head.root, change))
        if change.tag is not None:
            self._check_tag(change, change.tag, stands=stands)
        elif stands:
            raise _Stands

    def _derived_from(self, change: Change) -> ObjectHash:
        """Return what the change was really derived from: nearly always what the publisher reports, and then at no
        cost."""
        told, new = change.old_root, change.new_root
        named = self.bases.revision(new).root.previous_revision
        if named is None or told.digest in (new.digest, named.digest):
            return told
        return true_base(self.bases.catalogs, told=told, new=new, is_revision=self._is_revision)

    def _is_touched(self, change: Change) -> bool:
        return is_touched(self.bases, since=change.old_root, current=self.head.root, path=change.lease_path)

    def _check_tag(self, change: Change, tag: NewTag, *, stands: bool) -> None:
        """Raises TagError for a tag that cannot be made, _Stands if a revision that holds the change has it."""
        tagged = self.records.history(self.store, self.head).tag(tag.name)
        if tagged is not None:
            if stands and self._holds(tagged.hash, change):
                raise _Stands
            raise TagError(tag.name, "exists already; remove or move it, or choose another name")
        check_tag_name(tag.name)
        if any(other.name == tag.name for other in self.group.tags):
            raise TagError(tag.name, "is just being given to another change; choose another name")

    def _holds(self, root: ObjectHash, change: Change) -> bool:
        base, new = change.old_root, change.new_root
        try:
            edit = merge(self.bases.catalogs, base=base, new=new, current=root, lease_path=change.lease_path)
        except (BaseChanged, MergeError, ObjectMissing):
            return False
        changed = edit.changed
        edit.close()
        return not changed

    def _is_revision(self, root: ObjectHash) -> bool:
        if self.lineage is None:
            return root.digest == self.head.root.digest or self._in_reflog(root)
        try:
            self.lineage.require(root, self.head, self._in_reflog)
        except (UnknownBase, ObjectMissing):
            return False
        return True

    def _in_reflog(self, root: ObjectHash) -> bool:
        return self.records.reflog(self.store, self.head).reflog.contains(root)
