"""Notes who and what published an artifact, once it is published; who moved links, and who took what back."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from include.ledger.errors import LedgerError
from include.nightlies.records import builds
from include.nightlies.rules.publication import Publication, State
from include.nightlies.steps.values import Attempt, Batch, Item
from include.provenance.records import ChangeKind, begun, newest, note
from include.settings.model import Slot
from include.site.site import Site


@dataclass(frozen=True, slots=True)
class SetLink:
    """A link of a slot that leads to another build. `moved`: False if an earlier try had set it already."""

    path: str
    target: str
    before: str | None
    reason: str
    revision: int
    build_id: str
    moved: bool = True


def vouch(site: Site, attempt: Attempt, batch: Batch, item: Item, done: Publication) -> None:
    """Have it in the ledger and signed in the store, if this run published it. Raises nothing: it stays published."""
    if done.state is not State.PUBLISHED or done.revision_after is None:
        return
    at, base = done.ended_at or attempt.clock(), None
    if item.inherits is not None and done.artifact is not None:
        with suppress(LedgerError):  # which `note` logs
            base = builds.taken_from(site.ledger, done.artifact)
    record = begun(site, batch.repository, revision=done.revision_after, run_id=batch.run, holder=attempt.holder, at=at)
    note(
        site,
        replace(
            record,
            path=item.destination,
            root_hash=done.root_hash,
            nested_hash=done.nested_hash,
            changeset=done.changeset,
            source=item.source,
            artifact_sha256=done.artifact_sha256,
            slot=done.slot,
            build_id=done.build_id,
            project=done.project,
            platform=done.platform,
            kind=ChangeKind.LINK if item.linked else ChangeKind.TREE,
            came_from=item.inherits,
            from_build=base,
            leads_to=item.inherits if item.linked else None,
        ),
    )


def vouch_links(site: Site, attempt: Attempt, slot: Slot, links: Iterable[SetLink]) -> None:
    """Record who moved links of a slot. Raises LedgerUnavailable.

    One that an earlier try moved, and died before it was recorded, is recorded as found.
    """
    fqrn, now = slot.repository, attempt.clock()
    for link in links:
        reason = link.reason
        if not link.moved:
            last = newest(site.ledger, fqrn, link.path)
            if last is not None and last.leads_to == link.target:
                continue
            reason = "found in this state; the task that changed it did not record it"
        record = begun(site, fqrn, revision=link.revision, run_id=attempt.run, holder=attempt.holder, at=now)
        note(
            site,
            replace(
                record, path=link.path, kind=ChangeKind.LINK, leads_to=link.target, before=link.before, reason=reason,
                slot=slot.name, build_id=link.build_id,
            ),
        )  # fmt: skip
