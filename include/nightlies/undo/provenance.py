"""Notes who took what back, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from include.care.provenance.document import ChangeKind, ProvenanceRecord
from include.care.provenance.records import begun, newest, note
from include.nightlies.attempt import Attempt
from include.nightlies.records import publications as records
from include.nightlies.rules.build import ArtifactRecord
from include.nightlies.rules.destinations import destination_of
from include.site.site import Site

if TYPE_CHECKING:
    from include.nightlies.undo.plan import Predecessor, UndoPlan


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
