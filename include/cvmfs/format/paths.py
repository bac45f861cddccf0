"""Paths in a repository: absolute, without a slash at the end, the root ``""``; and which names an entry may have.

Paths are compared by component, never by string prefix. Prepare, merge, check and get judge a name by the one rule that
is here (docs/formats.md, rows).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from include.cvmfs.errors import CatalogError

MOST_LINKS = 8
"""Number of symbolic links that are followed from one path; more are a circle."""
NAME_BYTES = 255
COMPONENT = rb"(?!\.\.?(?:/|\Z))[^/\0]{1,%d}" % NAME_BYTES
"""The rule as a pattern for one component of a path."""

_COMPONENT = re.compile(COMPONENT)
_SHORT = re.compile(r"(?!\.\.?\Z)[^/\0]{1,63}")  # as text: 63 characters are at most 252 bytes


def parent_of(path: str) -> str:
    """The directory that an absolute path is in; the root's is the root."""
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    """The last component; of the root the empty one."""
    return path.rpartition("/")[2]


def ancestors(path: str) -> Iterator[str]:
    """``/a/b/c`` gives ``/a``, ``/a/b``, ``/a/b/c``; the root gives nothing."""
    place = path.find("/", 1)
    while place > 0:
        yield path[:place]
        place = path.find("/", place + 1)
    if path:
        yield path


def path_and_above(path: str) -> list[str]:
    """``/a/b`` gives ``/a/b``, ``/a`` and the root, in this order."""
    return [*reversed(list(ancestors(path))), ""]


def is_below(path: str, top: str) -> bool:
    """Tell whether ``path`` is ``top`` or below it."""
    return path == top or path.startswith(f"{top}/")


def common_top(paths: Sequence[str]) -> str:
    """The topmost of the paths if all are below it, else the deepest directory above all; where their lease goes."""
    top = min(paths, key=len)
    while not all(is_below(path, top) for path in paths):
        top = parent_of(top)
    return top


def link_target(path: str, text: str) -> str:
    """Return where the symbolic link at ``path`` leads; one that leaves the repository by ``..`` ends at its root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), text))


def clean_path(path: str) -> str:
    """A user's path in the form used here. Raises CatalogError for one with an empty part, ``.`` or ``..``."""
    if not path or (path[0] == "/" and path[-1] != "/" and "//" not in path and "/." not in path):
        return path
    plain = f"/{path.strip('/')}" if path.strip("/") else ""
    if any(part in {"", ".", ".."} for part in plain.split("/")[1:]):
        raise CatalogError(path, "is not a path in a repository: it has an empty part, . or ..")
    return plain


def name_of_bytes(raw: bytes) -> str:
    """A name, path or link target as text; bytes that are not UTF-8 are kept as lone surrogates."""
    return raw.decode("utf-8", "surrogateescape")


def bytes_of_name(name: str) -> bytes:
    """The bytes that :func:`name_of_bytes` read."""
    return name.encode("utf-8", "surrogateescape")


def name_fault(name: str | bytes) -> str | None:
    """Return why an entry cannot have this name, in words that follow the entry's path; None if it can."""
    if isinstance(name, str):
        if _SHORT.fullmatch(name):
            return None
        name = bytes_of_name(name)
    if _COMPONENT.fullmatch(name):
        return None
    if not name:
        return "has an empty name"
    if name in (b".", b".."):
        return f"has the name {name.decode()!r}"
    if b"/" in name:
        return "has a slash in its name"
    if b"\0" in name:
        return "has a NUL byte in its name"
    return f"has a name longer than {NAME_BYTES} bytes"
