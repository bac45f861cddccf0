"""Templates such as `/nightlies/{slot}/{build_id}`: which fields they have and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter

from include.settings.names import name_fault

DESTINATION_FIELDS = frozenset({"slot", "build_id", "project", "platform", "date"})
INDEX_FIELDS = frozenset({"slot", "date"})
FOLDER_FIELDS = frozenset({"slot"})
TAG_FIELDS = frozenset({"slot", "build_id", "date"})
MAX_DESTINATION_LENGTH = 1024
"""Characters of a destination path; the width of the ledger's column."""

_MOUNTED = re.compile(r"/cvmfs/[^/]+\.[^/]+(?:/|\Z)")
SAMPLE: Mapping[str, str] = {"slot": "s", "build_id": "b", "project": "p", "platform": "x", "date": "2026-01-01"}


def fields(template: str) -> frozenset[str]:
    """The names in braces; raises ValueError when the braces do not pair or carry a conversion or a format."""
    found = set()
    for _, name, format_spec, conversion in Formatter().parse(template):
        if name is None:
            continue
        if format_spec or conversion:
            raise ValueError(f"the field {{{name}}} carries a format or a conversion")
        found.add(name)
    return frozenset(found)


def fill(template: str, values: Mapping[str, str]) -> str:
    """`template` with its fields replaced; only fields that `fields()` accepted may be in it."""
    return template.format_map(values)


def destination_fault(template: str) -> str | None:
    """What is wrong with a destination template, or None."""
    fault = _field_fault(template, DESTINATION_FIELDS)
    if fault:
        return fault
    used = fields(template)
    missing = {"project", "platform"} - used
    if missing:
        return f"lacks {_braced(missing)}, so two artifacts would share a destination"
    if not used & {"build_id", "date"}:
        return "has neither {build_id} nor {date}, so every build would share its destinations"
    return _path_fault(template)


def index_fault(template: str) -> str | None:
    """What is wrong with the template of an index's key, or None."""
    fault = _field_fault(template, INDEX_FIELDS)
    if fault:
        return fault
    if "date" not in fields(template):
        return "lacks {date}, so every night would read the same index"
    return _component_fault(fill(template, SAMPLE))


def folder_fault(template: str) -> str | None:
    """What is wrong with the template of a folder of links, or None."""
    fault = _field_fault(template, FOLDER_FIELDS)
    if fault:
        return fault
    return _path_fault(template)


def tag_fault(template: str) -> str | None:
    """What is wrong with the template of a tag's name, or None."""
    fault = _field_fault(template, TAG_FIELDS)
    if fault:
        return fault
    if not fields(template) & {"build_id", "date"}:
        return "has neither {build_id} nor {date}, so every build would have the same"
    return _component_fault(fill(template, SAMPLE))


def _field_fault(template: str, known: frozenset[str]) -> str | None:
    try:
        unknown = fields(template) - known
    except ValueError as error:
        return f"is not a template: {error}"
    if unknown:
        return f"has the unknown field {_braced(unknown)}; known are {_braced(known)}"
    return None


def _path_fault(template: str) -> str | None:
    path = fill(template, SAMPLE)
    if not path.startswith("/"):
        return "does not begin with /"
    if _MOUNTED.match(path):
        return "begins with /cvmfs/ and a repository, where clients mount it; give the path inside the repository"
    return _component_fault(path[1:])


def _component_fault(path: str) -> str | None:
    for component in path.split("/"):
        fault = name_fault(component)
        if fault:
            return f"has a component {component!r} that {fault}"
    return None


def _braced(names: frozenset[str] | set[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))
