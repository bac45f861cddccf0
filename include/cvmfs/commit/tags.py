"""Named revisions made, removed and pruned by rule, and the way back to one, where the signing key is.

A tag has hash, revision, time and size of a root catalog; with a change of tags the manifest is signed again, its
revision stays (docs/formats.md, history). Going back makes a new revision whose tree is that of a tag or number. As
with the stock tools, the tags of later revisions go, the tag itself then names the new revision, and so does ``trunk``;
``trunk-previous`` goes. What was published since stays in the store until collected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial

from include.cvmfs.commit.commit import Head, load_history, publish, read_head, store_history, until_first
from include.cvmfs.commit.metadata_objects import Records, Stored, store_all
from include.cvmfs.commit.rewrite import Sender, Unifier
from include.cvmfs.coordination.condemned import require_kept
from include.cvmfs.coordination.generation import Look, look, require_unmoved
from include.cvmfs.errors import REVISION_UNKNOWN, CatalogError, GenerationMoved, ObjectError, TagError
from include.cvmfs.format.catalog import NestedRef, PackedCatalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import TRUNK, TRUNK_PREVIOUS, History, Tag, check_tag_description, check_tag_name
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.keys import Signer
from include.cvmfs.format.layout import Layout
from include.cvmfs.revision.needed_objects import back_from
from include.cvmfs.revision.revision import Revision
from include.storage.store import Store

_KEPT_BY_COMMITS = (TRUNK, TRUNK_PREVIOUS)


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Rule for tags that go: of those whose names match, the ``keep`` of the highest revisions stay, and whatever is
    not older than ``older_than``. Commits' own tags and those whose names match one of ``protect`` always stay."""

    keep: int = 0
    older_than: timedelta | None = None
    match: str = "*"
    protect: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TagDecision:
    """Fate of a tag, and the reason."""

    tag: Tag
    remove: bool
    reason: str


def decide(tags: Sequence[Tag], rule: PruneRule, now: datetime) -> list[TagDecision]:
    """Return what the rule makes of these tags, latest revision first."""
    ordered = sorted(tags, key=lambda tag: (-tag.revision, -tag.timestamp, tag.name))
    decisions, place = [], 0
    for tag in ordered:
        if tag.name in _KEPT_BY_COMMITS:
            decisions.append(TagDecision(tag, False, "is kept by every commit"))
            continue
        if (pattern := next((glob for glob in rule.protect if fnmatchcase(tag.name, glob)), None)) is not None:
            decisions.append(TagDecision(tag, False, f"is protected by {pattern}"))
            continue
        if not fnmatchcase(tag.name, rule.match):
            decisions.append(TagDecision(tag, False, f"does not match {rule.match}"))
            continue
        place += 1
        age = now.timestamp() - tag.timestamp
        if place <= rule.keep:
            decisions.append(TagDecision(tag, False, f"is number {place} of the {rule.keep} that stay"))
        elif rule.older_than is not None and age <= rule.older_than.total_seconds():
            decisions.append(
                TagDecision(tag, False, f"is {_days(age)} old, not older than {_days(rule.older_than.total_seconds())}")
            )
        else:
            older = f", {_days(age)} old" if rule.older_than is not None else ""
            decisions.append(TagDecision(tag, True, f"is number {place}, {rule.keep} stay{older}"))
    return decisions


def tag_of(catalogs: CatalogCache, name: str, root: ObjectHash, description: str = "") -> Tag:
    """A tag for a root catalog, its figures read from the catalog itself.

    Raises TagError for what is no root catalog, ObjectMissing for what is not in the store.
    """
    check_tag_name(name)
    check_tag_description(name, description)
    root = root.with_suffix(CATALOG)
    try:
        catalog = catalogs.open_nested("", root)
    except CatalogError as fault:
        raise TagError(name, f"{root} is no root catalog ({fault.detail}); give the hash of a revision") from None
    size = len(catalogs.database(root))
    tag = Tag(name, root, catalog.revision, catalog.last_modified, size, description)
    catalog.close()
    return tag


def change_tags(
    store: Store, fqrn: str, change: Callable[[History], object], *, signer: Signer, now: int, kept: Tag | None = None
) -> Head:
    """Store the tags as ``change`` leaves them, and sign a manifest of the same revision that names them.

    ``now``: Unix s. ``kept``: a tag that must not name what a collection deletes. What another writer does meanwhile
    is met by changing his tags. Raises TagError, ManifestConflict when others keep being faster, CollectionRunning, and
    what reading and storing raise.
    """

    def attempt() -> Head:
        before = look(store) if kept is not None else Look()
        head = read_head(store, fqrn)
        if kept is not None:
            require_kept(store, before, kept.hash, named=f"tag {kept.name}")
        history = store_history(store, head.manifest, change)
        draft = replace(
            head.manifest, history=history.hash if history else None, timestamp=max(now, head.manifest.timestamp)
        )

        def unmoved() -> None:
            if kept is not None:
                require_unmoved(store, before.token, fqrn=fqrn)

        stored = [history] if history else []
        return publish(store, head, draft, signer=signer, now=now, stored=stored, before_switch=unmoved)

    return until_first(attempt, GenerationMoved)


