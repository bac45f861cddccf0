"""What the catalogs of a revision say of one published tree; no file of it is read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from include.cvmfs.format.catalog import MARKER
from include.cvmfs.format.paths import MOST_LINKS, link_target, path_and_above
from include.cvmfs.revision.revision import Revision
from include.nightlies.rules.current_content import standing

_LIBRARY = re.compile(r"\.(?:a|dylib|so(?:\.[0-9]+)*)$")
_ANY_EXECUTE = 0o111


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """Regular files and their bytes, and paths below the tree's top: empty libraries, executables, broken links.

    `content`: the regular files that are not markers of nested catalogs. `plain`: of the executables of the build
    before, those that no account may execute now.
    """

    files: int
    content: int
    bytes: int
    empty_libraries: frozenset[str]
    executables: frozenset[str]
    broken_links: frozenset[str]
    plain: frozenset[str] = frozenset()


def tree_facts(
    revision: Revision, fqrn: str, destination: str, executables: frozenset[str] = frozenset()
) -> TreeFacts | None:
    """The facts of what is at a destination, the links of partial builds followed; None if nothing is there.

    Args:
        revision: The revision to read.
        fqrn: Name of its repository: absolute links below `/cvmfs/<fqrn>` are inside it.
        destination: Path of the tree.
        executables: Paths below the tree's top that could be executed in the build before.
    """
    tree = standing(revision, destination)
    if tree is None:
        return None
    top = tree.path
    files = content = size = 0
    empty, runs, plain, links, there = set(), set(), set(), [], set()
    for path, entry in revision.walk(top):
        below = path[len(top) + 1 :]
        if entry.is_symlink:
            links.append((path, entry.symlink))
        else:
            there.add(path)
        if not entry.is_regular:
            continue
        files, content, size = files + 1, content + (entry.name != MARKER), size + entry.size
        if entry.mode & _ANY_EXECUTE:
            runs.add(below)
        elif below in executables:
            plain.add(below)
        if entry.size == 0 and _LIBRARY.search(entry.name):
            empty.add(below)
    broken = {
        path[len(top) + 1 :]
        for path, text in links
        if (target := _inside(path, text, fqrn)) is not None
        and target not in there
        and not resolves(revision, fqrn, target)
    }
    return TreeFacts(files, content, size, frozenset(empty), frozenset(runs), frozenset(broken), frozenset(plain))


def resolves(revision: Revision, fqrn: str, path: str) -> bool:
    """Whether a path leads to something in a revision, symbolic links followed; one that leaves the repository does."""
    for _ in range(MOST_LINKS):
        entry = None
        for place in reversed(path_and_above(path)[:-1]):
            entry = revision.lookup(place)
            if entry is None:
                return False
            if entry.is_symlink:
                break
        if entry is None or not entry.is_symlink:
            return True
        target = _inside(place, entry.symlink, fqrn)
        if target is None:
            return True
        path = f"{target}{path[len(place) :]}"
    return False


def _inside(path: str, text: str, fqrn: str) -> str | None:
    """The path in the repository that a link leads to; None where that depends on the machine that follows it."""
    if "$(" in text:  # a variant symbolic link: the client's environment decides where
        return None
    mounted = f"/cvmfs/{fqrn}/"
    if text.startswith(mounted):
        text = f"/{text[len(mounted) :].lstrip('/')}"
    elif text.startswith("/"):
        return None
    return link_target(path, text).rstrip("/")
