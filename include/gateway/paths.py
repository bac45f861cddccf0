"""Lease paths, ``<repository>/<path>``, and when two of them overlap: by path component, never by string prefix."""

from __future__ import annotations

import re
from dataclasses import dataclass

from include.cvmfs.format.paths import is_below
from include.gateway.errors import BadLeasePath

PATH_BYTES, COMPONENT_BYTES = 4096, 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class LeasePath:
    """A path of a repository: ``""`` for all of it, else it begins with a slash and does not end with one."""

    repository: str
    path: str

    @classmethod
    def parse(cls, text: str) -> LeasePath:
        """Read ``<repository>/<path>`` and take off a trailing slash. Raises BadLeasePath with the gateway's reason."""
        if text.startswith("/"):
            raise BadLeasePath("input has leading slash", path=text)
        repository, slash, rest = text.partition("/")
        if not slash or not repository:
            raise BadLeasePath("missing repository name or subpath", path=text)
        if _CONTROL.search(repository):
            raise BadLeasePath("invalid lease path: control character", path=text)
        return cls(repository, checked_path("/" + rest))

    def __str__(self) -> str:
        return self.repository + (self.path or "/")


def checked_path(path: str) -> str:
    """An absolute path in the form that ``LeasePath`` keeps. Raises BadLeasePath naming what is wrong with it."""
    if path in ("", "/"):
        return ""
    try:
        data = path.encode()
    except UnicodeEncodeError:
        raise BadLeasePath("invalid lease path: not UTF-8", path=path.encode(errors="replace").decode()) from None
    if not path.startswith("/"):
        raise BadLeasePath("invalid lease path: does not begin with a slash", path=path)
    if len(data) > PATH_BYTES:
        raise BadLeasePath(f"invalid lease path: longer than {PATH_BYTES} bytes", path=path[:100])
    if _CONTROL.search(path):
        raise BadLeasePath("invalid lease path: control character", path=path)
    path = path.removesuffix("/")
    for component in path[1:].split("/"):
        if component in ("", ".", ".."):
            raise BadLeasePath(f"invalid lease path: component {component!r}", path=path)
        if len(component.encode()) > COMPONENT_BYTES:
            raise BadLeasePath(f"invalid lease path: a component is longer than {COMPONENT_BYTES} bytes", path=path)
    return path


def overlap(path: str, other: str) -> bool:
    """Whether one contains the other: two leases on them exclude each other."""
    return is_below(path, other) or is_below(other, path)
