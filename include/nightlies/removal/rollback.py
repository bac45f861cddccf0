"""Go back to an earlier revision by a new one, and correct what the ledger has of builds, links and tags.

Both halves can be run again: a rollback that was made is found by the line of revisions, and recorded once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from include.cvmfs.commit.commit import read_head
from include.cvmfs.commit.rollback import RollbackPlan, plan_rollback
from include.cvmfs.commit.rollback import rollback as make_revision
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.history import TRUNK_PREVIOUS
from include.cvmfs.revision.diff import Difference, diff
from include.cvmfs.revision.needed_objects import KnownRoot, back_from
from include.cvmfs.revision.revision import Revision
from include.nightlies.attempt import Attempt
from include.nightlies.errors import PREVIEW_OUTDATED
from include.nightlies.records import links as linked
from include.nightlies.records import publications as records
from include.nightlies.records import questions
from include.nightlies.records import undos as undone
from include.nightlies.records.links import LINK, TAG, LinkRecord
from include.nightlies.records.undos import Undone
from include.nightlies.removal.rollback_preview import (
    PlacedContent,
    RevertedArtifact,
    RevertedContent,
    RollbackPreview,
    RollbackWish,
    SeenRollback,
    compare,
    goal_of,
)
from include.nightlies.rules import approval
from include.nightlies.rules.approval import Bound, QuestionKind, WantedApproval
from include.nightlies.rules.links import LinkState
from include.nightlies.steps.approve import ApprovalRequest, require_answer, settings_of
from include.provenance.document import ChangeKind, ProvenanceRecord
from include.provenance.records import begun, note
from include.publishers.capabilities import Operation
from include.site.site import Site, require_switchable, switching
from include.storage.store import Store

OF_USE = timedelta(hours=12)
"""How long an answer is of use: what is gone back to does not grow old, but a run does."""

log = logging.getLogger(__name__)


def _ignore(_: int) -> None: ...


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A rollback that was made: from one revision to the content of another, as ``revision`` with the root ``root``."""

    repository: str
    goal: str
    from_root: str
    revision: int
    root: str
    tags_lost: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tags_lost": list(self.tags_lost)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RolledBack:
        return cls(**{**value, "tags_lost": tuple(value["tags_lost"])})


@dataclass(frozen=True, slots=True)
class RecordedRollback:
    """What was recorded in the ledger: artifacts that count as undone, those that no longer do, links and tags."""

    undone: int
    back: int
    links: int
    tags: int


def ask_rollback(site: Site, attempt: Attempt, preview: RollbackPreview, *, wished: bool) -> ApprovalRequest:
    """Record the question of a run that rolls back, if the repository asks for approval, or ``wished`` for this run."""
    fqrn, reason = preview.wish.repository, preview.wish.reason
    if preview.changes_nothing:
        return ApprovalRequest(None, False, f"readers of {fqrn} see this content already; nothing is to be done")
    if site.settings.repository(fqrn).approval is None and not wished:
        return ApprovalRequest(None, True, f"{fqrn} asks for no approval, nor does this run")
    settings, now, plan = settings_of(site, fqrn), attempt.clock(), preview.plan
    number = plan.head.manifest.revision
    wanted = WantedApproval(
        QuestionKind.ROLLBACK, fqrn, f"Roll {fqrn} back from revision {number} to {plan.goal}?",
        (f"run {attempt.run}, because: {reason}", *preview.lines()),
        (Bound(plan.goal, "/", preview.seen.digest(fqrn)),), settings.deadline_minutes, now + OF_USE,
    )  # fmt: skip
    until = approval.deadline(now, settings.deadline_minutes, wanted.expires)
    question = questions.ask(site.ledger, attempt.run, wanted, now=now, deadline=until)
    return ApprovalRequest(question, True, f"a rollback to approve, digest {wanted.digest}")


def require_rollback_approved(site: Site, plan: RollbackPlan, run: str, *, wished: bool) -> None:
    """Raises NotApproved unless exactly this was approved in this run, or no approval is asked for."""
    fqrn = plan.head.manifest.fqrn
    if site.settings.repository(fqrn).approval is not None or wished:
        require_answer(site.ledger, run, f"rollback of {fqrn} to {plan.goal}", SeenRollback.of(plan).digest(fqrn))


def require_possible(site: Site, fqrn: str) -> None:
    """What a rollback needs, found before anybody is asked. Raises KeyFileError, NotSupported, GatewayError."""
    require_switchable(site, fqrn, Operation.ROLLBACK)


