"""The rules of ``.cvmfsdirtab``: which directories become nested catalogs (docs/formats.md, dirtab).

All rules are compiled into two patterns, so that a tree costs two matches for each directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from include.cvmfs.errors import FormatError
from include.cvmfs.format.paths import bytes_of_name

NAME = ".cvmfsdirtab"
_ANY, _ONE, _ESCAPE = "*", "?", "\\"
_TOKENS = re.compile(r"\\[*?\\]|.", re.DOTALL)
_BLANKS = " \t\r\v\f"
_TRIMMED = " \t"  # at the end of a line, by the stock tools; a carriage return stays and belongs to the name
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Rule:
    """A line. ``elements``: the pattern by path components, each a tuple of literal texts, ``*`` and ``?``."""

    negative: bool
    absolute: bool
    elements: tuple[tuple[str | None, ...], ...] = field(repr=False)
    text: str = field(compare=False)


class Dirtab:
    """A parsed file. ``name`` is for messages."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self._positive = _compiled([rule for rule in rules if not rule.negative])
        self._negative = _compiled([rule for rule in rules if rule.negative])

    @classmethod
    def parse(cls, text: str | bytes, name: str = NAME) -> Dirtab:
        """Read a file. Raises FormatError that names the line; one bad or contradicted rule makes the whole invalid."""
        if isinstance(text, bytes):
            try:
                text = text.decode()
            except UnicodeDecodeError:
                raise FormatError(name, "is not UTF-8; write it again") from None
        rules = []
        places: dict[tuple[bool, tuple[tuple[str | None, ...], ...]], tuple[int, bool]] = {}
        for number, line in enumerate(text.split("\n"), 1):
            rule = _parsed(line, f"{name}, line {number}")
            if rule is None:
                continue
            place, negative = places.setdefault((rule.absolute, rule.elements), (number, rule.negative))
            if negative != rule.negative:
                problem = f"{rule.text[:_SHOWN]!r} contradicts line {place}, which has the same pattern"
                raise FormatError(f"{name}, line {number}", f"{problem}; remove one of them")
            rules.append(rule)
        return cls(tuple(rules))

    def matches(self, path: str) -> bool:
        """Tell whether the directory at an absolute path is to be a nested catalog."""
        raw = bytes_of_name(path)
        if self._positive is None or not self._positive.fullmatch(raw):
            return False
        return not self.opposes(path)

    def leads_below(self, path: str) -> bool:
        """Tell if a rule may match a directory below the one at an absolute path."""
        return self._above is not None and self._above.fullmatch(bytes_of_name(path)) is not None

    def opposes(self, path: str) -> bool:
        """Tell whether a negative rule speaks against the path."""
        return self._negative is not None and self._negative.fullmatch(bytes_of_name(path)) is not None

    @cached_property
    def _above(self) -> re.Pattern[bytes] | None:
        """A pattern for the directories above what the rules match."""
        above = {
            rule.elements[:depth] for rule in self.rules if not rule.negative for depth in range(1, len(rule.elements))
        }
        return _compiled([Rule(negative=False, absolute=True, elements=elements, text="") for elements in above])


# An element's parts: a text matches itself, None is "*", and "" is "?" (texts are never empty).
_ANY_PART: None = None
_ONE_PART = ""


def _parsed(line: str, where: str) -> Rule | None:
    text = line.lstrip(_BLANKS).rstrip(_TRIMMED)
    if not text or text.startswith("#"):
        return None
    negative = text.startswith("!")
    pattern = text[1:].lstrip(_BLANKS) if negative else text
    if not pattern:
        return None
    absolute = pattern.startswith("/")
    if not absolute and not negative:
        raise FormatError(where, f"{text[:_SHOWN]!r} is not absolute; begin it with a slash")
    elements = tuple(_element(part, where) for part in pattern.split("/") if part)
    if not elements:
        raise FormatError(where, f"{text[:_SHOWN]!r} names the root, which is always a catalog; remove the rule")
    return Rule(negative, absolute, elements, text)


def _element(part: str, where: str) -> tuple[str | None, ...]:
    parts: list[str | None] = []
    literal = ""
    for token in _TOKENS.findall(part):
        if token not in (_ANY, _ONE):
            literal += token[-1]
            if token == _ESCAPE:
                shown = f"{part[:_SHOWN]!r} has a backslash before something else than *, ? and \\"
                raise FormatError(where, f"{shown}; write \\\\ for a backslash")
            continue
        if literal:
            parts.append(literal)
            literal = ""
        parts.append(_ANY_PART if token == _ANY else _ONE_PART)
    if literal:
        parts.append(literal)
    return tuple(parts)


def _compiled(rules: list[Rule]) -> re.Pattern[bytes] | None:
    if not rules:
        return None
    return re.compile(b"|".join(b"(?:%b)" % _expression(rule) for rule in rules), re.DOTALL)


def _expression(rule: Rule) -> bytes:
    # As in the stock tools, "*" stays inside a component in positive rules only.
    slash = b"/" if rule.absolute else b""
    if rule.negative:
        parts = [part for element in rule.elements for part in (*element, "/")]
        return slash + _glob(parts[:-1], b".")
    return slash + b"/".join(b"(?>%b(?=/|\\Z))" % _glob(element, b"[^/]") for element in rule.elements)


def _glob(parts: Iterable[str | None], byte: bytes) -> bytes:
    """An expression whose matching takes no longer than path times pattern, whatever the number of stars.

    What follows a star is looked for where it comes first, and never again further on: if the rest can match at all,
    it can from there. Only the last star goes to the end. ``byte`` is what a star may take.
    """
    runs = [b""]  # between stars
    for part in parts:
        if part is _ANY_PART:
            runs.append(b"")
        else:
            runs[-1] += b"[^/]" if part == _ONE_PART else re.escape(part.encode())
    first, *others = runs
    if not others:
        return first
    sought = b"".join(b"(?>%b*?%b)" % (byte, run) for run in others[:-1] if run)
    return first + sought + byte + b"*" + others[-1]
