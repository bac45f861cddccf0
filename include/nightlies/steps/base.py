"""What a partial build takes from the build that it names: all of that build that it does not list itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from include.cvmfs.revision.revision import Revision
from include.ledger.engine import Bind
from include.nightlies.errors import BaseUnusable
from include.nightlies.records import builds
from include.nightlies.records import publications as records
from include.nightlies.records import undos as undone
from include.nightlies.rules.build import BuildRecord
from include.nightlies.rules.current_content import CurrentTree, standing
from include.nightlies.rules.destinations import destination_of
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.requirements import is_required, is_taken
from include.settings.model import Slot


@dataclass(frozen=True, slots=True)
class Inherited:
    """One artifact of another build. `path`: where its tree really is; `hash`: that tree's nested catalog."""

    artifact: Artifact
    path: str
    hash: str


def inherited(
    ledger: Bind, slot: Slot, index: BuildIndex, before: BuildRecord | None, tree: Revision
) -> tuple[tuple[Inherited, ...], tuple[str, ...]]:
    """What the build takes from its base, and notes on what is optional and not to be had.

    What the build listed itself once is not taken from elsewhere. Raises BaseUnusable, before anything is changed, if
    the base is not in the ledger, of another date, not complete, or lacks something that this build requires.
    """
    if index.base is None:
        return (), ()
    base = builds.build(ledger, slot.name, index.base.build_id)
    if base is None:
        raise BaseUnusable(index.build_id, str(index.base), "the ledger does not have")
    if base.date != index.base.date:
        raise BaseUnusable(index.build_id, str(index.base), f"the ledger has for {base.date}")
    if not base.complete:
        raise BaseUnusable(index.build_id, str(index.base), "is not complete: its index expects more artifacts")
    own = {(artifact.project, artifact.platform) for artifact in index.artifacts}
    own |= {
        (artifact.project, artifact.platform) for artifact in index.rejected if artifact.project and artifact.platform
    }
    if before is not None:
        own |= {
            (record.artifact.project, record.artifact.platform)
            for record in before.artifacts
            if record.inherited is None
        }
    found, missing, notes = [], [], []
    for artifact, held in _offered(ledger, slot, base, own, tree):
        if held is not None:
            found.append(Inherited(artifact, held.path, held.hash))
        elif is_required(slot, artifact.project, artifact.platform):
            missing.append(f"{artifact.name}: {_why(ledger, base, artifact)}")
        else:
            notes.append(f"{artifact.name} is not taken from {index.base}: {_why(ledger, base, artifact)}")
    for (project, platform), why in _never_had(ledger, slot, base).items():
        if (project, platform) in own or not is_taken(slot, project, platform):
            continue
        if is_required(slot, project, platform):
            missing.append(f"{project}/{platform}: {why}")
        else:
            notes.append(f"{project}/{platform} is not taken from {index.base}: {why}")
    if missing:
        raise BaseUnusable(index.build_id, str(index.base), f"lacks {len(missing)} of its artifacts", missing)
    return tuple(found), tuple(notes)


def _offered(
    ledger: Bind, slot: Slot, base: BuildRecord, own: Collection[tuple[str, str]], tree: Revision
) -> list[tuple[Artifact, CurrentTree | None]]:
    offered = []
    for record in base.artifacts:
        artifact = record.artifact
        if (artifact.project, artifact.platform) in own or not is_taken(slot, artifact.project, artifact.platform):
            continue
        where = destination_of(slot, base, artifact)
        recorded = records.recorded_nested_hash(ledger, slot.repository, where, artifact.sha256)
        held = standing(tree, where)
        offered.append((artifact, held if held is not None and held.hash == recorded else None))
    return offered


def _never_had(ledger: Bind, slot: Slot, base: BuildRecord) -> dict[tuple[str, str], str]:
    """What the base itself should have and has no artifact of, and why: what its index refused, and what a base that is
    partial did not take yet from its parent builds."""
    has = {(record.artifact.project, record.artifact.platform) for record in base.artifacts}
    found = {
        (artifact.project, artifact.platform): f"rejected: {artifact.reason}"
        for artifact in base.rejected
        if artifact.project and artifact.platform and (artifact.project, artifact.platform) not in has
    }
    below, seen = base, {base.build_id}
    while below.base is not None and below.base.build_id not in seen:
        seen.add(below.base.build_id)
        deeper = builds.build(ledger, slot.name, below.base.build_id)
        if deeper is None:
            break
        below = deeper
        for record in below.artifacts:
            pair = (record.artifact.project, record.artifact.platform)
            if pair not in has:
                found.setdefault(pair, f"not taken from {below.key} yet by {base.build_id}, which is partial, too")
    return found


def _why(ledger: Bind, base: BuildRecord, artifact: Artifact) -> str:
    for (_, sha256), gone in undone.of_build(ledger, base.id).items():
        record = base.artifact(artifact.project, artifact.platform)
        if record is not None and (gone.artifact, sha256) == (record.id, artifact.sha256):
            return str(gone)
    for publication in records.publications_of_build(ledger, base.id):
        if (publication.project, publication.platform) == (artifact.project, artifact.platform):
            state = f"{publication.state.value}: {publication.reason}"
            return f"{state}, and it is not there any more" if publication.state.good else state
    return "no run has published it"
