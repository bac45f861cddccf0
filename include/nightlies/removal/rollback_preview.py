"""Changes for readers by going back to an earlier revision: builds, links, other paths and tags, with figures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Self

from include.cvmfs.check.check_objects import NeededObjects, check_presence
from include.cvmfs.check.findings import Findings
from include.cvmfs.commit.tags import RollbackPlan, plan_rollback
from include.cvmfs.errors import ObjectError
from include.cvmfs.format.catalog import AUTO_MARKER, MARKER
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.paths import is_below, link_target, name_of, path_and_above
from include.cvmfs.revision.revision import Difference, DifferingEntry, Revision, diff
from include.json_values import JsonValue
from include.ledger.engine import Bind
from include.nightlies.errors import ROLLBACK_REFUSED
from include.nightlies.records import builds, publications as records
from include.nightlies.removal.removal import ChangedPath, Effect, MovedLink, Placed, Removal
from include.nightlies.rules import approval
from include.nightlies.rules.approval import Bound, QuestionKind
from include.nightlies.rules.build import (
    ArtifactRecord,
    BuildKey,
    BuildRecord,
    all_links_of,
    build_directory,
    destination_of,
)
from include.publishers.required_objects import is_reserved
from include.settings.model import Slot
from include.site.site import Site

MOST = 1000
"""Paths outside of builds that are kept apart; of more only the total is known."""
_OF_A_DIRECTORY = frozenset({"mtime", "nested catalog", "links"})


@dataclass(slots=True)
class ChangedFiles:
    """Files and bytes that go, come back or change. Files are all entries but directories; sizes in bytes."""

    gone: int = 0
    bytes_gone: int = 0
    back: int = 0
    bytes_back: int = 0
    changed: int = 0

    def count(self, difference: DifferingEntry) -> None:
        """A changed file counts as one; its old bytes go, and its new ones come back."""
        before, after = _file(difference.before), _file(difference.after)
        if before is not None and after is not None:
            self.changed += 1
        else:
            self.gone += before is not None
            self.back += after is not None
        self.bytes_gone += _bytes(before)
        self.bytes_back += _bytes(after)

    def __add__(self, other: ChangedFiles) -> ChangedFiles:
        return ChangedFiles(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def __str__(self) -> str:
        parts = [f"{self.gone} files go"] * bool(self.gone) + [f"{self.back} come back"] * bool(self.back)
        parts += [f"{self.changed} change"] * bool(self.changed)
        return f"{', '.join(parts) or 'no files'}; {self.bytes_gone} bytes go, {self.bytes_back} come back"


@dataclass(frozen=True, slots=True)
class ChangedPlaces:
    """Differences by place. ``elsewhere``: topmost paths that belong to no given place, each with how it differs.

    ``more``: entries below no place that are only in the total.
    """

    total: ChangedFiles
    at: Mapping[str, ChangedFiles] = field(default_factory=dict)
    elsewhere: Mapping[str, Difference] = field(default_factory=dict)
    more: int = 0


def by_place(differences: Iterable[DifferingEntry], places: Collection[str], *, most: int = MOST) -> ChangedPlaces:
    """Count differences, parents first as `diff` gives them: each for its place, else for the topmost path.

    A directory of which only times and counters differ is no change for readers. The directories above a place that
    go or come back with it, and markers of catalogs, are in the total only.
    """
    known, above = frozenset(places), {up for place in places for up in path_and_above(place)[1:]}
    total, at, elsewhere, more = ChangedFiles(), dict[str, ChangedFiles](), dict[str, Difference](), 0
    here: str | None = None
    for difference in differences:
        total.count(difference)
        if (
            here is None
            or not is_below(difference.path, here)
            or (difference.path in known and difference.path != here)
        ):
            here = next((up for up in path_and_above(difference.path) if up in known), None)
            if here is None and not _is_unseen(difference) and difference.path not in above:
                if len(elsewhere) == most:
                    more += 1
                    continue
                here = difference.path
                elsewhere[here] = difference.kind
        if here is not None:
            at.setdefault(here, ChangedFiles()).count(difference)
    return ChangedPlaces(total, at, elsewhere, more)


def _is_unseen(difference: DifferingEntry) -> bool:
    after = difference.after
    if name_of(difference.path) in (MARKER, AUTO_MARKER):
        return True
    return (
        difference.kind is Difference.CHANGED
        and bool(after and after.is_directory)
        and _OF_A_DIRECTORY.issuperset(difference.what)
    )


def _file(entry: Dirent | None) -> Dirent | None:
    return None if entry is None or entry.is_directory else entry


def _bytes(entry: Dirent | None) -> int:
    return entry.size if entry is not None and entry.is_regular else 0


SHOWN = 200
"""Lines of a kind that a preview lists; the figures are those of all."""
_LISTED_FROM = 20_000  # objects; fewer are looked for one by one


@dataclass(frozen=True, slots=True)
class RollbackWish:
    """Goal of a rollback: a tag's name or a revision's number; and why."""

    repository: str
    target: str | int
    reason: str


@dataclass(frozen=True, slots=True)
class SeenRollback(JsonValue):
    """Content of a preview, which a rollback is bound to: both roots, and the tags that go."""

    from_root: str
    to_root: str
    tags_lost: tuple[str, ...]

    @classmethod
    def of(cls, plan: RollbackPlan) -> Self:
        return cls(str(plan.head.manifest.root), str(plan.tag.hash), tuple(tag.name for tag in plan.lost))

    def digest(self, fqrn: str) -> str:
        """Return what an approval binds."""
        return approval.rollback_digest(fqrn, self.from_root, self.to_root, self.tags_lost)


@dataclass(frozen=True, slots=True)
class RevertedContent:
    """All that differs for readers from one revision to another. ``reserved``: destinations of runs that were under
    way then, and are empty; ``lost``: objects of the later one that the store has not. ``unread``: why the earlier one
    cannot be read, if it cannot; then nothing is known of what differs."""

    artifacts: tuple[ChangedPath, ...]
    links: tuple[MovedLink, ...]
    places: ChangedPlaces
    reserved: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    unread: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.artifacts or self.links or self.places.at or self.unread)

    def lines(self) -> Iterator[str]:
        """Builds, links and other paths, then the sum."""
        if self.unread:
            yield f"what changes is not known: the current revision cannot be read ({self.unread})"
            return
        of_build: dict[tuple[str, BuildKey, Effect], list[ChangedPath]] = {}
        for change in self.artifacts:
            if change.slot and change.build:
                of_build.setdefault((change.slot, change.build, change.effect), []).append(change)
        texts = []
        for (slot, key, effect), parts in sorted(of_build.items(), key=lambda item: (item[0][0], item[0][1])):
            files = sum((self.places.at.get(change.path, ChangedFiles()) for change in parts), ChangedFiles())
            names = ", ".join(change.name for change in parts[:5])
            more = f" and {len(parts) - 5} more" if len(parts) > 5 else ""
            all_of_it = f"{len(parts)} of {parts[0].listed} artifacts"
            texts.append(f"{effect.value}: {key} of slot {slot}, {all_of_it} ({names}{more}): {files}")
        yield from _shown(texts, "builds")
        yield from _shown([f"link {link}" for link in self.links], "links")
        verbs = {Difference.ADDED: "comes back", Difference.REMOVED: "goes", Difference.CHANGED: "changes"}
        others = [f"{verbs[kind]}: {path}: {self.places.at[path]}" for path, kind in self.places.elsewhere.items()]
        yield from _shown(others, "other paths", self.places.more)
        yield f"in total: {self.places.total}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPreview(Removal):
    """The removal of all that is newer than a revision, and what comes back."""

    kind = QuestionKind.ROLLBACK
    wish: RollbackWish
    plan: RollbackPlan
    content: RevertedContent

    @property
    def seen(self) -> SeenRollback:
        return SeenRollback.of(self.plan)

    @property
    def bound(self) -> Bound:
        return Bound(self.plan.goal, "/", self.seen.digest(self.repository))

    @property
    def title(self) -> str:
        return f"rollback of {self.repository} to {self.plan.goal}"

    @property
    def changes_nothing(self) -> bool:
        return self.content.is_empty

    def lines(self) -> Iterator[str]:
        manifest, tag = self.plan.head.manifest, self.plan.tag
        then = datetime.fromtimestamp(tag.timestamp, UTC)
        number = f" (revision {tag.revision})" if tag.name else ""
        yield (
            f"{self.wish.repository}: from revision {manifest.revision} (root {self.seen.from_root}) to the content of "
            f"{self.plan.goal}{number} of {then:%Y-%m-%d %H:%M} UTC (root {self.seen.to_root})"
        )
        if self.changes_nothing:
            yield "readers see this content already; nothing is to be done"
        else:
            yield f"it becomes revision {manifest.revision + 1}; no revision and no object is deleted"
            yield from self.content.lines()
            yield from _shown([f"tag {name} goes: it names a later revision" for name in self.seen.tags_lost], "tags")
        yield from (f"note: {note}" for note in self.notes)
        yield from (f"refused: {why}" for why in self.refused)

    def to_json(self) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "from_revision": self.revision,
            "to_revision": self.plan.tag.revision,
            **self.seen.to_json(),
            "changes_nothing": self.changes_nothing,
            "lines": list(self.lines()),
        }


def preview_rollback(site: Site, wish: RollbackWish) -> RollbackPreview:
    """Compare the current revision with the one to go back to. Changes nothing.

    Raises SettingsError, TagError, REVISION_UNKNOWN, TrustError, and what reading both trees raises.
    """
    fqrn = site.settings.repository(wish.repository).fqrn
    catalogs = site.head(fqrn).catalogs  # trusted by the signature
    plan = plan_rollback(site.repository_store(fqrn), fqrn, wish.target)
    before, after = Revision(catalogs, plan.head.manifest.root), Revision(catalogs, plan.tag.hash)
    content = compare(site, fqrn, before, after, presence=True)
    waiting = records.waiting_changesets(site.ledger, fqrn)
    runs = ", ".join(sorted({publication.run_id for publication in waiting}))
    notes = []
    if waiting:
        notes.append(
            f"{len(waiting)} prepared trees wait to be published on top of it, by {runs}; end these runs first"
        )
    if content.reserved:
        first = ", ".join(content.reserved[:3])
        notes.append(f"{len(content.reserved)} destinations are reserved and empty in that revision: {first}")
    refused = []
    if content.lost:
        what = f"{len(content.lost)} objects of that revision are not in the store"
        refused.append(f"{what}, the first: {content.lost[0]}")
    return RollbackPreview(
        repository=fqrn, revision=plan.head.manifest.revision, notes=tuple(notes), refused=tuple(refused), wish=wish,
        plan=plan, content=content,
    )  # fmt: skip


def require_whole(preview: RollbackPreview) -> None:
    """Raises ROLLBACK_REFUSED for a preview with reasons why it must not be done."""
    if preview.refused:
        what = f"{preview.wish.repository} is not rolled back to {preview.plan.goal}; nothing was changed"
        raise ROLLBACK_REFUSED(f"{what}: {'; '.join(preview.refused)}. Choose another tag or revision.")


def goal_of(wish: RollbackWish) -> str:
    """Return where it goes back to, in words."""
    return f"tag {wish.target}" if isinstance(wish.target, str) else f"revision {wish.target}"


def compare(site: Site, fqrn: str, before: Revision, after: Revision, *, presence: bool = False) -> RevertedContent:
    """Return what differs for readers, by what the ledger knows of builds and links, and entry by entry.

    ``presence``: look whether the store has the objects that only the later one names. An earlier one that lost a
    catalog is not compared: going back is the way out. Raises what reading the later one raises.
    """
    try:
        return _compared(site, fqrn, before, after, presence=presence)
    except ObjectError as fault:
        for nested in after.catalogs_below():  # raises if it is this one that is not whole
            after.catalog_at(nested.path)
        return RevertedContent((), (), ChangedPlaces(ChangedFiles()), unread=str(fault))


def _compared(site: Site, fqrn: str, before: Revision, after: Revision, *, presence: bool) -> RevertedContent:
    artifacts, links, reserved = list[ChangedPath](), list[MovedLink](), list[str]()
    for _, slot in sorted(site.settings.slots.items()):
        if slot.repository != fqrn:
            continue
        # every build there is comes before the end of time
        for build in builds.earlier_builds(site.ledger, slot.name, BuildKey(date.max, "")):
            artifacts += _artifacts(site.ledger, slot, build, before, after, reserved)
        links += _links(site.ledger, slot, before, after)
    needed, findings = NeededObjects(), Findings()
    try:
        entries = diff(before, after)
        if presence:
            entries = _noting(entries, after, needed)
        places = by_place(entries, [*(change.path for change in artifacts), *(link.path for link in links)])
        if presence:
            many = len(needed) >= _LISTED_FROM
            check_presence(after.catalogs.store, needed, findings, lambda _: None, listing=many)
    finally:
        needed.close()
    lost = tuple(f"{missing.hash.key} of {missing.path}" for missing in findings.lost)
    return RevertedContent(tuple(artifacts), tuple(links), places, tuple(reserved), lost)


def _artifacts(
    ledger: Bind, slot: Slot, build: BuildRecord, before: Revision, after: Revision, reserved: list[str]
) -> Iterator[ChangedPath]:
    top = build_directory(slot, build.build_id, build_date=build.date)
    if top != "/":
        old, new = before.nested_at(top), after.nested_at(top)
        same = old is not None and new is not None and old.hash.digest == new.hash.digest
        if same or (before.lookup(top) is None and after.lookup(top) is None):
            return
    for record in build.artifacts:
        where = destination_of(slot, build, record.artifact)
        was, then = _at(before, where), _at(after, where)
        if was == then:
            continue
        if then is not None and not then.leads_to and is_reserved(after, where):
            then = None
            reserved.append(where)
        if was is not None and not was.leads_to and is_reserved(before, where):
            was = None
        if was != then:
            yield ChangedPath(
                where, _known(ledger, slot, record, where, was), _known(ledger, slot, record, where, then), slot.name,
                build.key, record, len(build.artifacts),
            )  # fmt: skip


def _at(tree: Revision, where: str) -> Placed | None:
    reference = tree.nested_at(where)
    if reference is not None:
        return Placed(str(reference.hash))
    entry = tree.lookup(where)
    return Placed("", leads_to=link_target(where, entry.symlink)) if entry and entry.is_symlink else None


def _known(ledger: Bind, slot: Slot, record: ArtifactRecord, where: str, placed: Placed | None) -> Placed | None:
    """Add the sum of its artifact. A link of a partial build shows what the ledger lists for it now."""
    if placed is None:
        return None
    sha256 = record.artifact.sha256
    if not placed.leads_to:
        sha256 = records.artifact_that_became(ledger, slot.repository, where, placed.nested_hash) or ""
    return Placed(placed.nested_hash, sha256 or None, placed.leads_to)


def _links(ledger: Bind, slot: Slot, before: Revision, after: Revision) -> Iterator[MovedLink]:
    for path in all_links_of(slot):
        was, then = (_at(tree, path) for tree in (before, after))
        old, new = was.leads_to if was else None, then.leads_to if then else None
        if old != new:
            build, left = (builds.key_of_directory(ledger, slot, target) if target else None for target in (new, old))
            yield MovedLink(path, slot.name, old, new, build, left)


def _noting(entries: Iterable[DifferingEntry], after: Revision, needed: NeededObjects) -> Iterator[DifferingEntry]:
    """The same differences; the objects of files that come back are noted on the way."""
    for difference in entries:
        entry = difference.after
        if entry is not None and entry.is_regular and not entry.external:
            if entry.hash is not None:
                needed.add(entry.hash, difference.path, after.root_hash, entry.size, entry.compression)
            for chunk in after.chunks(difference.path) if entry.chunked else ():
                needed.add(chunk.hash, difference.path, after.root_hash, chunk.size, entry.compression)
        yield difference


def _shown(lines: Sequence[str], what: str, more: int = 0) -> Iterator[str]:
    yield from lines[:SHOWN]
    if hidden := len(lines[SHOWN:]) + more:
        yield f"… and {hidden} {what} more"
