"""Take one build back, or some of it, in one revision, with its approval and its provenance.

`plan_undo` reports what would happen; `undo` does it. What others published since is not touched: under the
lease each destination must still hold what was planned for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.group import Rebased, rebase
from include.cvmfs.errors import DestinationError
from include.cvmfs.format.catalog import PackedCatalog
from include.cvmfs.format.history import TRUNK, TRUNK_PREVIOUS
from include.cvmfs.format.paths import ancestors, common_top, is_below, link_target
from include.cvmfs.revision.repository import Repository
from include.ledger.engine import Bind
from include.nightlies.attempt import Attempt
from include.nightlies.errors import BuildUnknown, UndoRefused
from include.nightlies.records import builds, questions
from include.nightlies.records import links as linked
from include.nightlies.records import publications as records
from include.nightlies.records import undos as undone
from include.nightlies.records.links import LINK, LinkRecord
from include.nightlies.records.undos import Undone
from include.nightlies.removal.undo_plan import (
    Instead,
    MovedLink,
    Predecessor,
    UndoneDestination,
    UndoPlan,
    Wish,
    leading_into,
    leading_to,
    links_of_slot,
    shown_by_links,
)
from include.nightlies.rules import approval
from include.nightlies.rules.approval import Bound, QuestionKind, WantedApproval
from include.nightlies.rules.build import ArtifactRecord, BuildRecord
from include.nightlies.rules.destinations import build_directory, destination_of
from include.nightlies.rules.links import LinkState, relative
from include.nightlies.rules.order import select
from include.nightlies.rules.publication import standing
from include.nightlies.steps.approve import ApprovalRequest, require_answer, settings_of
from include.nightlies.steps.links import Completeness
from include.provenance.document import ChangeKind, ProvenanceRecord
from include.provenance.records import begun, newest, note
from include.publishers.base import Published
from include.publishers.required_objects import is_reserved, topmost
from include.settings.model import Slot
from include.site.single_changes import contents_of
from include.site.site import Site

OF_USE = timedelta(hours=12)
"""How long an answer is of use: what is undone does not grow old, but a run does."""


def ask_undo(site: Site, attempt: Attempt, plan: UndoPlan, *, wished: bool) -> ApprovalRequest:
    """Record the question of a run that undoes, if the repository asks for approval, or `wished` for this run."""
    if site.settings.repository(plan.repository).approval is None and not wished:
        return ApprovalRequest(None, True, f"{plan.repository} asks for no approval, nor does this run")
    if plan.refused or not (plan.taken or plan.links):
        return ApprovalRequest(None, True, "there is nothing to approve")
    settings, now = settings_of(site, plan.repository), attempt.clock()
    slot = site.settings.slot(plan.wish.slot)
    top = build_directory(slot, plan.build.build_id, build_date=plan.build.date)
    wanted = WantedApproval(
        QuestionKind.UNDO, plan.repository, f"Undo {plan.build.key} of {slot.name} in {plan.repository}?",
        (f"run {attempt.run}, because: {plan.wish.reason}", *plan.lines()),
        (Bound(str(plan.build.key), top, digest_of(plan)),), settings.deadline_minutes, now + OF_USE,
    )  # fmt: skip
    until = approval.deadline(now, settings.deadline_minutes, wanted.expires)
    question = questions.ask(site.ledger, attempt.run, wanted, now=now, deadline=until)
    what = f"{len(plan.taken)} places and {len(plan.links)} links to approve"
    return ApprovalRequest(question, True, f"{what}, digest {wanted.digest}")


def require_undo_approved(site: Site, plan: UndoPlan, run: str, *, wished: bool) -> None:
    """Raises NotApproved unless exactly this was approved in this run, or no approval is required."""
    if site.settings.repository(plan.repository).approval is not None or wished:
        require_answer(site.ledger, run, str(plan.build.key), digest_of(plan))


def digest_of(plan: UndoPlan) -> str:
    """The digest of what an approval of undoing binds: each place, what it has, and what comes instead; no revision."""
    taken = [
        (target.destination, target.held, target.instead.path, str(target.instead.reference.hash)) if target.instead
        else (target.destination, target.held)
        for target in plan.taken
    ]  # fmt: skip
    links = [(link.path, link.was, link.target or "") for link in plan.links]
    return approval.undo_digest(plan.repository, f"{plan.wish.slot} {plan.build.key}", [*taken, *links])


def vouch_undone(
    site: Site,
    attempt: Attempt,
    plan: UndoPlan,
    found: Sequence[tuple[ArtifactRecord, Predecessor | None]],
    *,
    revision: int | None,
    now: datetime,
) -> None:
    """Record who took back what, and why. Raises LedgerUnavailable.

    `found`: what an earlier try took back and died before it was recorded, each with what is there instead; of these
    only what is not recorded yet.
    """
    slot, build = site.settings.slot(plan.wish.slot), plan.build
    revision, holder = revision or plan.revision, attempt.holder
    record = begun(site, plan.repository, revision=revision, run_id=attempt.run, holder=holder, at=now)
    common = replace(record, slot=slot.name, reason=plan.wish.reason)
    for link in plan.links:
        leads = replace(common, path=link.path, before=link.was, reason=f"{build.key} is undone: {plan.wish.reason}")
        if link.build is not None:
            leads = replace(leads, kind=ChangeKind.LINK, leads_to=link.target, build_id=link.build.build_id)
        note(site, leads if link.build is not None else replace(leads, kind=ChangeKind.REMOVED))

    def removal(removed: ArtifactRecord, before: Predecessor | None) -> ProvenanceRecord:
        artifact = removed.artifact
        where = destination_of(slot, build, artifact)
        own = replace(
            common, path=where, build_id=build.build_id, project=artifact.project, platform=artifact.platform
        )  # fmt: skip
        if before is None:
            return replace(own, kind=ChangeKind.REMOVED, artifact_sha256=artifact.sha256)
        known = records.recorded_nested_hash(site.ledger, plan.repository, where, before.sha256)
        return replace(
            own, artifact_sha256=before.sha256, nested_hash=known, came_from=before.path, from_build=before.build_id
        )  # fmt: skip

    for target in plan.taken:
        note(site, replace(removal(target.artifact, target.instead), before=target.held or None))
    for removed, before in found:
        late = removal(removed, before)
        last = newest(site.ledger, late.repository, late.path)
        if last is not None and (last.kind, last.nested_hash) != (late.kind, late.nested_hash):
            note(site, late)


_TAGS = 5  # that are searched for what was there before a rebuild

log = logging.getLogger(__name__)


def plan_undo(site: Site, wish: Wish) -> UndoPlan:
    """Return what undoing would do to the current revision. Raises SettingsError, BuildUnknown, UnknownChoice."""
    slot = site.settings.slot(wish.slot)
    build = builds.build(site.ledger, slot.name, wish.build_id)
    if build is None:
        raise BuildUnknown(slot.name, wish.build_id)
    head = site.head(slot.repository)
    chosen = select([record.artifact for record in build.artifacts], projects=wish.projects, platforms=wish.platforms)
    names = {artifact.name for artifact in chosen}
    taken, absent, notes, refused = [], [], [], []
    earlier = builds.earlier_builds(site.ledger, slot.name, build.key)
    replacing = earlier if wish.instead is Instead.PREDECESSOR else None
    for record in build.artifacts:
        if record.artifact.name not in names:
            continue
        found = _look(site.ledger, slot, build, record, head, replacing)
        if isinstance(found, UndoneDestination):
            taken.append(found)
        elif found.refused:
            refused.append(found.why)
        else:
            notes.append(found.why)
            if found.absent:
                absent.append((record, found.before))
    links: list[MovedLink] = []
    places = {target.destination for target in taken}
    if wish.instead is Instead.PREDECESSOR:
        notes += shown_by_links(site.ledger, slot, head.revision, places)
    elif taken or head.revision.lookup(build_directory(slot, build.build_id, build_date=build.date)) is None:
        # a link to what is gone entirely is put right, too, no matter who took that away
        links, more = links_of_slot(site.ledger, slot, build, head.revision, earlier, move=wish.move_links)
        refused += more + leading_into(site.ledger, slot, build, head.revision, places)
    return UndoPlan(
        wish, slot.repository, head.manifest.revision, build, tuple(taken), tuple(links), tuple(notes), tuple(refused),
        tuple(absent),
    )  # fmt: skip


def undo(
    site: Site,
    attempt: Attempt,
    wish: Wish,
    *,
    require: Callable[[UndoPlan], None] | None = None,
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


def redo(site: Site, wish: Wish, *, now: datetime) -> int:
    """Let the next run of the build install again what was undone; how many artifacts that is. Changes nothing else."""
    slot = site.settings.slot(wish.slot)
    build = builds.build(site.ledger, slot.name, wish.build_id)
    if build is None:
        raise BuildUnknown(slot.name, wish.build_id)
    chosen = select([record.artifact for record in build.artifacts], projects=wish.projects, platforms=wish.platforms)
    names = {artifact.name for artifact in chosen}
    return undone.lift(site.ledger, [record.id for record in build.artifacts if record.artifact.name in names], now=now)


@dataclass(frozen=True, slots=True)
class _Left:
    """Why a destination is not touched. ``absent``: nothing of the artifact is there; ``before``: what is instead."""

    why: str
    refused: bool = False
    absent: bool = False
    before: Predecessor | None = None


def _look(
    ledger: Bind,
    slot: Slot,
    build: BuildRecord,
    record: ArtifactRecord,
    head: Repository,
    replacing: Sequence[BuildRecord] | None,
) -> UndoneDestination | _Left:
    """``replacing``: the earlier builds of which one is to take its place; None if nothing is."""
    artifact = record.artifact
    where = destination_of(slot, build, record.artifact)
    entry = head.revision.lookup(where)
    if entry is None and replacing is None:
        return _Left(f"{artifact.name}: nothing is at {where}", absent=True)
    reference = head.revision.nested_at(where)
    if entry is not None and reference is None and not entry.is_symlink:
        return _Left(f"{artifact.name}: what is at {where} is no tree of a night; remove it by hand", refused=True)
    held = str(reference.hash) if reference else ""
    reserved = reference is not None and is_reserved(head.revision, where)
    if held and not reserved and held not in records.known_hashes(ledger, slot.repository, where):
        what = f"{where} holds the tree {held}, which no run of this ledger published"
        return _Left(f"{artifact.name}: {what}; look whose it is, and remove it by hand", refused=True)
    before = None
    if replacing is not None:
        before = earlier_bytes(ledger, build, record, where, head)
        before = before or _predecessor(ledger, slot, record, head, replacing)
        if before is None:
            return _Left(f"{artifact.name}: no earlier build has it; undo it without a predecessor", refused=True)
        if before.sha256 == artifact.sha256:
            return _Left(f"{artifact.name}: {before.build_id} has the very same artifact")
        known = records.recorded_nested_hash(ledger, slot.repository, where, before.sha256)
        if held and held == known:
            why = f"{artifact.name}: the tree of {before.build_id} is there already"
            return _Left(why, absent=True, before=before)
    inside = contents_of(head.revision, where) if reference else None
    return UndoneDestination(record, where, held, inside.files if inside else 0, inside.bytes if inside else 0, before)


def earlier_bytes(
    ledger: Bind, build: BuildRecord, record: ArtifactRecord, where: str, head: Repository
) -> Predecessor | None:
    """Return what was there before the artifact was rebuilt, if a tag names a revision that has it.

    Without a tag a collection may have deleted parts of it unnoticed. Content that was itself undone does not count.
    """
    spurned = {sha256 for artifact_id, sha256 in undone.of_build(ledger, build.id) if artifact_id == record.id}
    spurned.add(record.artifact.sha256)
    tags = [named for named in head.tags() if named.name not in (TRUNK, TRUNK_PREVIOUS)]
    for done in records.history(ledger, head.fqrn, where):
        sha256, revision = done.artifact_sha256, done.revision_after
        if sha256 is None or sha256 in spurned or revision is None or done.artifact != record.id:
            continue
        for tag in reversed([named for named in tags if named.revision >= revision][-_TAGS:]):
            there = head.at(tag.hash).nested_at(where)
            if there is not None and str(there.hash) == done.nested_hash:
                return Predecessor(build.build_id, where, there, sha256, tag.name)
    return None


def _predecessor(
    ledger: Bind, slot: Slot, record: ArtifactRecord, head: Repository, earlier: Sequence[BuildRecord]
) -> Predecessor | None:
    for build in earlier:
        listed = build.artifact(record.artifact.project, record.artifact.platform)
        if listed is None:
            continue
        where = destination_of(slot, build, listed.artifact)
        recorded = records.recorded_nested_hash(ledger, slot.repository, where, listed.artifact.sha256)
        held = standing(head.revision, where)
        if held is not None and held.hash == recorded:
            return Predecessor(build.build_id, held.path, held.reference, listed.artifact.sha256)
    return None


def _change(site: Site, attempt: Attempt, plan: UndoPlan) -> Published:
    now = attempt.clock()
    head, slot = site.head(plan.repository), site.settings.slot(plan.wish.slot)
    top = build_directory(slot, plan.build.build_id, build_date=plan.build.date).rstrip("/")
    made: dict[str, Rebased] = {}
    written: list[tuple[str, bytes]] = []

    def keep(packed: PackedCatalog) -> None:
        written.append((packed.hash.key, packed.data))

    for target in plan.taken:
        if target.instead is not None:
            tree = made[target.destination] = rebase(
                head.catalogs, target.instead.reference, target.destination, keep, layout=head.revision.root.layout
            )
            # recorded before the commit, so that a death right after it leaves no tree that the ledger does not know
            records.note_installed(
                site.ledger, plan.repository, target.destination, target.instead.sha256, str(tree.reference.hash),
                now=now,
            )  # fmt: skip

    def apply(edit: Edit) -> None:
        for target in plan.taken:
            reference = edit.nested_at(target.destination)
            if (str(reference.hash) if reference else "") != target.held:
                raise DestinationError(target.destination, "was published or taken away meanwhile; undo it again")
        for link in plan.links:
            entry = edit.lookup(link.path)
            if entry is None or not entry.is_symlink or link_target(link.path, entry.symlink) != link.was:
                raise DestinationError(link.path, "was moved meanwhile; undo the build again")
            if link.build is None or link.target is None:
                edit.remove(link.path)
                continue
            if Completeness(site.ledger, slot, link.build).lacking(edit):
                raise DestinationError(link.target, "was whole when it was checked; undo the build again")
            edit.symlink(link.path, relative(link.path, link.target), now=int(now.timestamp()))
        if plan.wish.instead is Instead.NOTHING:
            _require_unneeded(site.ledger, slot, plan, edit, top)
        edit.bring(written)
        for target in plan.taken:
            if target.instead is not None:
                _replace(edit, target, target.instead, made[target.destination])
        for path in _going(edit, [target.destination for target in plan.taken if target.instead is None], top):
            edit.remove(path)

    lease = common_top([top, *(link.path for link in plan.links)]) if plan.links else _narrowest(plan, top)
    return site.publisher(plan.repository).change(lease, apply, holder=attempt.holder, now=now)


def _require_unneeded(ledger: Bind, slot: Slot, plan: UndoPlan, edit: Edit, top: str) -> None:
    """Check that nothing has come to depend on what goes since the plan was made. Raises DestinationError."""
    gone = {target.destination for target in plan.taken}
    for path in leading_to(slot, edit, top):
        raise DestinationError(path, f"was moved to {top} meanwhile; undo the build again")
    for line in leading_into(ledger, slot, plan.build, edit, gone):
        raise DestinationError(top, f"is needed since it was checked: {line}; undo the build again")


def _replace(edit: Edit, target: UndoneDestination, before: Predecessor, tree: Rebased) -> None:
    source = edit.nested_at(before.path)
    if before.tag is None and (source is None or source.hash.digest != before.reference.hash.digest):
        raise DestinationError(before.path, "was replaced or taken away meanwhile; undo the build again")
    entry = edit.lookup(target.destination)
    if entry is not None and entry.is_symlink:
        edit.remove(target.destination)
    edit.hang(tree.reference, tree.root_entry, tree.statistics.total)


def _going(edit: Edit, paths: Sequence[str], top: str) -> tuple[str, ...]:
    """The fewest places whose removal takes these away, and the directories of the build that are empty then."""
    above = {path for removed in paths for path in ancestors(removed) if path != removed and is_below(path, top)}
    return topmost(paths, None, lambda path: [entry.name for entry in edit.inside(path).listing(path)], above)


def _narrowest(plan: UndoPlan, top: str) -> str:
    return plan.taken[0].destination if len(plan.taken) == 1 and plan.taken[0].instead else top


def _record(site: Site, attempt: Attempt, plan: UndoPlan, revision: int | None) -> None:
    now, run = attempt.clock(), attempt.run
    slot = site.settings.slot(plan.wish.slot)
    before = undone.of_build(site.ledger, plan.build.id)
    gone = [
        (target.artifact, target.held, target.instead.build_id if target.instead else None) for target in plan.taken
    ]
    # what was gone already was undone by a try that died before it was recorded, or is to stay away all the same
    found = [(listed, it) for listed, it in plan.absent if (listed.id, listed.artifact.sha256) not in before]
    gone += [(listed, "", it.build_id if it else None) for listed, it in found]
    undone.record(
        site.ledger,
        [
            Undone(
                listed.id, listed.artifact.sha256, plan.repository, destination_of(slot, plan.build, listed.artifact),
                held, instead, plan.wish.reason, run, revision, now,
            )
            for listed, held, instead in gone
        ],
    )  # fmt: skip
    linked.record(
        site.ledger,
        [
            LinkRecord(
                LINK, plan.repository, link.path, slot.name, (link.build or plan.build).build_id,
                (link.build or plan.build).date, (LinkState.MOVED if link.build else LinkState.REMOVED).value,
                f"{plan.build.key} is undone: {plan.wish.reason}", run, revision, now,
            )
            for link in plan.links
        ],
    )  # fmt: skip
    vouch_undone(site, attempt, plan, found, revision=revision, now=now)
