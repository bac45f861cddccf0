"""Links and tag of a build that is whole; of one that is not, why they stay as they are."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.format.paths import is_below, link_target
from include.cvmfs.revision.revision import Revision
from include.gateway.errors import TagRefused
from include.ledger.engine import Bind
from include.nightlies.attempt import Attempt
from include.nightlies.errors import BuildIncomplete, BuildMissing
from include.nightlies.records import builds
from include.nightlies.records import links as linked
from include.nightlies.records import publications as records
from include.nightlies.records.links import LINK, TAG, LinkRecord
from include.nightlies.rules.build import BuildRecord
from include.nightlies.rules.destinations import build_directory
from include.nightlies.rules.links import LinkDecision, LinkState, Present, decide, links_of, stayed
from include.nightlies.rules.publication import Publication
from include.nightlies.steps.completeness import Completeness
from include.nightlies.steps.provenance import SetLink, vouch_links
from include.nightlies.steps.set_links import LinkChange, set_links
from include.nightlies.steps.values import Night
from include.publishers.base import Published
from include.settings.model import Slot
from include.settings.templates import fill
from include.site.site import Site

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Linked:
    """What became of a build's links and of its tag. ``revision``: the last that was made, None: none was."""

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
