"""Take one build back, or some of it, in one revision, with its approval and its provenance.

`plan_undo` reports what would happen; `undo` does it. What others published since is not touched: under the
lease each destination must still hold what was planned for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any

from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.group import Rebased, rebase
from include.cvmfs.errors import DestinationError
from include.cvmfs.format.catalog import PackedCatalog
from include.cvmfs.format.database import TRUNK, TRUNK_PREVIOUS
from include.cvmfs.format.paths import ancestors, common_top, is_below, link_target
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.ledger.acts import Act, ActKind, note_act
from include.ledger.engine import Bind
from include.nightlies.errors import BuildUnknown, UndoRefused
from include.nightlies.records import builds, publications as records, undos as undone
from include.nightlies.removal.removal import ChangedPath, MovedLink, Placed, Removal, ask, is_asked, record
from include.nightlies.rules import approval
from include.nightlies.rules.approval import Bound, QuestionKind
from include.nightlies.rules.build import (
    LATEST,
    ArtifactRecord,
    BuildRecord,
    all_links_of,
    build_directory,
    destination_of,
    relative,
)
from include.nightlies.rules.publication import standing
from include.nightlies.rules.selection import select
from include.nightlies.steps.approve import ApprovalRequest
from include.nightlies.steps.links import Completeness
from include.nightlies.steps.values import Attempt
from include.provenance.records import ChangeKind, links_by_path, newest
from include.publishers.base import Published
from include.publishers.required_objects import is_reserved, topmost
from include.settings.model import Slot
from include.site.changes import contents_of
from include.site.site import Site

_TAGS = 5  # that are searched for what was there before a rebuild

log = logging.getLogger(__name__)


class Replacement(Enum):
    """Content of a destination afterwards."""

    NOTHING = "nothing"
    PREDECESSOR = "predecessor"


@dataclass(frozen=True, slots=True)
class Wish:
    """A build to undo. Empty ``projects`` or ``platforms``: all of it; ``move_links``: those that lead to what goes may
    lead to an earlier build instead."""

    slot: str
    build_id: str
    reason: str
    projects: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    instead: Replacement = Replacement.NOTHING
    move_links: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan(Removal):
    """The removal of a build from its ``top``. ``absent``: what was taken away already."""

    kind = QuestionKind.UNDO
    wish: Wish
    build: BuildRecord
    top: str
    taken: tuple[ChangedPath, ...] = ()
    links: tuple[MovedLink, ...] = ()
    absent: tuple[ChangedPath, ...] = ()

    @property
    def bound(self) -> Bound:
        taken = [
            (target.path, target.held, target.after.path, target.after.nested_hash) if target.after
            else (target.path, target.held)
            for target in self.taken
        ]  # fmt: skip
        links = [(link.path, str(link.before), link.after or "") for link in self.links]
        name = f"{self.wish.slot} {self.build.key}"
        digest = approval.removal_digest(self.kind, self.repository, name, [*taken, *links])
        return Bound(str(self.build.key), self.top, digest)

    def lines(self) -> Iterator[str]:
        yield f"{self.repository}, revision {self.revision}: {self.build.key} of slot {self.wish.slot}"
        yield from (str(target) for target in self.taken)
        yield from (str(link) for link in self.links)
        yield from self.notes
        yield from (f"refused: {reason}" for reason in self.refused)
        if not self.taken and not self.links and not self.refused:
            yield "nothing is to be done"

    def to_json(self) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "revision": self.revision,
            "build": str(self.build.key),
            "taken": [str(target) for target in self.taken],
            "links": [str(link) for link in self.links],
            "notes": list(self.notes),
            "refused": list(self.refused),
        }


def ask_undo(site: Site, attempt: Attempt, plan: UndoPlan, *, wished: bool) -> ApprovalRequest:
    """Record the question of a run that undoes, if the repository asks for approval, or `wished` for this run."""
    if not is_asked(site, plan.repository, wished=wished):
        return ApprovalRequest(None, True, f"{plan.repository} asks for no approval, nor does this run")
    if plan.refused or not (plan.taken or plan.links):
        return ApprovalRequest(None, True, "there is nothing to approve")
    subject = f"Undo {plan.build.key} of {plan.wish.slot} in {plan.repository}?"
    head = f"run {attempt.run}, because: {plan.wish.reason}"
    return ask(site, attempt, [plan], subject, [head], f"{len(plan.taken)} places and {len(plan.links)} links")


def plan_undo(site: Site, wish: Wish) -> UndoPlan:
    """Return what undoing would do to the current revision. Raises SettingsError, BuildUnknown, UnknownChoice."""
    slot, build, chosen = _chosen(site, wish)
    head, ledger = site.head(slot.repository), site.ledger
    taken, absent, notes, refused = [], [], list[str](), list[str]()
    earlier = builds.earlier_builds(ledger, slot.name, build.key)
    replacing = earlier if wish.instead is Replacement.PREDECESSOR else None
    for artifact in chosen:
        change = ChangedPath(
            destination_of(slot, build, artifact.artifact), Placed(sha256=artifact.artifact.sha256), None, slot.name,
            build.key, artifact, reason=wish.reason,
        )  # fmt: skip
        found = _look(ledger, slot, build, artifact, change, head, replacing)
        if isinstance(found, ChangedPath):
            taken.append(found)
            continue
        (refused if found.refused else notes).append(found.why)
        if found.absent:
            absent.append(replace(change, after=found.after))
    links: list[MovedLink] = []
    places, top = {target.path for target in taken}, build_directory(slot, build.build_id, build_date=build.date)
    if wish.instead is Replacement.PREDECESSOR:
        notes += shown_by_links(ledger, slot, head.revision, places)
    elif taken or head.revision.lookup(top) is None:
        # a link to what is gone entirely is put right, too, no matter who took that away
        links, more = _links_of_slot(ledger, slot, build, head.revision, earlier, wish)
        refused += more + leading_into(ledger, slot, build, head.revision, places)
    return UndoPlan(
        repository=slot.repository, revision=head.manifest.revision, notes=tuple(notes), refused=tuple(refused),
        wish=wish, build=build, top=top, taken=tuple(taken), links=tuple(links), absent=tuple(absent),
    )  # fmt: skip


def undo(
    site: Site, attempt: Attempt, wish: Wish, *, require: Callable[[UndoPlan], None] | None = None
) -> tuple[UndoPlan, int | None]:
    """Do it in one revision, and keep it in the ledger; the plan, and the revision, None where nothing was to be done.

    ``require`` raises if the change is not allowed, for example because it is not approved. A night does not install
    again what is undone; ``redo`` lets it. Raises UndoRefused before anything is changed, DestinationError for what was
    published meanwhile, PathBusy, and what a commit raises.
    """
    plan = plan_undo(site, wish)
    if plan.refused:
        raise UndoRefused(wish.build_id, plan.refused)
    if require is not None and (plan.taken or plan.links):
        require(plan)
    for line in plan.lines():
        log.info("%s", line)
    revision = None
    if plan.taken or plan.links:
        site.require_thawed(plan.repository)
        revision = _change(site, attempt, plan).revision
    _record(site, attempt, plan, revision)
    return plan, revision


def redo(site: Site, wish: Wish, *, now: datetime, by: str) -> int:
    """Let the next run of the build install again what was undone; how many artifacts that is. Changes nothing else.

    `by`: the person.
    """
    _, build, chosen = _chosen(site, wish)
    count = undone.lift(site.ledger, [artifact.id for artifact in chosen], now=now)
    if count:
        what = f"{count} artifacts of {build.key} of slot {wish.slot}"
        note_act(site.ledger, Act(now, ActKind.REDO, what, by, wish.reason))
    return count


def _chosen(site: Site, wish: Wish) -> tuple[Slot, BuildRecord, list[ArtifactRecord]]:
    slot = site.settings.slot(wish.slot)
    build = builds.build(site.ledger, slot.name, wish.build_id)
    if build is None:
        raise BuildUnknown(slot.name, wish.build_id)
    listed = [listed.artifact for listed in build.artifacts]
    names = {artifact.name for artifact in select(listed, projects=wish.projects, platforms=wish.platforms)}
    return slot, build, [listed for listed in build.artifacts if listed.artifact.name in names]


@dataclass(frozen=True, slots=True)
class _Untouched:
    """Reason why a destination is not touched. ``absent``: nothing of the artifact is there; ``after``: what is."""

    why: str
    refused: bool = False
    absent: bool = False
    after: Placed | None = None


def _look(
    ledger: Bind,
    slot: Slot,
    build: BuildRecord,
    artifact: ArtifactRecord,
    change: ChangedPath,
    head: Repository,
    replacing: Sequence[BuildRecord] | None,
) -> ChangedPath | _Untouched:
    """``replacing``: the earlier builds of which one is to take its place; None if nothing is."""
    fqrn, where, name, sha256 = slot.repository, change.path, artifact.artifact.name, artifact.artifact.sha256
    entry = head.revision.lookup(where)
    if entry is None and replacing is None:
        return _Untouched(f"{name}: nothing is at {where}", absent=True)
    reference = head.revision.nested_at(where)
    if entry is not None and reference is None and not entry.is_symlink:
        return _Untouched(f"{name}: what is at {where} is no tree of a night; remove it by hand", refused=True)
    held = str(reference.hash) if reference else ""
    reserved = reference is not None and is_reserved(head.revision, where)
    if held and not reserved and held not in records.known_hashes(ledger, fqrn, where):
        what = f"{where} holds the tree {held}, which no run of this ledger published"
        return _Untouched(f"{name}: {what}; look whose it is, and remove it by hand", refused=True)
    after = None
    if replacing is not None:
        after = _before_rebuild(ledger, build, artifact, where, head)
        after = after or _predecessor(ledger, slot, artifact, head, replacing)
        if after is None:
            return _Untouched(f"{name}: no earlier build has it; undo it without a predecessor", refused=True)
        if after.sha256 == sha256:
            return _Untouched(f"{name}: {after.build_id} has the very same artifact")
        if held and held == records.recorded_nested_hash(ledger, fqrn, where, str(after.sha256)):
            return _Untouched(f"{name}: the tree of {after.build_id} is there already", absent=True, after=after)
    inside = contents_of(head.revision, where) if reference else None
    return replace(
        change, before=Placed(held, sha256), after=after, files=inside.files if inside else 0,
        bytes=inside.bytes if inside else 0,
    )  # fmt: skip


def _before_rebuild(
    ledger: Bind, build: BuildRecord, artifact: ArtifactRecord, where: str, head: Repository
) -> Placed | None:
    """Return what was there before the artifact was rebuilt, if a tag names a revision that has it.

    Without a tag a collection may have deleted parts of it unnoticed. Content that was itself undone does not count.
    """
    spurned = {sha256 for artifact_id, sha256 in undone.of_build(ledger, build.id) if artifact_id == artifact.id}
    spurned.add(artifact.artifact.sha256)
    tags = [named for named in head.tags() if named.name not in (TRUNK, TRUNK_PREVIOUS)]
    for done in records.history(ledger, head.fqrn, where):
        sha256, revision = done.artifact_sha256, done.revision_after
        if sha256 is None or sha256 in spurned or revision is None or done.artifact != artifact.id:
            continue
        for tag in reversed([named for named in tags if named.revision >= revision][-_TAGS:]):
            tree = head.at(tag.hash).nested_at(where)
            if tree is not None and str(tree.hash) == done.nested_hash:
                return Placed(str(tree.hash), sha256, None, where, build.build_id, tag.name, tree)
    return None


def _predecessor(
    ledger: Bind, slot: Slot, artifact: ArtifactRecord, head: Repository, earlier: Sequence[BuildRecord]
) -> Placed | None:
    for build in earlier:
        listed = build.artifact(artifact.artifact.project, artifact.artifact.platform)
        if listed is None:
            continue
        where = destination_of(slot, build, listed.artifact)
        recorded = records.recorded_nested_hash(ledger, slot.repository, where, listed.artifact.sha256)
        held = standing(head.revision, where)
        if held is not None and held.hash == recorded:
            return Placed(held.hash, listed.artifact.sha256, None, held.path, build.build_id, reference=held.reference)
    return None


def _change(site: Site, attempt: Attempt, plan: UndoPlan) -> Published:
    now = attempt.clock()
    head, slot, top = site.head(plan.repository), site.settings.slot(plan.wish.slot), plan.top.rstrip("/")
    made: dict[str, Rebased] = {}
    written: list[tuple[str, bytes]] = []

    def keep(packed: PackedCatalog) -> None:
        written.append((packed.hash.key, packed.data))

    for target in plan.taken:
        if target.after is not None and target.after.reference is not None:
            tree = made[target.path] = rebase(
                head.catalogs, target.after.reference, target.path, keep, layout=head.revision.root.layout
            )
            # recorded before the commit, so that a death right after it leaves no tree that the ledger does not know
            records.note_installed(
                site.ledger, plan.repository, target.path, str(target.after.sha256), str(tree.reference.hash), now=now
            )
    earlier = {build.key: build for build in builds.earlier_builds(site.ledger, slot.name, plan.build.key)}

    def apply(edit: Edit) -> None:
        for target in plan.taken:
            reference = edit.nested_at(target.path)
            if (str(reference.hash) if reference else "") != target.held:
                raise DestinationError(target.path, "was published or taken away meanwhile; undo it again")
        for link in plan.links:
            entry = edit.lookup(link.path)
            if entry is None or not entry.is_symlink or link_target(link.path, entry.symlink) != link.before:
                raise DestinationError(link.path, "was moved meanwhile; undo the build again")
            if link.build is None or link.after is None:
                edit.remove(link.path)
                continue
            if Completeness(site.ledger, slot, earlier[link.build]).lacking(edit):
                raise DestinationError(link.after, "was whole when it was checked; undo the build again")
            edit.symlink(link.path, relative(link.path, link.after), now=int(now.timestamp()))
        if plan.wish.instead is Replacement.NOTHING:
            _require_unneeded(site.ledger, slot, plan, edit, top)
        edit.bring(written)
        for target in plan.taken:
            if target.after is not None:
                _replace(edit, target.path, target.after, made[target.path])
        for path in _going(edit, [target.path for target in plan.taken if target.after is None], top):
            edit.remove(path)

    lease = top
    if plan.links:
        lease = common_top([top, *(link.path for link in plan.links)])
    elif len(plan.taken) == 1 and plan.taken[0].after:
        lease = plan.taken[0].path
    return site.publisher(plan.repository).change(lease, apply, holder=attempt.holder, now=now)


def _require_unneeded(ledger: Bind, slot: Slot, plan: UndoPlan, edit: Edit, top: str) -> None:
    """Check that nothing has come to depend on what goes since the plan was made. Raises DestinationError."""
    gone = {target.path for target in plan.taken}
    for path in leading_to(slot, edit, top):
        raise DestinationError(path, f"was moved to {top} meanwhile; undo the build again")
    for line in leading_into(ledger, slot, plan.build, edit, gone):
        raise DestinationError(top, f"is needed since it was checked: {line}; undo the build again")


def _replace(edit: Edit, path: str, after: Placed, tree: Rebased) -> None:
    source = edit.nested_at(after.path)
    if after.tag is None and (source is None or str(source.hash) != after.nested_hash):
        raise DestinationError(after.path, "was replaced or taken away meanwhile; undo the build again")
    entry = edit.lookup(path)
    if entry is not None and entry.is_symlink:
        edit.remove(path)
    edit.hang(tree.reference, tree.root_entry, tree.statistics.total)


def _going(edit: Edit, paths: Sequence[str], top: str) -> tuple[str, ...]:
    """The fewest places whose removal takes these away, and the directories of the build that are empty then."""
    above = {path for removed in paths for path in ancestors(removed) if path != removed and is_below(path, top)}
    return topmost(paths, None, lambda path: [entry.name for entry in edit.inside(path).listing(path)], above)


def _record(site: Site, attempt: Attempt, plan: UndoPlan, revision: int | None) -> None:
    fqrn, before = plan.repository, undone.of_build(site.ledger, plan.build.id)

    def as_recorded(change: ChangedPath) -> ChangedPath:
        if change.after is None:
            return change
        known = records.recorded_nested_hash(site.ledger, fqrn, change.path, str(change.after.sha256))
        return replace(change, after=replace(change.after, nested_hash=known or change.after.nested_hash))

    taken = [as_recorded(change) for change in plan.taken]
    # what was gone already was undone by a try that died before it was recorded, or is to stay away all the same
    late = [
        as_recorded(change)
        for change in plan.absent
        if change.artifact and (change.artifact.id, change.artifact.artifact.sha256) not in before
    ]
    untold = []
    for change in late:
        last, kind = newest(site.ledger, fqrn, change.path), ChangeKind.TREE if change.after else ChangeKind.REMOVED
        nested_hash = change.after.nested_hash if change.after else None
        if last is not None and (last.kind, last.nested_hash) != (kind, nested_hash):
            untold.append(change)
    record(
        site, attempt, fqrn, [*(link.changed for link in plan.links), *taken, *untold], kind=ActKind.UNDO,
        gone=[*taken, *late], links=plan.links, revision=revision, seen=plan.revision,
    )  # fmt: skip


def _links_of_slot(
    ledger: Bind, slot: Slot, build: BuildRecord, tree: Revision, earlier: Sequence[BuildRecord], wish: Wish
) -> tuple[list[MovedLink], list[str]]:
    """Return what becomes of the slot's links to the build: they would lead to something that is not whole any more."""
    top, links, refused = build_directory(slot, build.build_id, build_date=build.date), [], []
    for path in leading_to(slot, tree, top):
        if not wish.move_links:
            refused.append(f"{path} leads to {top}; turn on *Move links* (command line: --move-links), or undo nothing")
            continue
        any_day = path.endswith(f"/{LATEST}")
        candidates = [candidate for candidate in earlier if any_day or candidate.date.weekday() == build.date.weekday()]
        whole = next(
            (candidate for candidate in candidates if not Completeness(ledger, slot, candidate).lacking(tree)), None
        )
        target = build_directory(slot, whole.build_id, build_date=whole.date) if whole else None
        why = f"{build.key} is undone: {wish.reason}"
        key = whole.key if whole else None
        links.append(MovedLink(path, slot.name, top, target, key, build.key, why, "moves"))
    return links, refused


