"""Named revisions made, removed and pruned by rule, where the signing key is: tags change without a new root.

A tag has hash, revision, time and size of a root catalog; the manifest is signed again, its revision stays
(docs/formats.md, history).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from include.cvmfs.commit.commit import ATTEMPTS, Head, load_history, publish, read_head, store_history
from include.cvmfs.coordination.condemned import require_kept
from include.cvmfs.coordination.generation import Look, look, require_unmoved
from include.cvmfs.errors import CatalogError, GenerationMoved, ManifestConflict, TagError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.history import TRUNK, TRUNK_PREVIOUS, History, Tag, check_tag_description, check_tag_name
from include.cvmfs.format.keys import Signer
from include.storage.store import Store

_KEPT_BY_COMMITS = (TRUNK, TRUNK_PREVIOUS)


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Which tags go: of those whose names match, the ``keep`` of the highest revisions stay, and whatever is not older
    than ``older_than``. Commits' own tags and those whose names match one of ``protect`` always stay."""

    keep: int = 0
    older_than: timedelta | None = None
    match: str = "*"
    protect: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TagDecision:
    """What becomes of a tag, and why."""

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
    for attempt in range(ATTEMPTS):
        seen = look(store) if kept is not None else Look()
        head = read_head(store, fqrn)
        if kept is not None:
            require_kept(store, seen, kept.hash, named=f"tag {kept.name}")
        history = store_history(store, head.manifest, change)
        named = history.hash if history else None
        draft = replace(head.manifest, history=named, timestamp=max(now, head.manifest.timestamp))

        def unmoved(seen: Look = seen) -> None:
            if kept is not None:
                require_unmoved(store, seen.token, fqrn=fqrn)

        try:
            return publish(
                store, head, draft, signer=signer, now=now, stored=[history] if history else [], before_switch=unmoved
            )
        except (ManifestConflict, GenerationMoved):
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError  # the last attempt returns or raises


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
    found = history.tag(revision)
    return found.hash if found is not None else ObjectHash.parse(revision, suffix=CATALOG)


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days"