def roll_back(
    site: Site,
    attempt: Attempt,
    wish: RollbackWish,
    *,
    seen: SeenRollback,
    require: Callable[[RollbackPlan], None] | None = None,
    verified: Callable[[int], None] = _ignore,
) -> RolledBack:
    """Make the revision that a preview showed.

    ``require`` raises if it must not be made, such as without an approval. What an earlier try made is found and
    not made again. Raises PREVIEW_OUTDATED if the repository or the goal moved since the preview, PathBusy, and what
    `switching` and `rollback` raise; nothing is changed then.
    """
    fqrn = wish.repository
    with switching(site, fqrn, Operation.ROLLBACK, holder=attempt.holder) as (store, signer):
        made = _made_before(store, read_head(store, fqrn).manifest.root, seen)
        if made is not None:
            log.info("revision %d of %s is this rollback already", made.number, fqrn)
            return RolledBack(fqrn, goal_of(wish), seen.from_root, made.number, str(made.root), seen.tags_lost)
        plan = plan_rollback(store, fqrn, wish.target)
        head = plan.head.manifest
        if SeenRollback.of(plan) != seen:
            raise PREVIEW_OUTDATED(
                f"{fqrn} is at revision {head.revision} (root {head.root}), {plan.goal} has the root {plan.tag.hash}; "
                f"the preview was of {seen.from_root} and {seen.to_root}, with {len(seen.tags_lost)} tags that go. "
                "Nothing was changed. For a new preview clear `preview` and what follows it, or run the command again."
            )
        if require is not None:
            require(plan)
        new = make_revision(
            store, plan, signer=signer, now=int(attempt.clock().timestamp()), verified=verified,
            rewritten=lambda replaced: _known_as(site, replaced),
        )  # fmt: skip
    return RolledBack(
        fqrn, plan.goal, seen.from_root, new.manifest.revision, str(new.manifest.root), seen.tags_lost
    )  # fmt: skip


def unrecorded(site: Site, preview: RollbackPreview) -> RolledBack | None:
    """The rollback that made the current revision, for a preview that finds nothing to do; None if none did.

    By hand: a command may have died before it updated the ledger. Only after a rollback there is no ``trunk-previous``.
    """
    if not preview.changes_nothing:
        return None
    head = site.head(preview.wish.repository)
    before = head.revision.root.previous_revision
    if before is None or any(tag.name == TRUNK_PREVIOUS for tag in head.tags()):
        return None
    manifest = head.manifest
    return RolledBack(head.fqrn, preview.plan.goal, str(before), manifest.revision, str(manifest.root))


def record_rollback(site: Site, attempt: Attempt, done: RolledBack, reason: str) -> RecordedRollback:
    """Record in the ledger what a rollback took away and brought back; the same again changes nothing.

    A night does not install again what went; ``redo`` lets it. What was undone before and is back is forgotten as
    undone. What was published again since the rollback is left as it is.
    """
    fqrn, now, catalogs = done.repository, attempt.clock(), site.head(done.repository).catalogs
    before, after = (Revision(catalogs, ObjectHash.parse(root)) for root in (done.from_root, done.root))
    content = compare(site, fqrn, before, after)
    if content.unread:
        log.warning("what went with %s is not recorded, since it cannot be read: %s", done.from_root, content.unread)
    current = site.head(fqrn).revision
    why = f"rolled back to {done.goal}: {reason}"
    gone, back = [], []
    for reverted in content.artifacts:
        was, then = reverted.before, reverted.after
        if (
            was is not None
            and was.sha256
            and (then is None or was.sha256 != then.sha256)
            and not _is_back(current, reverted)
        ):
            instead = reverted.build.build_id if then is not None else None
            gone.append(
                Undone(
                    reverted.record.id, was.sha256, fqrn, reverted.destination, was.nested_hash, instead, why,
                    attempt.run, done.revision, now,
                )
            )  # fmt: skip
        if then is not None and then.sha256:
            back.append((reverted.record.id, then.sha256))
            if then.nested_hash:
                records.note_installed(site.ledger, fqrn, reverted.destination, then.sha256, then.nested_hash, now=now)
    undone.record(site.ledger, gone)
    lifted = undone.lift_back(site.ledger, back, now=now)
    moved, tags = _links(attempt, done, content, why), _tags(site, attempt, done, why)
    linked.record(site.ledger, [*moved, *tags])
    common = begun(site, fqrn, revision=done.revision, run_id=attempt.run, holder=attempt.holder, at=now)
    for record in _provenance(replace(common, reason=why), content, before, after):
        note(site, record)
    told = RecordedRollback(len(gone), lifted, len(moved), len(tags))
    log.info("%s, revision %d: %s", fqrn, done.revision, told)
    return told


