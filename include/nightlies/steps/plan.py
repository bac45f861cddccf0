"""First step of a run: the artifacts to publish, where they go, in which order, and what a partial build inherits."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from include.cvmfs.errors import TagError
from include.cvmfs.format.database import check_tag_name
from include.cvmfs.format.paths import is_below
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.source import checked_destination
from include.ledger.engine import Bind
from include.nightlies.errors import PLAN_REFUSED, BaseUnusable, BuildOvertaken, DependencyCycle, NightlyError
from include.nightlies.records import builds, damage, publications as records, undos as undone
from include.nightlies.records.damage import Damage
from include.nightlies.records.publications import plan_many
from include.nightlies.rules.build import BuildRecord, build_directory, destination_of, overlapping
from include.nightlies.rules.dependencies import is_required, is_taken
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import (
    CurrentTree,
    Figures,
    Move,
    Phase,
    Planned,
    Publication,
    Skip,
    State,
    standing,
)
from include.nightlies.rules.selection import compared, dealt, in_order, select, without_wrong_time
from include.nightlies.steps.build_status import fresh_artifacts
from include.nightlies.steps.sources import absolute, locate, read_again
from include.nightlies.steps.values import Attempt, Batch, Item, Night, Plan, PublicationRequest
from include.settings.model import Slot
from include.settings.text_types import fields
from include.site.site import Site


@dataclass(frozen=True, slots=True)
class Inherited:
    """Artifact of another build. `path`: where its tree really is; `hash`: that tree's nested catalog."""

    artifact: Artifact
    path: str
    hash: str


def inherited(
    ledger: Bind, slot: Slot, index: BuildIndex, before: BuildRecord | None, tree: Revision
) -> tuple[tuple[Inherited, ...], tuple[str, ...]]:
    """Return what the build takes from its base, and notes on what is optional and missing.

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
    """Return what the base itself should have and has no artifact of, and why: what its index refused, and what a base
    that is partial did not take yet from its parent builds."""
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


MAX_MAPPED = 200
"""Mapped tasks of one run: more cost the scheduler more than they bring."""
OVERTAKEN = 10
"""Number of times that a plan reads its index because another run of the date planned meanwhile."""

log = logging.getLogger(__name__)


def plan_night(site: Site, attempt: Attempt, night: Night, *, max_mapped: int = MAX_MAPPED) -> Plan:
    """Read the index, record the build, and have a publication in the ledger for every artifact that the run takes.

    The last pass of a night takes all; one before it only what is new, and nothing of a partial build's parent build.
    What the repository's current revision, checked by its signature, holds already is settled as `unchanged` without
    being read again. Raises SettingsError, BuildMissing, BadIndex, UnknownChoice, BuildMoved, BaseUnusable,
    BuildOvertaken, or what a store raises; nothing is recorded then.
    """
    slot = site.settings.slot(night.slot)
    seen = _looked_at(site, attempt, slot, night)
    items, refused, notes = _choose(site, attempt, slot, night, seen)
    nested = nested_directories(slot, seen.index)
    batch = Batch(night.run, slot.repository, tuple(items), nested, dry_run=night.dry_run)
    settled = _settled(site.ledger, seen, refused, attempt, batch, night)
    left = [item for item in items if item.name not in settled]
    own, others = ([item for item in left if (item.inherits is None) is listed] for listed in (True, False))
    plan = Plan(
        cut(batch, own, max_mapped), tuple(settled.values()), tuple(notes),
        replace(batch, items=tuple(others)) if others else None,
    )  # fmt: skip
    log.info(
        "planned %s of slot %s: %d to publish in %d batches, %d to take from %s, %d settled, %d notes",
        seen.record.key, slot.name, len(own), len(plan.batches), len(others), seen.index.base or "no other build",
        len(settled), len(notes),
    )  # fmt: skip
    for note in notes:
        log.warning(note)
    return plan


def plan_publication(site: Site, attempt: Attempt, request: PublicationRequest) -> Plan:
    """Return one tree or tarball by hand, as a run of one batch.

    Raises SettingsError, SourceNotAllowed, DestinationError or TagError before anything is done.
    """
    fqrn, source, tag = request.repository, request.source, request.tag
    site.settings.repository(fqrn)
    locate(site, source)
    where = checked_destination(request.path.rstrip("/") or "/")
    item = Item(name=request.path, destination=where, source=source, sha256=request.sha256)
    batch = Batch(attempt.run, fqrn, (item,), replace=request.overwrite, tag=tag, dry_run=request.dry_run)
    if tag is not None:
        _require_tag(site, batch, item, tag)
    planned, now = Planned(reason=f"by hand from {source}"), attempt.clock()
    records.plan(site.ledger, batch.key(item), planned, try_number=attempt.number, now=now)
    return Plan((batch,))


def nested_directories(slot: Slot, index: BuildIndex) -> tuple[str, ...]:
    """The directories above a build's artifacts that get a catalog of their own, from the slot's to the build's."""
    top = build_directory(slot, index.build_id, build_date=index.date)
    found: list[str] = []
    path = ""
    seen = False
    for template, name in zip(slot.destination.split("/")[1:], top.split("/")[1:], strict=False):
        path = f"{path}/{name}"
        seen = seen or bool(fields(template) & {"slot", "build_id", "date"})
        if seen:
            found.append(path)
    return tuple(found)


