"""Back to a tag: a new revision whose tree is the tag's (docs/formats.md, history: rollback).

As with the stock tools, the tags of later revisions go, the tag itself then names the new revision, and so does
``trunk``; ``trunk-previous`` goes. Needs the signing key. What was published since stays in the store until collected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from include.cvmfs.commit.commit import Head, load_history, publish, read_head, store_history
from include.cvmfs.commit.metadata_objects import Stored, store_all
from include.cvmfs.commit.unify_layout import Sender, Unifier
from include.cvmfs.coordination.condemned import require_kept
from include.cvmfs.coordination.generation import Look, look, require_unmoved
from include.cvmfs.errors import TagError
from include.cvmfs.format.catalog import NestedRef, PackedCatalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.history import TRUNK, TRUNK_PREVIOUS, History, Tag
from include.cvmfs.format.keys import Signer
from include.cvmfs.format.layout import Layout
from include.cvmfs.revision.revision import Revision
from include.storage.store import Store

UNDO = TRUNK_PREVIOUS  # what is gone back to if no tag is given


def _ignore(_: int) -> None: ...


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """What a rollback would do: from the current revision to the tree of ``tag``; ``lost`` are the tags that go.

    ``seen``: what was seen of collections before the manifest was read."""

    head: Head
    tag: Tag
    lost: tuple[Tag, ...]
    seen: Look = field(default_factory=Look)

    @property
    def changes_nothing(self) -> bool:
        return self.tag.hash.digest == self.head.manifest.root.digest


def plan_rollback(store: Store, fqrn: str, name: str = UNDO) -> RollbackPlan:
    """Look up the tag and what going back to it costs. Raises TagError for a tag that cannot be gone back to."""
    seen = look(store)
    head = read_head(store, fqrn)
    history = load_history(store, head.manifest)
    tag = history.tag(name)
    if tag is None:
        cure = "there is nothing to undo" if name == UNDO else "list them with: nightshift repo tag list"
        raise TagError(name, f"no such tag; {cure}")
    if tag.branch:
        raise TagError(name, f"is on branch {tag.branch!r}; going back is offered on the default branch only")
    undo = (TRUNK, TRUNK_PREVIOUS)
    lost = [one for one in history.tags() if one.revision > tag.revision and not one.branch and one.name not in undo]
    return RollbackPlan(head, tag, tuple(one for one in lost if one.name != name), seen)


def rollback(
    store: Store,
    plan: RollbackPlan,
    *,
    signer: Signer,
    now: int,
    verified: Callable[[int], None] = _ignore,
) -> Head:
    """Make the revision. ``now``: Unix s; ``verified`` is told how many catalogs were found sound so far.

    All catalogs of the tag's tree are read first: what a collection or an accident took is not offered to readers.
    A tree with catalogs of several layouts is brought to that of the current root catalog.
    Going back to what is there already changes nothing. Raises ManifestConflict if somebody published since the plan
    was made, ObjectMissing and other CvmfsErrors for a tree that is not whole, CollectionRunning for one of which a
    collection that runs deletes something, and GenerationMoved if one went on since the plan was made.
    """
    head, tag = plan.head, plan.tag
    if plan.changes_nothing:
        return head
    manifest, cache = head.manifest, CatalogCache(store)
    tree, layouts = Revision(cache, tag.hash), set()
    for number, one in enumerate(tree.catalogs_below(), 1):
        layouts.add(tree.catalog_at(one.path).layout)
        verified(number)
    root = tag.hash
    if len(layouts) > 1:
        root = _unified(store, cache, tag.hash, cache.open_nested("", manifest.root).layout)
    require_kept(store, plan.seen, root, named=f"tag {tag.name}")
    catalog = cache.completed(cache.open_nested("", root))
    catalog.make_writable()
    catalog.set_property("revision", manifest.revision + 1)
    catalog.set_property("last_modified", now)
    catalog.set_property("previous_revision", manifest.root)
    packed: PackedCatalog = catalog.pack(manifest.root.algorithm)
    store_all(store, [(packed.hash.key, packed.data)])
    timestamp = max(now, manifest.timestamp)
    again = replace(tag, hash=packed.hash, revision=manifest.revision + 1, timestamp=timestamp, size=packed.size)
    history = store_history(store, manifest, _rolled_back(plan, again))
    draft = replace(
        manifest,
        root=packed.hash.with_suffix(CATALOG), root_size=packed.size, revision=manifest.revision + 1,
        ttl=catalog.ttl, timestamp=timestamp, history=history.hash if history else None,
    )  # fmt: skip
    stored = [Stored(packed.hash, len(packed.data)), *([history] if history else [])]
    unmoved = partial(require_unmoved, store, plan.seen.token, fqrn=manifest.fqrn)
    return publish(store, head, draft, signer=signer, now=now, stored=stored, before_switch=unmoved)


def _unified(store: Store, cache: CatalogCache, root: ObjectHash, layout: Layout) -> ObjectHash:
    """The root of the same tree with all catalogs in the layout of the current revision, stored."""
    sender = Sender(store)
    done = Unifier(cache, layout, sender.keep).tree(NestedRef("", root, 0))
    sender.flush()
    return done.reference.hash


def _rolled_back(plan: RollbackPlan, again: Tag) -> Callable[[History], None]:
    def change(history: History) -> None:
        if plan.lost:
            history.remove(*(tag.name for tag in plan.lost))
        if again.name not in (TRUNK, TRUNK_PREVIOUS):
            history.move(again)
        history.rotate_trunk(again, rollback=True)

    return change