def add_tag(
    store: Store,
    fqrn: str,
    name: str,
    revision: str | None,
    *,
    signer: Signer,
    now: int,
    description: str = "",
    move: bool = False,
) -> Tag:
    """Give a revision (a tag's name or a root hash; None: the newest) a name, and return the tag.

    ``move``: a tag of that name is moved, and keeps its description if none is given. One that exists already
    as it is to be is left alone. Raises TagError and what :func:`change_tags` raises.
    """
    catalogs = CatalogCache(store)
    head = read_head(store, fqrn)
    history = load_history(store, head.manifest)
    before = history.tag(check_tag_name(name))
    tag = tag_of(catalogs, name, _root(history, revision, head.manifest.root), description)
    if before is not None:
        tag = replace(tag, description=description or before.description, branch=before.branch)
        if tag == before:
            return before

    def change(history: History) -> None:
        if move:
            history.move(tag)
        else:
            history.add(tag)

    change_tags(store, fqrn, change, signer=signer, now=now, kept=tag)
    return tag


def remove_tags(store: Store, fqrn: str, names: Sequence[str], *, signer: Signer, now: int) -> int:
    """Take names away from their revisions, which a collection may then take; how many there were.

    A name that is not there is no error: an earlier try came as far. Raises TagError for names kept by commits.
    """
    present = [name for name in names if _is_there(store, fqrn, check_tag_name(name))]
    if present:
        change_tags(store, fqrn, lambda history: history.remove(*present), signer=signer, now=now)
    return len(present)


def prune_by_rule(store: Store, fqrn: str, rule: PruneRule, *, signer: Signer, now: datetime) -> list[TagDecision]:
    """Remove the tags that the rule does not keep, and return what became of each; ``now`` is aware.

    It is decided on the very history that is changed: a tag that was moved meanwhile is judged where it is then.
    """
    decisions: list[TagDecision] = []

    def change(history: History) -> None:
        decisions[:] = decide(history.tags(), rule, now)
        history.remove(*(decision.tag.name for decision in decisions if decision.remove))

    change_tags(store, fqrn, change, signer=signer, now=int(now.timestamp()))
    return decisions


def _is_there(store: Store, fqrn: str, name: str) -> bool:
    return load_history(store, read_head(store, fqrn).manifest).tag(name) is not None


def _root(history: History, revision: str | None, newest: ObjectHash) -> ObjectHash:
    if revision is None:
        return newest
    tag = history.tag(revision)
    return tag.hash if tag is not None else ObjectHash.parse(revision, suffix=CATALOG)


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days"


# -- the way back

UNDO = TRUNK_PREVIOUS  # what is gone back to if no tag is given


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """Plan of a rollback: from the current revision to the tree of ``tag``; ``lost`` are the tags that go.

    ``tag`` has no name for a revision that was given by its number. ``seen``: what was seen of collections before the
    manifest was read."""

    head: Head
    tag: Tag
    lost: tuple[Tag, ...]
    seen: Look = field(default_factory=Look)

    @property
    def changes_nothing(self) -> bool:
        return self.tag.hash.digest == self.head.manifest.root.digest

    @property
    def goal(self) -> str:
        """The revision that is gone back to, in words."""
        return f"tag {self.tag.name}" if self.tag.name else f"revision {self.tag.revision}"


def plan_rollback(store: Store, fqrn: str, target: str | int = UNDO) -> RollbackPlan:
    """Look up a tag, or a revision by its number, and what going back to it costs. Changes nothing.

    A number is looked for among the revisions before the current one and before those with tags, as far as their root
    catalogs are there; the reflog must still name it. Raises TagError for a tag that cannot be gone back to,
    REVISION_UNKNOWN for such a number, ReflogError.
    """
    before = look(store)
    head = read_head(store, fqrn)
    history = load_history(store, head.manifest)
    tag = _tag(store, history, target) if isinstance(target, str) else _numbered(store, head, history, target)
    undo = (TRUNK, TRUNK_PREVIOUS)
    lost = [
        later
        for later in history.tags()
        if later.revision > tag.revision and not later.branch and later.name not in undo
    ]
    return RollbackPlan(head, tag, tuple(lost_tag for lost_tag in lost if lost_tag.name != tag.name), before)