def held_already(
    ledger: Bind, repository: Repository, publication: Publication, damages: Sequence[Damage]
) -> str | None:
    """The nested hash at the destination, if it is the one under which this very artifact was published; else None.

    A destination that lost objects does not hold it: preparing it again sends them again.
    """
    if publication.artifact_sha256 is None:
        return None
    if any(is_below(damaged.path, publication.destination) for damaged in damages):
        return None
    recorded = records.recorded_nested_hash(
        ledger, publication.repository, publication.destination, publication.artifact_sha256
    )
    if recorded is None:
        return None
    held = standing(repository.revision, publication.destination)
    return recorded if held is not None and held.hash == recorded else None


def cut(batch: Batch, items: Sequence[Item], limit: int) -> tuple[Batch, ...]:
    """The batch in at most `limit` pieces of about the same work, in order; a small build has one for each item."""
    pieces = dealt(items, [item.size for item in items], limit, os.cpu_count() or 1)
    return tuple(replace(batch, items=piece) for piece in pieces)


@dataclass(frozen=True, slots=True)
class _LookedAt:
    """A build as its index and the ledger have it, and what it takes from another one; ``notes``: faults to read."""

    repository: Repository
    index: BuildIndex
    record: BuildRecord
    taken: tuple[Inherited, ...]
    notes: tuple[str, ...]


def _looked_at(site: Site, attempt: Attempt, slot: Slot, night: Night) -> _LookedAt:
    """Read the index and record its build; again if another run recorded one meanwhile, whose index may be later."""
    for _ in range(OVERTAKEN - 1):
        try:
            return _look_once(site, attempt, slot, night)
        except BuildOvertaken as overtaken:
            log.info("%s", overtaken)
    return _look_once(site, attempt, slot, night)


def _look_once(site: Site, attempt: Attempt, slot: Slot, night: Night) -> _LookedAt:
    ledger = site.ledger
    recorded = builds.seen_of(ledger, slot.name, night.date)
    read, url = read_again(site, slot, night.date)
    repository = site.head(slot.repository)
    before = builds.build(ledger, slot.name, read.build_id)
    trusted, wrong = without_wrong_time(read, attempt.clock())
    found = compared(trusted, before)
    index = found.index
    taken, lacking = inherited(site.ledger, slot, index, before, repository.revision) if night.last else ((), ())
    parts = [tree.artifact for tree in taken]
    record = builds.record_build(ledger, index, index_url=url, now=attempt.clock(), inherited=parts, seen=recorded)
    rejected = (f"{artifact.name} is rejected: {artifact.reason}" for artifact in index.rejected)
    notes = (*([wrong] if wrong else ()), *found.notes, *lacking, *rejected)
    return _LookedAt(repository, index, record, taken, notes)


