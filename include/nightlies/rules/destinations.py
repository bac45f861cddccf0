"""Destinations of a build and its artifacts in a repository: the slot's template, filled with checked names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from string import Formatter

from include.cvmfs.revision.revision import Revision
from include.nightlies.errors import NightlyError
from include.nightlies.rules.build import BuildRecord
from include.nightlies.rules.index import Artifact, BuildIndex
from include.settings.model import Slot
from include.settings.text_types import MAX_DESTINATION_LENGTH, NAME, fields, fill, name_fault


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
