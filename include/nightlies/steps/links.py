"""Links and tag of a complete build, set by commits; of an incomplete one, why they stay as they are."""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.paths import ancestors, common_top, is_below, link_target
from include.cvmfs.revision.revision import Revision
from include.gateway.errors import PathBusy, TagRefused
from include.ledger.engine import Bind
from include.nightlies.errors import BuildIncomplete, BuildMissing
from include.nightlies.records import builds, links as linked, publications as records, quality
from include.nightlies.records.links import LINK, TAG, LinkRecord
from include.nightlies.rules.build import (
    ArtifactRecord,
    BuildRecord,
    LinkDecision,
    LinkState,
    Present,
    build_directory,
    decide,
    destination_of,
    links_of,
    relative,
    stayed,
)
from include.nightlies.rules.dependencies import Pair, never_listed, required_pairs
from include.nightlies.rules.publication import Publication, standing
from include.nightlies.steps.provenance import SetLink, vouch_links
from include.nightlies.steps.values import Attempt, Night
from include.publishers.base import Published
from include.settings.model import Slot
from include.settings.text_types import fill
from include.site.site import Site


class Completeness:
    """Judges one build against one revision after the other. The ledger is read once."""

    def __init__(self, ledger: Bind, slot: Slot, build: BuildRecord) -> None:
        self.build = build
        self._bind = ledger
        self._slot = slot
        self._published: dict[int, list[Publication]] = {}
        for publication in records.publications_of_build(ledger, build.id):
            if publication.artifact is not None:
                self._published.setdefault(publication.artifact, []).append(publication)
        self._wanted: dict[Pair, tuple[str, str]] = {}
        self._others: list[tuple[str, str]] = []
        self._faults: list[str] = []
        self._look_at_ledger()

    def lacking(self, tree: Revision) -> list[str]:
        """Return what is missing in that revision, each with its reason; nothing if the build is whole."""
        gone = []
        for pair, (where, recorded) in self._wanted.items():
            if not _stands(tree, where, recorded):
                what = "nothing is" if standing(tree, where) is None else "another tree is"
                gone.append(f"{'/'.join(pair)}: was published, and now {what} at {where}")
        if not (self._wanted or self._faults or any(_stands(tree, *other) for other in self._others)):
            # nothing is required, and yet no link may lead to what is not there
            return ["nothing of it is in the repository"]
        return self._faults + gone

    def _look_at_ledger(self) -> None:
        build, slot = self.build, self._slot
        rejected = {(artifact.project, artifact.platform): artifact.reason for artifact in build.rejected}
        self._faults += [
            f"{artifact.name}: rejected: {artifact.reason}"
            for artifact in build.rejected
            if not (artifact.project and artifact.platform)
        ]
        known = {(row.artifact.project, row.artifact.platform): row for row in build.artifacts}
        listed = [*known, *((str(a), str(b)) for a, b in rejected if a and b)]
        required = required_pairs(slot, listed)
        for pair in required:
            record = known.get(pair)
            if record is None or pair in rejected:
                # also what was published before: which of two is meant now cannot be known
                reason = f"rejected: {rejected[pair]}" if pair in rejected else "not in the index"
                self._faults.append(f"{'/'.join(pair)}: {reason}")
            elif (fault := self._fault(record)) is not None:
                self._faults.append(f"{'/'.join(pair)}: {fault}")
        self._faults += [f"{name}: nothing of it is in the index" for name in never_listed(slot, listed)]
        if not required:
            self._others = [found for record in known.values() if (found := self._recorded(record))[1]]
        if not build.complete:
            self._faults.append("its index is not complete yet")
        self._faults += map(str, quality.blocked(self._bind, slot.name, build.build_id, slot.quality))

    def _recorded(self, record: ArtifactRecord) -> tuple[str, str]:
        """Return where an artifact is to be, and the nested catalog that it became there; "" if it never was
        published."""
        artifact = record.artifact
        where = destination_of(self._slot, self.build, artifact)
        return where, records.recorded_nested_hash(self._bind, self._slot.repository, where, artifact.sha256) or ""

    def _fault(self, record: ArtifactRecord) -> str | None:
        artifact = record.artifact
        where, recorded = self._recorded(record)
        tries = self._published.get(record.id, [])
        if not recorded:
            return f"{tries[0].state.value}: {tries[0].reason}" if tries else "no run has published it"
        self._wanted[artifact.project, artifact.platform] = (where, recorded)
        if not any(publication.nested_hash == recorded and publication.verified_at for publication in tries):
            return "published, and not read back yet"
        return None


