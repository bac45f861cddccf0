"""First step of a run: what there is to publish, where it goes, in which order, and what is there already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime

from include.cvmfs.errors import TagError
from include.cvmfs.history import check_tag_name
from include.cvmfs.repository import Repository
from include.cvmfs.source import checked_destination
from include.cvmfs.view import is_below
from include.nightlies import builds, damage, records
from include.nightlies.destinations import build_directory, destination, overlapping
from include.nightlies.errors import BuildMissing, DependencyCycle, NightlyError
from include.nightlies.index import Artifact, BuildIndex
from include.nightlies.order import batches as into_batches
from include.nightlies.order import in_order, select
from include.nightlies.records import Figures, Publication
from include.nightlies.states import Phase, State
from include.nightlies.steps.sources import absolute, locate
from include.nightlies.steps.values import Batch, Item, Night, Plan
from include.publishers.connect import Connections
from include.settings.model import Slot
from include.settings.templates import fields, fill
from include.storage.errors import NotFound

Clock = Callable[[], datetime]
MAX_MAPPED = 200
"""Mapped tasks of one run: more cost the scheduler more than they bring."""

log = logging.getLogger(__name__)


def index_place(slot: Slot, build_date: date) -> str:
    """The key of a build's index in the slot's store."""
    return fill(slot.index, {"slot": slot.name, "date": build_date.isoformat()})


def read_index(connections: Connections, slot: Slot, wanted: date) -> tuple[BuildIndex, str]:
    """The build of a slot's date and the URL of its index; raises BuildMissing, BadIndex or StoreError."""
    store, key = connections.store(slot.store), index_place(slot, wanted)
    url = f"{store.url}/{key}"
    try:
        data = store.get(key)
    except NotFound:
        raise BuildMissing(slot.name, wanted, url) from None
    stores = [one.url for one in connections.site.stores.values()]
    return BuildIndex.parse(data, slot=slot.name, build_date=wanted, file=url, stores=stores), url


def plan_night(
    connections: Connections, night: Night, *, try_number: int, clock: Clock, max_mapped: int = MAX_MAPPED
) -> Plan:
    """Read the index, record the build, and have a publication in the ledger for every artifact of the night.

    What the repository's current revision, checked by its signature, holds already is settled as `unchanged` without
    being read again. Raises UnknownSetting, BuildMissing, BadIndex, UnknownChoice, BuildMoved, or what a store raises.
    """
    slot = connections.site.slot(night.slot)
    index, url = read_index(connections, slot, night.date)
    record = builds.record_build(connections.ledger, index, index_url=url, now=clock())
    notes = [f"{one.name} is rejected: {one.reason}" for one in index.rejected]
    chosen, more = _chosen(index, slot, night)
    items, refused = _items(connections, slot, index, chosen)
    notes += more + [f"{name} is refused: {error}" for name, error in refused.items()]
    repository = connections.head(slot.repository)
    batch = Batch(night.run, slot.repository, tuple(items), nested_directories(slot, index), dry_run=night.dry_run)
    open_items, settled = [], []
    for item in items:
        artifact = record.artifact(*item.name.split("/", 1))
        publication = records.plan(
            connections.ledger,
            batch.key(item),
            try_number=try_number,
            now=clock(),
            artifact=artifact.id if artifact else None,
            artifact_sha256=item.sha256,
            reason=f"build {index.build_id} of {index.date} ({night.reason})",
        )
        if publication.state.good:
            settled.append(publication)
        elif item.name in refused:
            settled.append(_refuse(connections, publication, refused[item.name], try_number, clock))
        elif (held := held_already(connections, repository, publication)) is not None:
            settled.append(_settle(connections, publication, held, repository, try_number, clock))
        else:
            open_items.append(item)
    plan = Plan(cut(batch, open_items, max_mapped), tuple(settled), tuple(notes))
    log.info(
        "planned build %s of slot %s for %s: %d to publish in %d batches, %d settled, %d notes",
        index.build_id, slot.name, index.date, len(open_items), len(plan.batches), len(settled), len(notes),
    )  # fmt: skip
    for note in notes:
        log.warning(note)
    return plan


def plan_publication(
    connections: Connections,
    *,
    run: str,
    repository: str,
    path: str,
    source: str,
    try_number: int,
    clock: Clock,
    sha256: str | None = None,
    tag: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
) -> Plan:
    """One tree or tarball by hand, as a run of one batch. `source` is a URL in one of the configured stores.

    Raises UnknownSetting, SourceNotAllowed, DestinationError or TagError before anything is done.
    """
    connections.site.repository(repository)
    locate(connections, source)
    where = checked_destination(path.rstrip("/") or "/")
    item = Item(name=path, destination=where, source=source, sha256=sha256)
    batch = Batch(run, repository, (item,), replace=overwrite, tag=tag, dry_run=dry_run)
    if tag is not None:
        _require_tag(connections, batch, item, tag)
    reason = f"by hand from {source}"
    records.plan(connections.ledger, batch.key(item), try_number=try_number, now=clock(), reason=reason)
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


