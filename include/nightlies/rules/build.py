"""Build and its artifacts as the ledger has them, the order of builds, their destinations, and links.

A destination is the template of the slot, filled with checked names.
"""

from __future__ import annotations

import datetime as dt
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from functools import total_ordering
from string import Formatter

from include.cvmfs.revision.revision import Revision
from include.nightlies.errors import NightlyError
from include.nightlies.rules.index import Artifact, BuildIndex, ParentBuild, RejectedArtifact
from include.settings.model import Links, Slot
from include.settings.text_types import MAX_DESTINATION_LENGTH, NAME, fields, fill, name_fault

_DIGITS = frozenset("0123456789")
_PARTS = re.compile(r"[0-9]+|[^0-9]+")


@total_ordering
@dataclass(frozen=True, slots=True)
class BuildKey:
    """Orders builds; numbers within an id count as numbers, so that b9 is before b10."""

    date: dt.date
    build_id: str

    def __lt__(self, other: BuildKey) -> bool:
        return self._sorted() < other._sorted()

    def __str__(self) -> str:
        return f"build {self.build_id} of {self.date}"

    def _sorted(self) -> tuple[object, ...]:
        parts = _PARTS.findall(self.build_id)
        # the id itself comes last: b1 and b01 are two builds
        return (
            self.date,
            tuple((0, int(part), "") if part[0] in _DIGITS else (1, 0, part) for part in parts),
            self.build_id,
        )


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """An artifact as the ledger knows it; `id` is what a publication refers to.

    `inherited`: the build that a partial one took it from; None: its own index lists it.
    """

    id: int
    build: int
    artifact: Artifact
    first_seen_at: datetime
    updated_at: datetime
    inherited: str | None = None


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """A build as the ledger knows it, with all artifacts that were ever listed for it."""

    id: int
    slot: str
    build_id: str
    date: dt.date
    complete: bool
    index_url: str
    rejected: tuple[RejectedArtifact, ...]
    first_seen_at: datetime
    updated_at: datetime
    artifacts: tuple[ArtifactRecord, ...]
    base: ParentBuild | None = None
    serial: int | None = None
    written_at: datetime | None = None

    @property
    def key(self) -> BuildKey:
        """Its place among the builds of its slot."""
        return BuildKey(self.date, self.build_id)

    def artifact(self, project: str, platform: str) -> ArtifactRecord | None:
        """The artifact of that project and platform, or None."""
        wanted = (project, platform)
        return next(
            (record for record in self.artifacts if (record.artifact.project, record.artifact.platform) == wanted), None
        )


def destination(slot: Slot, build_id: str, project: str, platform: str, *, build_date: date | None = None) -> str:
    """The absolute path of one artifact, without a trailing slash; raises NightlyError."""
    values = _build_values(slot, slot.destination, build_id, build_date)
    values["project"] = check_name("project", project)
    values["platform"] = check_name("platform", platform)
    path = fill(slot.destination, values)
    if len(path) > MAX_DESTINATION_LENGTH:
        what = f"the destination of {project}/{platform} is longer than {MAX_DESTINATION_LENGTH} characters"
        raise NightlyError(f"slot {slot.name}: {what}. Shorten the slot's `destination` or the names.")
    return path


def destination_of(slot: Slot, build: BuildIndex | BuildRecord, artifact: Artifact) -> str:
    """Return the `destination` of an artifact as a build lists it."""
    return destination(slot, build.build_id, artifact.project, artifact.platform, build_date=build.date)


def build_directory(slot: Slot, build_id: str, *, build_date: date | None = None) -> str:
    """The deepest directory that every artifact of a build shares, such as `/nightlies/main/b42`."""
    template = _shared(slot)
    return fill(template, _build_values(slot, template, build_id, build_date))


def build_of_directory(slot: Slot, path: str) -> Mapping[str, str] | None:
    """The `build_id`, the `date`, or both, in the path of a build's directory of the slot; None for another path."""
    return _read(_shared(slot), slot, path)


def build_of_tag(slot: Slot, name: str) -> Mapping[str, str] | None:
    """Return what a tag's name contains by the slot's template, as `build_of_directory`; None for a tag of another
    kind."""
    return None if slot.tag is None else _read(slot.tag, slot, name)


def folder_of_builds(slot: Slot) -> str:
    """The directory above all builds of a slot: neither it nor what is above it goes with its builds."""
    literal: list[str] = []
    for component in _shared(slot).split("/"):
        if fields(component) & {"build_id", "date"}:
            break
        literal.append(fill(component, {"slot": slot.name}))
    return "/".join(literal)


def build_directories(slot: Slot, tree: Revision) -> tuple[str, ...]:
    """The directories of a revision that the slot's template takes for those of builds."""
    found = [""]
    for component in _shared(slot).split("/")[1:]:
        if not fields(component) - {"slot"}:
            name = fill(component, {"slot": slot.name})
            found = [path for above in found if (path := f"{above}/{name}") and _is_directory(tree, path)]
        else:
            found = [f"{above}/{entry.name}" for above in found for entry in tree.listing(above) if entry.is_directory]
    return tuple(path for path in found if build_of_directory(slot, path) is not None)


def _is_directory(tree: Revision, path: str) -> bool:
    entry = tree.lookup(path)
    return entry is not None and entry.is_directory