def _stands(tree: Revision, where: str, recorded: str) -> bool:
    held = standing(tree, where)
    return held is not None and held.hash == recorded


Decide = Callable[[Revision, Sequence[str]], Mapping[str, str]]
"""Given a revision and places: which links are to be set there, and the absolute path that each leads to."""

_DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)


@dataclass(frozen=True, slots=True)
class LinkChange:
    """Links to set: what ``decide`` returns for the places.

    Directories above are made, those in ``nested`` as nested catalogs. ``tag`` names the last revision; without a link
    to set its lease is on ``beside``.
    """

    places: Sequence[str]
    decide: Decide
    beside: str = ""
    nested: Collection[str] = ()
    tag: NewTag | None = None


def set_links(site: Site, attempt: Attempt, fqrn: str, change: LinkChange) -> tuple[Published, ...]:
    """Set the links; under each lease ``decide`` is asked again, of what is there then.

    One lease on the directory above all of them and one revision; if a lease below it is held, one lease on each
    link's own path. Nothing to do takes no lease. Raises PathBusy, DestinationError, what ``decide`` raises, and what a
    commit raises.
    """
    now, holder, tag = attempt.clock(), attempt.holder, change.tag
    publisher, entry = site.publisher(fqrn), _DIRECTORY.changed(mtime=int(now.timestamp()))

    def setting(paths: Sequence[str]) -> Callable[[Edit], None]:
        def apply(edit: Edit) -> None:
            for path, target in change.decide(edit, paths).items():
                for above in list(ancestors(path))[:-1]:
                    if edit.lookup(above) is None:
                        edit.make_nested(above, entry) if above in change.nested else edit.add(above, entry)
                edit.symlink(path, relative(path, target), now=int(now.timestamp()))

        return apply

    head = site.head(fqrn)
    view = head.revision
    moving = list(change.decide(view, change.places))
    if not moving:
        if tag is None:
            return ()
        return (publisher.change(change.beside, setting(change.places), holder=holder, now=now, tag=tag),)
    tops = sorted({_topmost_missing(view, path) for path in moving})
    together = common_top(tops)
    if len(moving) > 1 and together:
        try:
            return (publisher.change(together, setting(moving), holder=holder, now=now, tag=tag),)
        except PathBusy as busy:
            log.info("%d links one by one, since %s", len(moving), busy)
    done = []
    for number, path in enumerate(moving, 1):
        head = site.head(fqrn)
        lease = _topmost_missing(head.revision, path)
        last = tag if number == len(moving) else None
        done.append(publisher.change(lease, setting([path]), holder=holder, now=now, tag=last))
    return tuple(done)


def _topmost_missing(view: Revision, path: str) -> str:
    """Return where the lease for a link has to be: the parent of a lease's path must be there."""
    return next((above for above in ancestors(path) if view.lookup(above) is None), path)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Linked:
    """Outcome for a build's links and its tag. ``revision``: the last that was made, None: none was."""

    links: tuple[LinkDecision, ...] = ()
    tag: LinkDecision | None = None
    revision: int | None = None

    def to_json(self) -> dict[str, Any]:
        every = [*self.links, *([self.tag] if self.tag else [])]
        states = {link.path: f"{link.state.value}: {link.reason}" for link in every}
        return {"revision": self.revision, "links": states}


def link_night(site: Site, attempt: Attempt, night: Night, build: BuildRecord) -> Linked:
    """Let the slot's links lead to the build and name the revision, if the build is whole and the links may move.

    Whatever is decided is in the ledger with its reason. The same build again changes nothing. Raises PathBusy, and
    what a commit raises.
    """
    slot = site.settings.slot(night.slot).without(night.without)
    paths, target = links_of(slot, build.date), build_directory(slot, build.build_id, build_date=build.date)
    name = _tag_name(slot, build)
    if not paths and name is None:
        return Linked()
    completeness, decisions = Completeness(site.ledger, slot, build), dict[str, LinkDecision]()
    before: dict[str, str | None] = {}

    def wanted(view: Revision, places: Sequence[str]) -> Mapping[str, str]:
        if missing := completeness.lacking(view):
            raise BuildIncomplete(build.build_id, missing)
        for path in places:
            present = _present(site.ledger, slot, view, path)
            decisions[path], before[path] = decide(path, build.key, target, present), present.target
        return {path: target for path in places if decisions[path].state is LinkState.MOVED}

    head = site.head(slot.repository)
    taken = name is not None and any(known.name == name for known in head.tags())
    tag = None if name is None or taken else NewTag(name, f"{slot.name}, {build.key}")
    done: tuple[Published, ...]
    try:
        beside = paths[0] if paths else target
        done = _set(site, attempt, slot.repository, LinkChange(paths, wanted, beside, tag=tag))
    except BuildIncomplete as incomplete:
        return keep_links(site, attempt, night, build, str(incomplete))
    made = max((published.revision for published in done if not published.unchanged), default=None)
    outcome = Linked(tuple(decisions[path] for path in paths), _tag_decision(name, taken=taken, revision=made), made)
    recorded = _recorded(site.ledger, attempt, slot, build, outcome)
    set_now = [
        SetLink(
            link.path, target, before[link.path], link.reason, _revision_of(done, link.path, head.manifest.revision),
            build.build_id, moved=link.state is LinkState.MOVED,
        )
        for link in outcome.links if link.state in (LinkState.MOVED, LinkState.UNCHANGED)
    ]  # fmt: skip
    vouch_links(site, attempt, slot, set_now)
    return recorded


