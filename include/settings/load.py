"""Reads the configuration file with the line of each key, or reports everything that is wrong with it at once."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from include.settings.errors import InvalidSettings, SettingsFileMissing, SettingsProblem
from include.settings.model import PublisherKind, SiteSettings
from include.settings.text_types import PROJECT_ROOT

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
        lines: dict[str, int] = {}
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
            if key in lines:
                self.note(here, line, f"given twice, first in line {lines[key]}", "Keep one of them.")
                continue
            lines[key] = line
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


_TARGETS = ("benchmarks", "targets")
_REFERENCES = (
    (("repositories",), "store", "stores"),
    (("slots",), "store", "stores"),
    (("slots",), "repository", "repositories"),
    (("sites",), "store", "stores"),
    (_TARGETS, "store", "stores"),
)
_CURES = {
    "missing": "Add it.",
    "int_parsing": "Write a whole number.",
    "int_type": "Write a whole number.",
    "float_parsing": "Write a number.",
    "float_type": "Write a number.",
    "bool_parsing": "Write true or false.",
    "bool_type": "Write true or false.",
    "string_type": "Write text; put it in quotes if it looks like a number or a date.",
    "byte_size": "Write a size in bytes, or as 20GiB.",
    "byte_size_unit": "Write a size in bytes, or as 20GiB.",
    "tuple_type": "Write a list, as [one, two].",
    "model_type": "Write a block of keys below it.",
    "mapping_type": "Write a block of keys below it.",
    "dict_type": "Write a block of keys below it.",
    "path_type": "Write a path.",
    "union_tag_invalid": "Use one of them as `kind`.",
    "union_tag_not_found": "Add `kind: path`, `kind: bucket` or `kind: pool`.",
}


_GONE: Mapping[Location, str] = {
    ("notify", "mail"): "Write `apprise: {connections: [mail]}`, and give the connection `mail` the password "
    "mailtos://<user>:<password>@<host>?from=<address>&to=<address>,<address>.",
    ("notify", "webhook"): "Write `apprise: {connections: [hook]}`, and give the connection `hook` the password "
    "jsons://<host>/<path>.",
}
"""Keys of Nightshift 0.1, each with the line that replaces it (docs/decisions/0037)."""
_FIXED = {"connect_timeout_s": "20 s", "keepalive_s": "15 s", "pass_s": "50 s", "payloads_at_once": "8"}
"""Keys of Nightshift 0.1 in whatever block, each with the value that it has now."""


def project_root(environ: Mapping[str, str] | None = None) -> Path:
    """The folder that relative paths start from: `NIGHTSHIFT_HOME`, else the one that holds `include/`."""
    home = (os.environ if environ is None else environ).get("NIGHTSHIFT_HOME")
    return Path(home).absolute() if home else PROJECT_ROOT


def settings_path(environ: Mapping[str, str] | None = None) -> Path:
    """The configuration file in force: `NIGHTSHIFT_CONFIG`, else `config/site.yaml` of the project root."""
    environ = os.environ if environ is None else environ
    return project_root(environ) / environ.get("NIGHTSHIFT_CONFIG", "config/site.yaml")


def load(path: Path | None = None, *, environ: Mapping[str, str] | None = None) -> SiteSettings:
    """The configuration of `path`, or of the file in force.

    Raises SettingsFileMissing, or InvalidSettings with every problem of the file.
    """
    environ = os.environ if environ is None else environ
    path = path or settings_path(environ)
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise SettingsFileMissing(path) from None
    except UnicodeDecodeError:
        raise InvalidSettings(
            [SettingsProblem(str(path), 1, "(whole file)", "not UTF-8", "Save the file as UTF-8.")]
        ) from None
    return parse(text, file=str(path), root=project_root(environ), environ=environ)


def parse(text: str, *, file: str, root: Path, environ: Mapping[str, str]) -> SiteSettings:
    """The configuration in `text`; `file` is what messages call it, `root` where relative paths start."""
    marked = read(text, file=file, environ=environ)
    problems = list(marked.problems)
    data = marked.data if marked.data is not None else {}
    if not isinstance(data, dict):
        cure = "Begin with a key such as `stores:`."
        raise InvalidSettings([*problems, SettingsProblem(file, 1, dotted(()), "not a block of keys", cure)])
    settings = None
    try:
        settings = SiteSettings.model_validate(data, context={"root": root})
    except ValidationError as invalid:
        problems += [_problem(cast("Mapping[str, Any]", error), marked, file) for error in invalid.errors()]
    problems += _named_twice(data, marked, file)
    problems += _dangling(data, marked, file)
    problems += _not_through_a_node(data, marked, file)
    if problems or settings is None:
        raise InvalidSettings(_without_consequences(problems))
    return settings


def _problem(error: Mapping[str, Any], marked: Marked, file: str) -> SettingsProblem:
    path: Location = tuple(step for step in error["loc"] if step != "[key]")
    # Pydantic puts the kind of a target after its name; the file has it elsewhere
    location = (*path[:3], *path[4:]) if path[:2] == _TARGETS else path
    kind, context = error["type"], error.get("ctx") or {}
    given = marked.given.get(location)
    what, cure = error["msg"], _CURES.get(kind)
    if kind == "settings":
        cure = context["cure"]
    elif kind == "missing":
        what = "is missing"
    elif kind == "extra_forbidden":
        # its value is not repeated: a misspelt `password` is no key either
        what, given = "is not a key of this block", None
        fixed = _FIXED.get(str(path[-1]))
        cure = _GONE.get(path) or (f"Remove it: it is fixed at {fixed}." if fixed else _known_keys(path))
    elif "expected" in context:
        cure = f"Use {context['expected']}."
    return SettingsProblem(
        file, marked.line(location), dotted(location), what, cure or "Correct it there.", _shown(given)
    )


def _shown(given: str | None) -> str | None:
    if given is None:
        return None
    # whatever stands before an @ in a URL may be a password, and so may what a query has
    scheme, separator, rest = given.partition("://")
    if separator:
        _, at, place = rest.rpartition("@")
        place, query, _ = place.partition("?")
        given = f"{scheme}://{'***@' if at else ''}{place}{'?***' if query else ''}"
    return given if len(given) <= 80 else given[:77] + "…"


def _known_keys(location: Location) -> str:
    kinds: list[Any] = [SiteSettings]
    keyed = False
    for step in location[:-1]:
        if tagged := [kind for kind in kinds if step in _tags(kind)]:
            # Pydantic puts the kind of a target after its name
            kinds = tagged
            continue
        keyed = any(issubclass(get_origin(kind) or object, Mapping) for kind in kinds)
        kinds = [inner for kind in kinds for inner in _inner(kind, str(step))]
    # the name of a block that has its name as key is no key in it
    keys = sorted({key for kind in kinds for key in _fields(kind)} - ({"name"} if keyed else set()))
    near = difflib.get_close_matches(str(location[-1]), keys, n=1)
    return f"Did you mean `{near[0]}`?" if near else f"Remove it; known keys are {', '.join(keys)}."


def _inner(kind: Any, step: str) -> Iterator[Any]:
    """The types that a value below this key or index of a value of this type may have."""
    if step in (fields := _fields(kind)):
        yield from _alternatives(fields[step].annotation)
    elif isinstance(container := get_origin(kind), type):
        yield from _alternatives(get_args(kind)[1 if issubclass(container, Mapping) else 0])


def _tags(kind: Any) -> list[str]:
    """The values of `kind` by which Pydantic knows a block of this type from others."""
    fields = _fields(kind)
    return [getattr(tag, "value", tag) for tag in get_args(fields["kind"].annotation)] if "kind" in fields else []


def _fields(kind: Any) -> Mapping[str, FieldInfo]:
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}


def _alternatives(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        for alternative in get_args(annotation):
            yield from _alternatives(alternative)
    elif get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    else:
        yield annotation


def _named_twice(data: Mapping[str, object], marked: Marked, file: str) -> Iterator[SettingsProblem]:
    for group in (("stores",), ("repositories",), ("slots",), ("sites",), ("caches",), _TARGETS):
        for key, block in _group(data, group).items():
            if "name" in _mapping(block):
                location = (*group, key, "name")
                cure = f"Remove it; the name is the key of the block, {key!r}."
                yield SettingsProblem(file, marked.line(location), dotted(location), "is not a key of this block", cure)


def _dangling(data: Mapping[str, object], marked: Marked, file: str) -> Iterator[SettingsProblem]:
    for group, key, target in _REFERENCES:
        names = _mapping(data.get(target))
        for name, block in _group(data, group).items():
            referred = _mapping(block).get(key)
            if isinstance(referred, str) and referred not in names:
                location = (*group, name, key)
                near = difflib.get_close_matches(referred, [str(name) for name in names], n=1)
                listed = ", ".join(sorted(str(name) for name in names)) or "none"
                cure = f"Did you mean {near[0]!r}?" if near else f"Add it below `{target}:`, or use one of: {listed}."
                what = f"there is no {referred!r} below `{target}:`"
                yield SettingsProblem(file, marked.line(location), dotted(location), what, cure, referred)


def _not_through_a_node(data: Mapping[str, object], marked: Marked, file: str) -> Iterator[SettingsProblem]:
    repositories = _mapping(data.get("repositories"))
    for name, block in _mapping(data.get("slots")).items():
        repository = _mapping(repositories.get(str(_mapping(block).get("repository"))))
        if repository.get("publisher") != PublisherKind.CVMFS_SERVER.value:
            continue
        for key, does_not in (("links", "sets none"), ("retention", "removes no builds together")):
            if _mapping(block).get(key) is not None:
                location = ("slots", name, key)
                what = f"{key} in a repository with a publisher node, which {does_not}"
                cure = f"Remove `{key}:`, or use `publisher: native` (docs/publishers.md)."
                yield SettingsProblem(file, marked.line(location), dotted(location), what, cure)


def _group(data: Mapping[str, object], keys: tuple[str, ...]) -> Mapping[str, object]:
    for key in keys:
        data = _mapping(data.get(key))
    return data


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _without_consequences(problems: list[SettingsProblem]) -> list[SettingsProblem]:
    """Keep one problem for each place: an unset variable, say, is not also an invalid value."""
    first: dict[tuple[int, str], SettingsProblem] = {}
    for problem in problems:
        first.setdefault((problem.line, problem.key), problem)
    return list(first.values())
