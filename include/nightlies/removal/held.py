"""Builds of a slot that a repository holds, read from its catalogs, its tags and the records in its store.

The ledger is asked for one thing, the date of a build id, which never changes; without it a build counts as younger.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from include.cvmfs.commit.tags import TagDecision, decide
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.database import TRUNK, TRUNK_PREVIOUS, Tag
from include.cvmfs.format.paths import ancestors, is_below, link_target, parent_of
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.json_values import JsonValue
from include.nightlies.records import builds
from include.nightlies.rules.build import BuildKey, build_directories, build_of_directory, build_of_tag
from include.nightlies.rules.passes import began_by_itself
from include.nightlies.rules.retention_rules import HeldBuild, reached
from include.nightlies.steps.care import prune_rule
from include.provenance.records import ChangeKind, ProvenanceRecord, documents
from include.settings.model import Slot
from include.site.changes import contents_of
from include.site.site import Site

LATE = timedelta(days=3)
"""Time after the begin of a night's day; a person published what is published later."""
_PUBLISHED = (ChangeKind.TREE, ChangeKind.LINK, ChangeKind.MOVED)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldByTag(JsonValue):
    """A tag and what its revision holds of the slot. `names`: the directories of the builds that it is for.

    `builds`: all that it holds; `only`: those of them that the current revision does not hold any more. `goes`: whether
    the repository's rule for tags takes it away, `reason`: why, or why not.
    """

    name: str
    revision: int
    names: tuple[str, ...]
    builds: tuple[str, ...]
    only: tuple[str, ...]
    goes: bool
    reason: str


@dataclass(frozen=True, slots=True)
class _Read:
    """Content of a catalog: its symbolic links with where each leads, and what is nested in it."""

    links: Mapping[str, str]
    nested: tuple[NestedRef, ...]


