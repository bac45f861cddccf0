"""Notes who and what published an artifact, once it is published; who moved links, and who took what back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from include.care.provenance.deed import Deed, Kind
from include.care.provenance.records import begun, newest, note
from include.ledger.errors import LedgerError
from include.nightlies.records import builds
from include.nightlies.records import publications as records
from include.nightlies.records.builds import ArtifactRecord
from include.nightlies.records.publications import Publication
from include.nightlies.rules.destinations import destination
from include.nightlies.rules.states import State
from include.nightlies.steps.values import Batch, Item
from include.publishers.connect import Connections

if TYPE_CHECKING:
    from include.nightlies.undo.undo import Predecessor, UndoPlan


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


def vouch(connections: Connections, batch: Batch, item: Item, done: Publication, *, owner: str, now: datetime) -> None:
    """Have it in the ledger and signed in the store, if this run published it. Raises nothing: what stands stands."""
    if done.state is not State.PUBLISHED or done.revision_after is None:
        return
    at, base = done.ended_at or now, None
    if item.inherits is not None and done.artifact is not None:
        with suppress(LedgerError):  # which `note` tells
            base = builds.taken_from(connections.ledger, done.artifact)
    deed = begun(connections, batch.repository, revision=done.revision_after, run_id=batch.run, holder=owner, at=at)
    note(
        connections,
        replace(
            deed,
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
            kind=Kind.LINK if item.linked else Kind.TREE,
            came_from=item.inherits,
            from_build=base,
            leads_to=item.inherits if item.linked else None,
        ),
    )


def vouch_links(
    connections: Connections,
    repository: str,
    slot: str,
    links: Iterable[SetLink],
    *,
    run: str,
    owner: str,
    now: datetime,
) -> None:
    """Have it known who moved links of a slot. Raises LedgerUnavailable.

    One that an earlier try moved before it could say so is told as found.
    """
    for one in links:
        reason = one.reason
        if not one.moved:
            last = newest(connections.ledger, repository, one.path)
            if last is not None and last.leads_to == one.target:
                continue
            reason = "found so; who moved it did not come to say it"
        deed = begun(connections, repository, revision=one.revision, run_id=run, holder=owner, at=now)
        note(
            connections,
            replace(
                deed, path=one.path, kind=Kind.LINK, leads_to=one.target, before=one.before, reason=reason, slot=slot,
                build_id=one.build_id,
            ),
        )  # fmt: skip


def vouch_undone(
    connections: Connections,
    plan: UndoPlan,
    found: Sequence[tuple[ArtifactRecord, Predecessor | None]],
    *,
    run: str,
    owner: str,
    revision: int | None,
    now: datetime,
) -> None:
    """Have it known who took back what, and why. Raises LedgerUnavailable.

    `found`: what a try had taken back that died before it could say so, each with what stands there instead; of these
    only what is not told yet.
    """
    slot, build = connections.site.slot(plan.wish.slot), plan.build
    common = replace(
        begun(connections, plan.repository, revision=revision or plan.revision, run_id=run, holder=owner, at=now),
        slot=slot.name,
        reason=plan.wish.reason,
    )
    for link in plan.links:
        leads = replace(common, path=link.path, before=link.was, reason=f"{build.key} is undone: {plan.wish.reason}")
        if link.build is not None:
            leads = replace(leads, kind=Kind.LINK, leads_to=link.target, build_id=link.build.build_id)
        note(connections, leads if link.build is not None else replace(leads, kind=Kind.REMOVED))

    def deed(record: ArtifactRecord, before: Predecessor | None) -> Deed:
        artifact = record.artifact
        where = destination(slot, build.build_id, artifact.project, artifact.platform, build_date=build.date)
        own = replace(
            common, path=where, build_id=build.build_id, project=artifact.project, platform=artifact.platform
        )  # fmt: skip
        if before is None:
            return replace(own, kind=Kind.REMOVED, artifact_sha256=artifact.sha256)
        known = records.recorded_nested_hash(connections.ledger, plan.repository, where, before.sha256)
        return replace(
            own, artifact_sha256=before.sha256, nested_hash=known, came_from=before.path, from_build=before.build_id
        )  # fmt: skip

    for one in plan.taken:
        note(connections, replace(deed(one.artifact, one.instead), before=one.held or None))
    for record, before in found:
        late = deed(record, before)
        last = newest(connections.ledger, late.repository, late.path)
        if last is not None and (last.kind, last.nested_hash) != (late.kind, late.nested_hash):
            note(connections, late)