def _require_tag(site: Site, batch: Batch, item: Item, tag: str) -> None:
    """Raise TagError for a name that cannot be given to the new revision.

    One that is taken may only name a revision with this very tree, as an earlier try or the same artifact left it.
    """
    check_tag_name(tag)
    repository = site.head(batch.repository)
    taken = next((known for known in repository.tags() if known.name == tag), None)
    if taken is None:
        return
    before = records.publication(site.ledger, batch.key(item))
    ours = {before.nested_hash if before is not None else None}
    if item.sha256 is not None:
        ours.add(records.recorded_nested_hash(site.ledger, batch.repository, item.destination, item.sha256))
    there = repository.at(taken.hash).nested_at(item.destination)
    if there is None or str(there.hash) not in ours:
        what = f"names revision {taken.revision} of {batch.repository} already"
        raise TagError(tag, f"{what}; choose another name, or publish without a tag")


def _choose(
    site: Site, attempt: Attempt, slot: Slot, night: Night, seen: _LookedAt
) -> tuple[list[Item], dict[str, NightlyError], list[str]]:
    """Return what this pass takes, in order; what of it is refused, and why; and faults to read."""
    index, notes = seen.index, list(seen.notes)
    chosen, more = _chosen([*index.artifacts, *(tree.artifact for tree in seen.taken)], index, slot, night)
    if not night.last:
        arrived = fresh_artifacts(site.ledger, slot, night, index, seen.record, attempt.clock())
        fresh = set(arrived.fresh)
        chosen = tuple(candidate for candidate in chosen if candidate.name in fresh)
        notes += [f"{name}: {why}" for name, why in arrived.held.items()]
    items, refused = _items(site, slot, index, chosen, ordered=not more)
    notes += more + [f"{name} is refused: {error}" for name, error in refused.items()]
    from_base, links = {tree.artifact.name: tree.path for tree in seen.taken}, slot.partial == "link"
    items = [
        replace(item, inherits=from_base[item.name], linked=links, needs=()) if item.name in from_base else item
        for item in items
    ]
    return items, refused, notes


def _settled(
    ledger: Bind, seen: _LookedAt, refused: Mapping[str, NightlyError], attempt: Attempt, batch: Batch, night: Night
) -> dict[str, Publication]:
    """Record a publication of every item, and return those that need no doing: refused, undone, or held already."""
    artifacts = {listed.artifact.name: listed for listed in seen.record.artifacts}
    planned = plan_many(
        ledger,
        {
            batch.key(item): Planned(
                listed.id if (listed := artifacts.get(item.name)) else None, item.sha256,
                _reason(seen.index, night, item),
            )
            for item in batch.items
        },
        try_number=attempt.number,
        now=attempt.clock(),
    )  # fmt: skip
    undone_before = undone.of_build(ledger, seen.record.id)
    damages = damage.of_repository(ledger, batch.repository)
    settled = {}
    for item in batch.items:
        artifact, publication = artifacts.get(item.name), planned[batch.key(item)]
        if publication.state.good:
            settled[item.name] = publication
        elif item.name in refused:
            settled[item.name] = _refuse(ledger, attempt, publication, refused[item.name])
        elif artifact and (gone := undone_before.get((artifact.id, artifact.artifact.sha256))) is not None:
            settled[item.name] = _skip(ledger, attempt, publication, str(gone))
        elif (held := held_already(ledger, seen.repository, publication, damages)) is not None:
            settled[item.name] = _settle(ledger, attempt, publication, held, seen.repository)
    return settled


def _reason(index: BuildIndex, night: Night, item: Item) -> str:
    reason = f"build {index.build_id} of {index.date} ({night.reason})"
    return reason if item.inherits is None else f"{reason}, inherited from {index.base}"