def leading_to(slot: Slot, tree: Revision, top: str) -> list[str]:
    """Return the slot's links that lead to a build's directory."""
    return [path for path in all_links_of(slot) if _leads(tree, path) == top]


def leading_into(ledger: Bind, slot: Slot, build: BuildRecord, tree: Revision, gone: Collection[str]) -> list[str]:
    """Links of partial builds, and links that were set by hand, that would lead nowhere."""
    refused, seen = [], set(all_links_of(slot))
    for other in builds.partial_builds(ledger, slot.name):
        for listed in other.artifacts:
            where = destination_of(slot, other, listed.artifact)
            seen.add(where)
            if listed.inherited is not None and where not in gone and _leads(tree, where) in gone:
                leads = _leads(tree, where)
                refused.append(f"{where} of the partial {other.key} leads to {leads}; undo that build first")
    top = build_directory(slot, build.build_id, build_date=build.date)
    left = [
        where
        for listed in build.artifacts
        if (where := destination_of(slot, build, listed.artifact)) not in gone and standing(tree, where) is not None
    ]
    for path in links_by_path(ledger, slot.repository):
        leads = _leads(tree, path) if path not in seen else None
        if leads is None or not is_below(leads, top) or any(is_below(path, removed) for removed in gone):
            continue
        emptied = any(is_below(removed, leads) for removed in gone) and not any(is_below(kept, leads) for kept in left)
        if emptied or any(is_below(leads, removed) for removed in gone):
            refused.append(f"{path}, set by hand, leads to {leads}; let it lead elsewhere, or remove it, first")
    return refused


def shown_by_links(ledger: Bind, slot: Slot, tree: Revision, replaced: Collection[str]) -> list[str]:
    """Links of partial builds that will show what takes the place of a tree."""
    return [
        f"{where} of the partial {other.key} leads to {leads}, and shows what takes its place, too"
        for other in builds.partial_builds(ledger, slot.name)
        for listed in other.artifacts
        if listed.inherited is not None
        for where in [destination_of(slot, other, listed.artifact)]
        if where not in replaced and (leads := _leads(tree, where)) in replaced
    ]


def _leads(tree: Revision, path: str) -> str | None:
    entry = tree.lookup(path)
    return link_target(path, entry.symlink) if entry is not None and entry.is_symlink else None
