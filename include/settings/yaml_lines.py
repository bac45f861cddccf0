"""YAML read with the line of every key and value, and with `${VAR:-default}` expanded from the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from include.settings.errors import SettingsProblem

Location = tuple[str | int, ...]
"""The keys and positions that lead to a value, as pydantic names it."""

_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|\$\{(?P<bad>[^}]*)\}?")
_SECRET_KEY = re.compile(
    r"(^|[_-])(password|passwd|pwd|passphrase|secrets?|tokens?|credentials?|(access|secret|private|api)[_-]?key)([_-]|$)",
    re.IGNORECASE,
)
_LEFT_AS_TEXT = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:binary"}


@dataclass(slots=True)
class Marked:
    """Plain data of a YAML document, the line of each location in it, and what was wrong while reading."""

    data: object = None
    lines: dict[Location, int] = field(default_factory=dict)
    given: dict[Location, str] = field(default_factory=dict)
    problems: list[SettingsProblem] = field(default_factory=list)

    def line(self, location: Location) -> int:
        """The line of a location, or of the nearest block around it (1 for the whole document)."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)


def read(text: str, *, file: str, environ: Mapping[str, str]) -> Marked:
    """Parse one document; faults are collected in `problems`, nothing is raised."""
    reader = _Reader(file, environ)
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        reader.note((), 1, f"not text that YAML can hold: {error.reason}", "Save the file as UTF-8.")
        return reader.marked
    try:
        node = loader.get_single_node()
        if node is not None:
            reader.marked.data = reader.value(node, (), loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        reader.note(
            (), line, f"not YAML: {error.problem or error.context}", "Check indentation, quotes and colons there."
        )
    finally:
        loader.dispose()
    return reader.marked


def dotted(location: Location) -> str:
    """`slots.main.projects[2]`, for messages."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text or "(whole file)"


class _Reader:
    def __init__(self, file: str, environ: Mapping[str, str]) -> None:
        self.marked = Marked()
        self._file = file
        self._environ = environ
        self._open: set[int] = set()

    def note(self, location: Location, line: int, what: str, cure: str, given: str | None = None) -> None:
        self.marked.problems.append(SettingsProblem(self._file, line, dotted(location), what, cure, given))

    def value(self, node: yaml.Node, location: Location, loader: yaml.SafeLoader) -> object:
        line = node.start_mark.line + 1
        self.marked.lines.setdefault(location, line)
        if id(node) in self._open:
            self.note(location, line, "an alias that contains itself", "Write the value out.")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return dict(self._items(node, location, loader))
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*location, index), loader) for index, item in enumerate(node.value)]
            return self._scalar(node, location, line, loader)
        finally:
            self._open.discard(id(node))

    def _items(
        self, node: yaml.MappingNode, location: Location, loader: yaml.SafeLoader
    ) -> Iterator[tuple[str, object]]:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.note(location, line, "a key that is not text", "Use a plain word as key.")
                continue
            key = str(key_node.value)
            here = (*location, key)
            if key == "<<":
                self.note(location, line, "merge keys (<<) are not read", "Write the keys of the block out.")
                continue
            if key in seen:
                self.note(here, line, f"given twice, first in line {seen[key]}", "Keep one of them.")
                continue
            seen[key] = line
            self.marked.lines[here] = line
            if _SECRET_KEY.search(key):
                self.note(
                    here,
                    line,
                    "looks like a secret, and this file is not the place for one",
                    "Remove it (and change the secret, if it was committed); put it into a connection, as "
                    "AIRFLOW_CONN_<ID> or in Airflow's UI, and name that by `connection:`.",
                )
                continue
            yield key, self.value(value_node, here, loader)

    def _scalar(self, node: yaml.Node, location: Location, line: int, loader: yaml.SafeLoader) -> object:
        text = str(node.value)
        self.marked.given[location] = text
        if "${" in text:
            return self._expand(text, location, line)
        if node.tag in _LEFT_AS_TEXT:
            return text
        construct: Callable[..., object] = loader.construct_object
        return construct(node)

    def _expand(self, text: str, location: Location, line: int) -> str:
        def replacement(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name, default = match["name"], match["default"]
            if name is None:
                self.note(location, line, "a variable that cannot be read", "Write ${NAME} or ${NAME:-default}.", text)
                return ""
            value = self._environ.get(name) or default
            if value is None:
                cure = f"Set it, or give a default: ${{{name}:-default}}."
                self.note(location, line, f"the environment variable {name} is not set", cure, text)
                return ""
            return value

        return _VARIABLE.sub(replacement, text)