def _made_before(store: Store, head: ObjectHash, seen: SeenRollback) -> KnownRoot | None:
    """The revision right after that of the preview, if it has the content that was gone back to."""
    catalogs, following = CatalogCache(store), None
    for known in back_from(catalogs, head):
        if str(known.root) == seen.from_root:
            break
        following = known
    else:
        return None
    if following is None:
        return None
    goal = Revision(catalogs, ObjectHash.parse(seen.to_root))
    # catalogs that were brought to another layout may have lost nanoseconds
    same = all(difference.what == ("mtime",) for difference in diff(goal, Revision(catalogs, following.root)))
    return following if same else None


def _known_as(site: Site, replaced: Mapping[str, str]) -> None:
    """Recorded before the switch: a death right after it leaves nothing that looks strange."""
    records.rehash(site.ledger, replaced)


def _is_back(current: Revision, reverted: RevertedArtifact) -> bool:
    """Tell whether what went is at its destination again."""
    reference = current.nested_at(reverted.destination)
    return reverted.before is not None and reference is not None and str(reference.hash) == reverted.before.nested_hash


def _links(attempt: Attempt, done: RolledBack, content: RevertedContent, reason: str) -> list[LinkRecord]:
    found = []
    for link in content.links:
        key = link.build if link.after is not None else link.left
        if key is None:
            log.info("%s led or leads to no build that the ledger knows; no record is made of it", link.path)
            continue
        state = LinkState.REMOVED if link.after is None else LinkState.MOVED
        found.append(
            LinkRecord(
                LINK, done.repository, link.path, link.slot.name, key.build_id, key.date, state.value, reason,
                attempt.run, done.revision, attempt.clock(),
            )
        )  # fmt: skip
    return found


def _tags(site: Site, attempt: Attempt, done: RolledBack, reason: str) -> list[LinkRecord]:
    """Of the tags that went, those that the ledger had given."""
    last = (linked.history(site.ledger, done.repository, name, limit=1) for name in done.tags_lost)
    return [
        replace(
            record, state=LinkState.REMOVED.value, reason=reason, run_id=attempt.run, revision=done.revision,
            decided_at=attempt.clock(),
        )
        for record in (found[0] for found in last if found) if record.kind == TAG
    ]  # fmt: skip


def _provenance(
    common: ProvenanceRecord, content: RevertedContent, before: Revision, after: Revision
) -> Iterator[ProvenanceRecord]:
    """Yield who took away or brought back each destination, link and other topmost path."""
    for reverted in content.artifacts:
        artifact = reverted.record.artifact
        own = replace(
            common, path=reverted.destination, slot=reverted.slot.name, build_id=reverted.build.build_id,
            project=artifact.project, platform=artifact.platform,
        )  # fmt: skip
        yield _placed(own, reverted.before, reverted.after)
    for link in content.links:
        was, then = (PlacedContent("", None, path) if path else None for path in (link.before, link.after))
        key = link.build or link.left
        own = replace(common, path=link.path, slot=link.slot.name, build_id=key.build_id if key else None)
        yield _placed(own, was, then)
    for path, kind in content.places.elsewhere.items():
        old, new = (tree.nested_at(path) for tree in (before, after))
        was = PlacedContent(str(old.hash), None) if old else None
        if kind is Difference.REMOVED:
            yield _placed(replace(common, path=path), was, None)
        elif new is not None:
            yield _placed(replace(common, path=path), was, PlacedContent(str(new.hash), None))


def _placed(own: ProvenanceRecord, was: PlacedContent | None, then: PlacedContent | None) -> ProvenanceRecord:
    own = replace(own, before=(was.leads_to or was.nested_hash) if was else None)
    if then is None:
        return replace(own, kind=ChangeKind.REMOVED, artifact_sha256=was.sha256 if was else None)
    if then.leads_to:
        return replace(own, kind=ChangeKind.LINK, leads_to=then.leads_to)
    return replace(
        own, artifact_sha256=then.sha256, nested_hash=then.nested_hash, came_from=own.path, from_build=own.build_id
    )  # fmt: skip