def _chosen(
    listed: Sequence[Artifact], index: BuildIndex, slot: Slot, night: Night
) -> tuple[tuple[Artifact, ...], list[str]]:
    offered = [artifact for artifact in listed if is_taken(slot, artifact.project, artifact.platform)]
    rejected = [artifact for artifact in index.rejected if artifact.project and artifact.platform]
    chosen = select(
        offered,
        projects=night.projects,
        platforms=night.platforms,
        known_projects=[*slot.projects, *(str(artifact.project) for artifact in rejected)],
        known_platforms=[*slot.platforms, *(str(artifact.platform) for artifact in rejected)],
    )
    try:
        return in_order(chosen), []
    except DependencyCycle as error:
        # the order only decides who comes first: better by priority alone than no night
        return tuple(sorted(chosen, key=lambda artifact: (-artifact.priority, artifact.name))), [
            f"ordered by priority alone: {error}"
        ]


def _items(
    site: Site, slot: Slot, index: BuildIndex, chosen: Sequence[Artifact], *, ordered: bool
) -> tuple[list[Item], dict[str, NightlyError]]:
    items: list[Item] = []
    refused: dict[str, NightlyError] = {}
    names = {artifact.name for artifact in chosen}
    rejected = {artifact.name: artifact.reason for artifact in index.rejected}
    for artifact in chosen:
        source = absolute(site, slot.store, artifact.url)
        where = destination_of(slot, index, artifact)
        needs = [f"{name}/{artifact.platform}" for name in artifact.dependencies]
        wanted = tuple(n for n in needs if ordered and n in names)
        items.append(Item(artifact.name, where, source, artifact.sha256, artifact.size, wanted, store=slot.store))
        for name in needs:
            if name in rejected:
                refused[artifact.name] = PLAN_REFUSED(
                    f"blocked: it depends on {name}, which is rejected: {rejected[name]}"
                )
        try:
            locate(site, source, slot.store)
        except NightlyError as error:
            refused[artifact.name] = error
    for above, below in overlapping(item.destination for item in items):
        for item in items:
            if item.destination in (above, below):
                other = below if item.destination == above else above
                refused[item.name] = PLAN_REFUSED(f"its destination overlaps with {other}. Rename one of them.")
    return items, refused


def _refuse(ledger: Bind, attempt: Attempt, publication: Publication, error: NightlyError) -> Publication:
    if publication.state is State.FAILED:
        return publication
    return attempt.move(ledger, publication.key, Move.failed(Phase.PLAN, error))


def _skip(ledger: Bind, attempt: Attempt, publication: Publication, why: str) -> Publication:
    if publication.state is State.SKIPPED:
        return publication
    redo = f"nightshift nightly redo --slot {publication.slot} --build {publication.build_id}"
    reason = f"{why}. To install it again: {redo}; then clear task plan with downstream."
    return attempt.move(ledger, publication.key, Move(State.SKIPPED, Phase.PLAN, reason, skip=Skip.UNDONE))


def _settle(ledger: Bind, attempt: Attempt, publication: Publication, held: str, repository: Repository) -> Publication:
    manifest = repository.manifest
    before = records.history(ledger, publication.repository, publication.destination)
    last = next((earlier for earlier in before if earlier.nested_hash == held and earlier.files is not None), None)
    figures = Figures(
        files=last.files if last else None,
        bytes=last.bytes if last else None,
        objects_reused=(last.objects_new or 0) + (last.objects_reused or 0) if last else None,
        revision_before=manifest.revision,
        revision_after=manifest.revision,
        root_hash=str(manifest.root),
        nested_hash=held,
        objects_new=0,
        bytes_uploaded=0,
        lease_held_s=0.0,
    )
    reason = f"revision {manifest.revision} holds this very artifact"
    return attempt.move(ledger, publication.key, Move(State.UNCHANGED, Phase.PLAN, reason, figures))
