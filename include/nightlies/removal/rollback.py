"""Go back to an earlier revision by a new one, and correct what the ledger has of builds, links and tags.

Both halves can be run again: a rollback that was made is found by the line of revisions, and recorded once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from include.cvmfs.commit.commit import read_head
from include.cvmfs.commit.tags import RollbackPlan, plan_rollback, rollback as make_revision
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import TRUNK_PREVIOUS
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.revision.needed_objects import KnownRoot, back_from
from include.cvmfs.revision.revision import Difference, Revision, diff
from include.json_values import JsonValue
from include.ledger.acts import ActKind
from include.nightlies.errors import PREVIEW_OUTDATED
from include.nightlies.records import links as linked, publications as records, undos as undone
from include.nightlies.records.links import TAG, LinkRecord
from include.nightlies.removal.removal import ChangedPath, Placed, ask, is_asked, record
from include.nightlies.removal.rollback_preview import (
    RevertedContent,
    RollbackPreview,
    RollbackWish,
    SeenRollback,
    compare,
    goal_of,
)
from include.nightlies.rules.build import LinkState
from include.nightlies.steps.approve import ApprovalRequest, require_answer
from include.nightlies.steps.values import Attempt
from include.publishers.capabilities import Operation
from include.site.site import Site, require_switchable, switching
from include.storage.store import Store

log = logging.getLogger(__name__)


def _ignore(_: int) -> None: ...


@dataclass(frozen=True, slots=True)
class RolledBack(JsonValue):
    """A rollback that was made: from one revision to the content of another, as ``revision`` with the root ``root``."""

    repository: str
    goal: str
    from_root: str
    revision: int
    root: str
    tags_lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedRollback(JsonValue):
    """Counts of ledger records: artifacts that count as undone, those that no longer do, links and tags."""

    undone: int
    back: int
    links: int
    tags: int


def ask_rollback(site: Site, attempt: Attempt, preview: RollbackPreview, *, wished: bool) -> ApprovalRequest:
    """Record the question of a run that rolls back, if the repository asks for approval, or ``wished`` for this run."""
    fqrn, goal = preview.repository, preview.plan.goal
    if preview.changes_nothing:
        return ApprovalRequest(None, False, f"readers of {fqrn} see this content already; nothing is to be done")
    if not is_asked(site, fqrn, wished=wished):
        return ApprovalRequest(None, True, f"{fqrn} asks for no approval, nor does this run")
    subject = f"Roll {fqrn} back from revision {preview.revision} to {goal}?"
    head = f"run {attempt.run}, because: {preview.wish.reason}"
    return ask(site, attempt, [preview], subject, [head], "a rollback")


def require_rollback_approved(site: Site, plan: RollbackPlan, run: str, *, wished: bool) -> None:
    """Raises NotApproved unless exactly this was approved in this run, or no approval is asked for."""
    fqrn = plan.head.manifest.fqrn
    if is_asked(site, fqrn, wished=wished):
        require_answer(site.ledger, run, f"rollback of {fqrn} to {plan.goal}", SeenRollback.of(plan).digest(fqrn))


def require_possible(site: Site, fqrn: str) -> None:
    """Check what a rollback needs, before anybody is asked. Raises KeyFileError, NotSupported, GatewayError."""
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
    gone, back, changes = [], [], [replace(change, reason=why) for change in content.artifacts]
    for change in changes:
        was, then = change.before, change.after
        if was and was.sha256 and (then is None or was.sha256 != then.sha256) and not _is_back(current, change):
            gone.append(change)
        if change.artifact and then and then.sha256:
            back.append((change.artifact.id, then.sha256))
            if then.nested_hash:
                records.note_installed(site.ledger, fqrn, change.path, then.sha256, then.nested_hash, now=now)
    links = [replace(link, reason=why) for link in content.links]
    for link in links:
        if link.key is None:
            log.info("%s led or leads to no build that the ledger knows; no record is made of it", link.path)
    tags = _tags(site, attempt, done, why)
    elsewhere = [replace(change, reason=why) for change in _elsewhere(content, before, after)]
    record(
        site, attempt, fqrn, [*changes, *(link.changed for link in links), *elsewhere], kind=ActKind.ROLLBACK,
        gone=gone, links=links, tags=tags, revision=done.revision,
    )  # fmt: skip
    lifted = undone.lift_back(site.ledger, back, now=now)
    told = RecordedRollback(len(gone), lifted, sum(link.key is not None for link in links), len(tags))
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


def _is_back(current: Revision, change: ChangedPath) -> bool:
    """Tell whether what went is at its path again."""
    reference = current.nested_at(change.path)
    return reference is not None and str(reference.hash) == change.held


def _tags(site: Site, attempt: Attempt, done: RolledBack, reason: str) -> list[LinkRecord]:
    """Return the tags that went and that the ledger had given."""
    last = (linked.history(site.ledger, done.repository, name, limit=1) for name in done.tags_lost)
    return [
        replace(
            record, state=LinkState.REMOVED.value, reason=reason, run_id=attempt.run, revision=done.revision,
            decided_at=attempt.clock(),
        )
        for record in (found[0] for found in last if found) if record.kind == TAG
    ]  # fmt: skip


def _elsewhere(content: RevertedContent, before: Revision, after: Revision) -> Iterator[ChangedPath]:
    """Yield the topmost paths that belong to no build and no link, and had or have a nested catalog."""
    for path, kind in content.places.elsewhere.items():
        was, then = (
            Placed(str(reference.hash)) if (reference := tree.nested_at(path)) else None for tree in (before, after)
        )
        if kind is Difference.REMOVED or then is not None:
            yield ChangedPath(path, was, None if kind is Difference.REMOVED else then)