def held_already(connections: Connections, repository: Repository, publication: Publication) -> str | None:
    """The nested hash at the destination, if it is the one under which this very artifact was published; else None.

    A destination that lost objects does not hold it: preparing it again sends them again.
    """
    if publication.artifact_sha256 is None:
        return None
    damages = damage.of_repository(connections.ledger, publication.repository)
    if any(is_below(one.path, publication.destination) for one in damages):
        return None
    recorded = records.recorded_nested_hash(
        connections.ledger, publication.repository, publication.destination, publication.artifact_sha256
    )
    if recorded is None:
        return None
    reference = repository.nested_at(publication.destination)
    return recorded if reference is not None and str(reference.hash) == recorded else None


def cut(batch: Batch, items: Sequence[Item], limit: int) -> tuple[Batch, ...]:
    """The batch in at most `limit` pieces, in order; on most nights each holds one item."""
    return tuple(replace(batch, items=piece) for piece in into_batches(items, limit))


def _require_tag(connections: Connections, batch: Batch, item: Item, tag: str) -> None:
    """Raise TagError for a name that cannot be given to the new revision.

    One that is taken may only name a revision with this very tree, as an earlier try or the same artifact left it.
    """
    check_tag_name(tag)
    repository = connections.head(batch.repository)
    taken = next((one for one in repository.tags() if one.name == tag), None)
    if taken is None:
        return
    before = records.publication(connections.ledger, batch.key(item))
    ours = {before.nested_hash if before is not None else None}
    if item.sha256 is not None:
        ours.add(records.recorded_nested_hash(connections.ledger, batch.repository, item.destination, item.sha256))
    there = repository.at(taken.hash).nested_at(item.destination)
    if there is None or str(there.hash) not in ours:
        what = f"names revision {taken.revision} of {batch.repository} already"
        raise TagError(tag, f"{what}; choose another name, or publish without a tag")


def _chosen(index: BuildIndex, slot: Slot, night: Night) -> tuple[tuple[Artifact, ...], list[str]]:
    offered = [
        one
        for one in index.artifacts
        if (not slot.projects or one.project in slot.projects)
        and (not slot.platforms or one.platform in slot.platforms)
    ]
    rejected = [one for one in index.rejected if one.project and one.platform]
    chosen = select(
        offered,
        projects=night.projects,
        platforms=night.platforms,
        known_projects=[*slot.projects, *(str(one.project) for one in rejected)],
        known_platforms=[*slot.platforms, *(str(one.platform) for one in rejected)],
    )
    try:
        return in_order(chosen), []
    except DependencyCycle as error:
        # the order only decides who comes first: better by priority alone than no night
        return tuple(sorted(chosen, key=lambda one: (-one.priority, one.name))), [f"ordered by priority alone: {error}"]


def _items(
    connections: Connections, slot: Slot, index: BuildIndex, chosen: Sequence[Artifact]
) -> tuple[list[Item], dict[str, NightlyError]]:
    items, refused = [], {}
    for one in chosen:
        source = absolute(connections, slot.store, one.url)
        where = destination(slot, index.build_id, one.project, one.platform, build_date=index.date)
        items.append(Item(one.name, where, source, one.sha256, one.size))
        try:
            locate(connections, source)
        except NightlyError as error:
            refused[one.name] = error
    for above, below in overlapping(item.destination for item in items):
        for item in items:
            if item.destination in (above, below):
                other = below if item.destination == above else above
                refused[item.name] = NightlyError(f"its destination overlaps with {other}. Rename one of them.")
    return items, refused


def _refuse(
    connections: Connections, publication: Publication, error: NightlyError, try_number: int, clock: Clock
) -> Publication:
    if publication.state is State.FAILED:
        return publication
    return records.move(
        connections.ledger, publication.key, State.FAILED, phase=Phase.PLAN, try_number=try_number, now=clock(),
        reason=str(error), error_class=type(error).__name__,
    )  # fmt: skip


def _settle(
    connections: Connections, publication: Publication, held: str, repository: Repository, try_number: int, clock: Clock
) -> Publication:
    manifest = repository.manifest
    before = records.history(connections.ledger, publication.repository, publication.destination)
    last = next((one for one in before if one.nested_hash == held and one.files is not None), None)
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
    return records.move(
        connections.ledger, publication.key, State.UNCHANGED, phase=Phase.PLAN, try_number=try_number, now=clock(),
        reason=f"revision {manifest.revision} holds this very artifact", figures=figures,
    )  # fmt: skip