def _read(template: str, slot: Slot, text: str) -> Mapping[str, str] | None:
    pattern = ""
    if not fields(template) & {"build_id", "date"}:
        return None
    seen: set[str] = set()
    for literal, name, _, _ in Formatter().parse(template):
        pattern += re.escape(literal)
        if name == "slot":
            pattern += re.escape(slot.name)
        elif name is not None:
            known = NAME.pattern if name == "build_id" else r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
            pattern += f"(?P={name})" if name in seen else f"(?P<{name}>{known})"
            seen.add(name)
    found = re.fullmatch(pattern, text)
    return found.groupdict() if found else None


def _shared(slot: Slot) -> str:
    shared = []
    for component in slot.destination.split("/"):
        if fields(component) & {"project", "platform"}:
            break
        shared.append(component)
    return "/".join(shared) or "/"


def overlapping(destinations: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Pairs of destinations where one is, or lies below, the other; each pair names the upper one first.

    A nested catalog cannot be swapped without the ones below it, so neither may be published.
    """
    upper: list[str] = []
    found = []
    for path in sorted(destinations, key=lambda path: path.split("/")):
        while upper and path != upper[-1] and not path.startswith(upper[-1].rstrip("/") + "/"):
            upper.pop()
        found += [(above, path) for above in upper]
        upper.append(path)
    return tuple(found)


def _build_values(slot: Slot, template: str, build_id: str, build_date: date | None) -> dict[str, str]:
    values = {"slot": check_name("slot", slot.name), "build_id": check_name("build", build_id)}
    if build_date is not None:
        values["date"] = build_date.isoformat()
    elif "date" in fields(template):
        raise NightlyError(
            f"slot {slot.name}: its destination has {{date}} and no date was given. Pass the build's date."
        )
    return values


def check_name(kind: str, text: str) -> str:
    """`text` itself if it may name a `kind` (slot, build, project, platform); else NightlyError."""
    fault = name_fault(text)
    if fault:
        raise NightlyError(f"{kind} {text!r} {fault}. Rename it: names become components of paths.")
    return text


# -- links of a slot: `latest` and weekdays, which move forward in (build date, build id) only

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LATEST = "latest"


class LinkState(Enum):
    """State of a link, or of a tag."""

    MOVED = "moved"
    UNCHANGED = "unchanged"
    STAYED = "stayed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Present:
    """Content of the place of a link. `target`: the path that a symbolic link leads to, None for anything else.

    `key`: the build that it leads to, or of a link that is gone the one that it led to last; None: not known.
    """

    there: bool
    target: str | None = None
    key: BuildKey | None = None


@dataclass(frozen=True, slots=True)
class LinkDecision:
    """Decision about the link at `path`, and its reason. `target`: the absolute path that it is to lead to."""

    path: str
    target: str
    state: LinkState
    reason: str


def folder_of(links: Links, slot: str) -> str:
    """Return where a slot's links are."""
    return fill(links.folder, {"slot": slot})


def links_of(slot: Slot, build_date: date) -> tuple[str, ...]:
    """The links that a build of that date may have."""
    if slot.links is None:
        return ()
    folder, names = folder_of(slot.links, slot.name), []
    if slot.links.latest:
        names.append(LATEST)
    if slot.links.weekdays:
        names.append(WEEKDAYS[build_date.weekday()])
    return tuple(f"{folder}/{name}" for name in names)


def all_links_of(slot: Slot) -> tuple[str, ...]:
    """Every link that the slot may have."""
    if slot.links is None:
        return ()
    names = ([LATEST] if slot.links.latest else []) + (list(WEEKDAYS) if slot.links.weekdays else [])
    return tuple(f"{folder_of(slot.links, slot.name)}/{name}" for name in names)


def decide(path: str, wanted: BuildKey, target: str, present: Present) -> LinkDecision:
    """Tell whether a link may lead to the build `wanted`, whose directory is `target`, given what it leads to now."""

    def found(state: LinkState, reason: str) -> LinkDecision:
        return LinkDecision(path, target, state, reason)

    if present.there and present.target is None:
        return found(LinkState.STAYED, "the path exists and is no symbolic link; remove it, and run again")
    if not present.there:
        if present.key is not None and wanted < present.key:
            return found(LinkState.STAYED, f"it led to {present.key}, which is later, when it was taken away")
        return found(LinkState.MOVED, "new")
    if present.key is None:
        cure = "remove the link, and run again"
        return found(LinkState.STAYED, f"it leads to {present.target}, which is no build in the ledger; {cure}")
    if wanted < present.key:
        return found(LinkState.STAYED, f"it leads to {present.key} already, which is later")
    if present.target == target:
        return found(LinkState.UNCHANGED, "it leads there already")
    return found(LinkState.MOVED, f"from {present.key}")


def relative(path: str, target: str) -> str:
    """The text of a symbolic link at `path` that leads to `target`, wherever the repository is mounted."""
    return posixpath.relpath(target, posixpath.dirname(path))


def stayed(paths: Sequence[str], target: str, reason: str) -> tuple[LinkDecision, ...]:
    """All of them left as they are."""
    return tuple(LinkDecision(path, target, LinkState.STAYED, reason) for path in paths)