class BuildReader:
    """Reads one revision after the other. What was read of a catalog or of a tagged revision is kept."""

    def __init__(self, site: Site, slot: Slot) -> None:
        self.slot = slot
        self._site = site
        self._slots = [other for other in site.settings.slots.values() if other.repository == slot.repository]
        self._read: dict[tuple[str, bytes], _Read] = {}
        self._tagged: dict[bytes, dict[str, tuple[str, ...]]] = {}
        self._newest: dict[bytes, str | None] = {}
        self._dates: dict[str, date | None] = {}

    def builds(self, tree: Revision, tags: Sequence[HeldByTag]) -> list[HeldBuild]:
        """The builds of a revision, with what leads to them and names them. Raises CvmfsError, StoreError, LedgerError.

        Links within the trees of artifacts are not read.
        """
        directories = frozenset(build_directories(self.slot, tree))
        links = self._links(tree)
        leading: dict[str, list[str]] = {}
        referring: dict[str, set[str]] = {}
        for path in links:
            within = next((place for place in ancestors(path) if place in directories), None)
            for directory in reached(path, links, directories):
                if within is None:
                    leading.setdefault(directory, []).append(path)
                elif within != directory:
                    referring.setdefault(within, set()).add(directory)
        return [
            replace(
                self._build(tree, directory),
                links=tuple(sorted(leading.get(directory, ()))),
                refers_to=tuple(sorted(referring.get(directory, ()))),
                tags=tuple(tag.name for tag in tags if directory in tag.names),
            )
            for directory in sorted(directories)
        ]

    def tags(self, head: Repository, now: datetime) -> tuple[tuple[HeldByTag, ...], tuple[str, ...]]:
        """The tags of the current history with what they hold of the slot; and notes on those that cannot be read.

        A tag that is named by the slot's template is for that build, any other for the build that was published last in
        its revision. Those that commits keep are for none.
        """
        found, notes = [], []
        current = frozenset(build_directories(self.slot, head.revision))
        for decision in self._decided(head, now):
            tag = decision.tag
            try:
                held = self._held_by(head, tag)[self.slot.name]
                names = self._named(head, tag)
            except CvmfsError as error:
                notes.append(f"tag {tag.name}: what its revision holds is not known: {error}")
                held, names = (
                    (),
                    tuple(directory for directory in current if self._is_named(self.slot, tag.name, directory)),
                )
            only = tuple(directory for directory in held if directory not in current)
            found.append(HeldByTag(tag.name, tag.revision, names, held, only, decision.remove, decision.reason))
        return tuple(found), tuple(notes)

    def with_publications(self, tree: Revision, build: HeldBuild, *, since: datetime) -> HeldBuild:
        """The build with what the records in the store have of it: whether it is one, and who published it since then.

        What they do not have counts as published by hand. Raises StoreError, CvmfsError.
        """
        ours, rebuilt = False, list[datetime]()
        recent = build.changed_at > since
        for path in self._places(tree, build.directory):
            found = [
                record
                for record, _, worth in documents(self._site, self.slot.repository, path)
                if worth.good is not False and record.kind in _PUBLISHED
            ]
            ours = ours or any(self._is_of(record, build) for record in found)
            if ours and not recent:
                break
            if not found:
                rebuilt.append(build.changed_at)
            rebuilt += [publication.published_at for publication in found if not self._by_a_night(publication, build)]
        if not ours:
            return replace(build, protected=f"no record in the store shows that slot {self.slot.name} published it")
        return replace(build, rebuilt_at=max(rebuilt, default=None))

    # -- private

    def _build(self, tree: Revision, directory: str) -> HeldBuild:
        parts = build_of_directory(self.slot, directory) or {}
        reference, inside = tree.nested_at(directory), contents_of(tree, directory)
        changed = tree.catalog_at(directory).last_modified if reference else inside.entry.mtime
        changed_at = datetime.fromtimestamp(changed, UTC)
        build_id = parts.get("build_id")
        known = date.fromisoformat(parts["date"]) if "date" in parts else self._date_of(str(build_id))
        day = known or changed_at.astimezone(ZoneInfo(self.slot.timezone)).date()
        return HeldBuild(
            directory=directory,
            key=BuildKey(day, build_id or parts["date"]),
            nested_hash=str(reference.hash) if reference else "",
            changed_at=changed_at,
            files=inside.files,
            bytes=inside.bytes,
            empty=not inside.bytes and not inside.others,
            dated=known is not None,
            protected="" if reference else "is no nested catalog, so no night made it",
        )

    def _date_of(self, build_id: str) -> date | None:
        if build_id not in self._dates:
            found = builds.build(self._site.ledger, self.slot.name, build_id)
            self._dates[build_id] = found.date if found else None
        return self._dates[build_id]

    def _links(self, tree: Revision) -> dict[str, str]:
        """Return where every symbolic link leads that is in no tree of an artifact."""
        found: dict[str, str] = {}
        pending = [NestedRef("", tree.root_hash, 0)]
        while pending:
            catalog = self._catalog(tree, pending.pop())
            found |= catalog.links
            pending += catalog.nested
        return found

    def _catalog(self, tree: Revision, reference: NestedRef) -> _Read:
        key = (reference.path, reference.hash.digest)
        if key not in self._read:
            catalog = tree.catalogs.open_nested(reference.path, reference.hash)
            links = {path: self._absolute(path, text) for path, text in catalog.symlinks().items()}
            nested = tuple(below for below in catalog.nested() if not self._is_within_a_build(below.path))
            catalog.close()
            self._read[key] = _Read(links, nested)
        return self._read[key]

    def _absolute(self, path: str, text: str) -> str:
        target, mounted = link_target(path, text), f"/cvmfs/{self.slot.repository}"
        return target[len(mounted) :] if is_below(target, mounted) else target

    def _is_within_a_build(self, path: str) -> bool:
        above = list(ancestors(parent_of(path)))
        return any(build_of_directory(slot, place) is not None for slot in self._slots for place in above)

    def _places(self, tree: Revision, directory: str) -> Iterator[str]:
        """Yield where artifacts of a build are, trees and links."""
        catalog = tree.catalog_at(directory)
        yield from (reference.path for reference in catalog.nested())
        yield from (path for path in catalog.symlinks() if is_below(path, directory))

    def _is_of(self, record: ProvenanceRecord, build: HeldBuild) -> bool:
        parts = build_of_directory(self.slot, build.directory) or {}
        return record.slot == self.slot.name and parts.get("build_id") in (None, record.build_id)

    def _by_a_night(self, record: ProvenanceRecord, build: HeldBuild) -> bool:
        """Tell whether a night of the build's own date published it, not a backfill and not a person."""
        if not began_by_itself(record.run_id):
            return False
        night = build.key.date - timedelta(days=self.slot.date_offset)
        begin = datetime.combine(night, datetime.min.time(), ZoneInfo(self.slot.timezone))
        return record.published_at < begin + LATE

    def _decided(self, head: Repository, now: datetime) -> list[TagDecision]:
        tags = [tag for tag in head.tags() if tag.name not in (TRUNK, TRUNK_PREVIOUS)]
        rule = prune_rule(self._site.settings.repository(self.slot.repository).care)
        return decide(tags, rule, now) if rule else [TagDecision(tag, False, "no rule takes tags away") for tag in tags]

    def _held_by(self, head: Repository, tag: Tag) -> Mapping[str, tuple[str, ...]]:
        """The builds of each slot that a tag's revision holds."""
        if tag.hash.digest not in self._tagged:
            tree = head.at(tag.hash)
            self._tagged[tag.hash.digest] = {slot.name: build_directories(slot, tree) for slot in self._slots}
        return self._tagged[tag.hash.digest]

    def _named(self, head: Repository, tag: Tag) -> tuple[str, ...]:
        held = self._held_by(head, tag)
        for slot in self._slots:
            if named := tuple(directory for directory in held[slot.name] if self._is_named(slot, tag.name, directory)):
                return named if slot.name == self.slot.name else ()
        newest = self._last_published(head, tag)
        return () if newest is None else (newest,)

    def _is_named(self, slot: Slot, name: str, directory: str) -> bool:
        tag, parts = build_of_tag(slot, name), build_of_directory(slot, directory)
        if tag is None or parts is None or not (both := tag.keys() & parts.keys()):
            return False
        return all(tag[key] == parts[key] for key in both)

    def _last_published(self, head: Repository, tag: Tag) -> str | None:
        digest = tag.hash.digest
        if digest not in self._newest:
            tree = head.at(tag.hash)
            changed = {
                directory: tree.catalog_at(directory).last_modified
                for directory in self._held_by(head, tag)[self.slot.name]
                if tree.nested_at(directory) is not None
            }
            self._newest[digest] = max(changed, key=lambda directory: (changed[directory], directory), default=None)
        return self._newest[digest]