def rollback(
    store: Store,
    plan: RollbackPlan,
    *,
    signer: Signer,
    now: int,
    verified: Callable[[int], None] = lambda _: None,
    rewritten: Callable[[Mapping[str, str]], None] = lambda _: None,
) -> Head:
    """Make the revision. ``now``: Unix s; ``verified`` gets the number of catalogs found sound so far.

    ``rewritten`` gets, before the switch, the new hash of each catalog that was brought to another layout, by the old.

    All catalogs of the tag's tree are read first: what a collection or an accident took is not offered to readers.
    A tree with catalogs of several layouts is brought to that of the current root catalog.
    Going back to what is there already changes nothing. Raises ManifestConflict if a writer published since the plan
    was made, ObjectMissing and other CvmfsErrors for a tree that is not whole, CollectionRunning for one of which a
    collection that runs deletes something, and GenerationMoved if one went on since the plan was made.
    """
    head, tag = plan.head, plan.tag
    if plan.changes_nothing:
        return head
    manifest, cache = head.manifest, CatalogCache(store)
    tree, layouts = Revision(cache, tag.hash), set()
    for number, nested in enumerate(tree.catalogs_below(), 1):
        layouts.add(tree.catalog_at(nested.path).layout)
        verified(number)
    root = tag.hash
    if len(layouts) > 1:
        root, replaced = _unified(store, cache, tag.hash, _layout(cache, manifest.root, tag.hash))
        rewritten(replaced)
    require_kept(store, plan.seen, root, named=plan.goal)
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
    unmoved = partial(require_unmoved, store, plan.seen.token, fqrn=manifest.fqrn, hint="run it again")
    return publish(store, head, draft, signer=signer, now=now, stored=stored, before_switch=unmoved)


def _tag(store: Store, history: History, name: str) -> Tag:
    tag = history.tag(name)
    if tag is None:
        cure = "there is nothing to undo" if name == UNDO else "list them with: nightshift repo tag list"
        raise TagError(name, f"no such tag; {cure}")
    if tag.branch:
        raise TagError(name, f"is on branch {tag.branch!r}; going back is offered on the default branch only")
    try:
        CatalogCache(store).open_nested("", tag.hash).close()
    except ObjectError as gone:
        what = f"names revision {tag.revision}, whose root catalog {gone.key} is lost or damaged"
        raise TagError(name, f"{what}; nothing was changed. Choose another tag or revision.") from None
    return tag


def _numbered(store: Store, head: Head, history: History, number: int) -> Tag:
    """A tag of the revision, without a name."""
    fqrn, cache = head.manifest.fqrn, CatalogCache(store)
    if not 0 < number <= head.manifest.revision:
        raise REVISION_UNKNOWN(fqrn, f"has no revision {number}; the current one is {head.manifest.revision}")
    # where a collection took revisions out of the line, the tags below it lead on
    starts = [tag.hash for tag in reversed(history.tags()) if tag.revision >= number and not tag.branch]
    for start in (head.manifest.root, *starts):
        revision = next((earlier for earlier in back_from(cache, start) if earlier.number <= number), None)
        if revision is None or revision.number != number:
            continue
        if not Records().take_reflog(store, head.manifest).reflog.contains(revision.root):
            break
        catalog = cache.open_nested("", revision.root)
        tag = Tag("", revision.root, number, catalog.last_modified, len(cache.database(revision.root)))
        catalog.close()
        return tag
    cure = "what has no tag is collected in time; list the tags with: nightshift repo tag list"
    raise REVISION_UNKNOWN(fqrn, f"revision {number} is not in the store any more; nothing was changed: {cure}")


def _layout(cache: CatalogCache, current: ObjectHash, otherwise: ObjectHash) -> Layout:
    """That of the current root catalog, or, if it is lost, of the one that is gone back to."""
    try:
        return cache.open_nested("", current).layout
    except ObjectError:
        return cache.open_nested("", otherwise).layout


def _unified(
    store: Store, cache: CatalogCache, root: ObjectHash, layout: Layout
) -> tuple[ObjectHash, Mapping[str, str]]:
    """The root of the same tree, stored, its catalogs in the layout of the current revision; and what it replaced."""
    sender = Sender(store)
    unifier = Unifier(cache, layout, sender.keep)
    done = unifier.tree(NestedRef("", root, 0))
    sender.flush()
    return done.reference.hash, unifier.replaced()


def _rolled_back(plan: RollbackPlan, again: Tag) -> Callable[[History], object]:
    def change(history: History) -> None:
        if plan.lost:
            history.remove(*(tag.name for tag in plan.lost))
        if again.name not in ("", TRUNK, TRUNK_PREVIOUS):
            history.move(again)
        history.rotate_trunk(again, rollback=True)

    return change