def keep_links(site: Site, attempt: Attempt, night: Night, build: BuildRecord, reason: str) -> Linked:
    """Record why the slot's links do not lead to a build, and that its revision gets no name."""
    slot = site.settings.slot(night.slot)
    target = build_directory(slot, build.build_id, build_date=build.date)
    name = _tag_name(slot, build)
    tag = None if name is None else LinkDecision(name, target, LinkState.STAYED, reason)
    outcome = Linked(stayed(links_of(slot, build.date), target, reason), tag)
    return _recorded(site.ledger, attempt, slot, build, outcome)


def build_of_night(ledger: Bind, night: Night) -> BuildRecord:
    """The build that the run installed. Raises BuildMissing."""
    found = build_taken(ledger, night, records.publications_of_run(ledger, night.run))
    if found is None:
        raise BuildMissing(night.slot, night.date, "the ledger")
    return found


def build_taken(ledger: Bind, night: Night, publications: Iterable[Publication]) -> BuildRecord | None:
    """The build that a run took its artifacts from; the newest of its date where it took none."""
    for publication in publications:
        if publication.slot is not None and publication.build_id is not None:
            return builds.build(ledger, publication.slot, publication.build_id)
    return next(iter(builds.builds_of(ledger, night.slot, night.date)), None)


def _set(site: Site, attempt: Attempt, fqrn: str, change: LinkChange) -> tuple[Published, ...]:
    try:
        return set_links(site, attempt, fqrn, change)
    except TagRefused:
        if change.tag is None or all(tag.name != change.tag.name for tag in site.head(fqrn).tags()):
            raise
        # another run of the same build was quicker
        return set_links(site, attempt, fqrn, replace(change, tag=None))


def _revision_of(done: Sequence[Published], path: str, seen: int) -> int:
    """The revision in which a link was set, with the others or alone; `seen` for one that was there already."""
    return max(
        (published.revision for published in done if not published.unchanged and is_below(path, published.path)),
        default=seen,
    )


def _present(ledger: Bind, slot: Slot, view: Revision, path: str) -> Present:
    entry = view.lookup(path)
    if entry is None:
        return Present(there=False, key=linked.led_to(ledger, slot.repository, path))
    if not entry.is_symlink:
        return Present(there=True)
    target = link_target(path, entry.symlink)
    return Present(there=True, target=target, key=builds.key_of_directory(ledger, slot, target))


def _tag_name(slot: Slot, build: BuildRecord) -> str | None:
    if slot.tag is None:
        return None
    return fill(slot.tag, {"slot": slot.name, "build_id": build.build_id, "date": build.date.isoformat()})


def _tag_decision(name: str | None, *, taken: bool, revision: int | None) -> LinkDecision | None:
    if name is None:
        return None
    if taken:
        return LinkDecision(name, "", LinkState.UNCHANGED, "names a revision already")
    return LinkDecision(name, "", LinkState.MOVED, f"names revision {revision}")


def _recorded(ledger: Bind, attempt: Attempt, slot: Slot, build: BuildRecord, outcome: Linked) -> Linked:
    every = [(LINK, link) for link in outcome.links] + ([(TAG, outcome.tag)] if outcome.tag else [])
    for kind, link in every:
        log.info("%s %s: %s for %s: %s", kind, link.path, link.state.value, build.key, link.reason)
    linked.record(
        ledger,
        [
            LinkRecord(
                kind, slot.repository, link.path, slot.name, build.build_id, build.date, link.state.value, link.reason,
                attempt.run, outcome.revision if link.state is LinkState.MOVED else None, attempt.clock(),
            )
            for kind, link in every
        ],
    )  # fmt: skip
    return outcome
