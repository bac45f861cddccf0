"""Suites of the quality gate, over a build's index, its tree and the nights before it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from include.cvmfs.format.catalog import MARKER
from include.cvmfs.format.paths import MOST_LINKS, link_target, path_and_above
from include.cvmfs.revision.revision import Revision
from include.nightlies.records.quality import ArtifactFigures, NightFigures
from include.nightlies.rules.dependencies import is_required
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import standing
from include.quality.results import Cell, Expect, QualityRule, Row, SuiteInput
from include.settings.model import Slot
from include.settings.prepare import QualitySettings, Suite

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
    """Tell whether a path leads to something in a revision, symbolic links followed; one that leaves the repository
    does."""
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


NIGHTS = 7
"""Nights that figures are compared with; with fewer nothing is."""
FILES, BYTES, SECONDS = 20, 1 << 20, 60.0
"""Differences of one artifact or night that are too small to count: files, bytes, seconds of work."""
ADDED_BYTES, ADDED_OBJECTS = 1 << 30, 10_000
"""Additions to the repository that a night may always make."""
ALL = "the whole night"
_EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass(frozen=True, slots=True)
class PublishedArtifact:
    """A published artifact of a build. `now`, `before`: its tree, and that of the build before.

    `files`, `bytes`: as they were when it was prepared. `listed`: the digest in the index, `published`: in the ledger.
    """

    name: str
    listed: str
    published: str | None
    files: int | None
    bytes: int | None
    now: TreeFacts | None
    before: TreeFacts | None


def index_suite(index: BuildIndex, slot: Slot, settings: QualitySettings, nights: Sequence[NightFigures]) -> SuiteInput:
    """The index of a build against itself and the builds before it. `nights`: these, the newest first."""
    listed = {artifact.name: artifact for artifact in index.artifacts}
    before = nights[0] if nights else None
    rows: list[Row] = [_listed_row(artifact, index.artifacts, before, nights, settings) for artifact in index.artifacts]
    if before is not None and index.complete and index.base is None:
        rejected = {artifact.name for artifact in index.rejected}
        rows += [
            {"name": name, "lost": f"{before.key} had it and the index does not list it"}
            for name in sorted(before.artifacts.keys() - listed.keys() - rejected)
            if is_required(slot, *name.split("/", 1))
        ]
    rules = (
        QualityRule(Expect.EMPTY, "lost", "{name}: {lost}"),
        QualityRule(Expect.EMPTY, "digest", "{name}: {digest}"),
        QualityRule(
            Expect.AT_LEAST, "size", "{name}: {size} bytes, {size_usual}; expected at least {size_least}", "size_least"
        ),
    )
    return SuiteInput(Suite.INDEX, tuple(rows), rules, _history(nights, "sizes are not compared"))


def published_suite(artifacts: Collection[PublishedArtifact], band: float = 0.3) -> SuiteInput:
    """Return what the repository holds of each artifact, against the index, what was prepared, and its build before.

    `band`: the share by which its files may be fewer than in the build before.
    """
    rules = (
        QualityRule(Expect.EMPTY, "missing", "{name}: {missing}"),
        QualityRule(
            Expect.EQUAL, "published", "{name}: published from {published}, the index lists {listed}", "listed"
        ),
        QualityRule(Expect.BETWEEN, "content", "{name}: its tree holds no file", least=1),
        QualityRule(Expect.EQUAL, "files", "{name}: {files} files, {files_prepared} were prepared", "files_prepared"),
        QualityRule(Expect.EQUAL, "bytes", "{name}: {bytes} bytes, {bytes_prepared} were prepared", "bytes_prepared"),
        QualityRule(Expect.BETWEEN, "empty_libraries", "{name}: {empty_libraries} empty libraries: {empty}", most=0),
        QualityRule(
            Expect.BETWEEN, "lost_executables", "{name}: {lost_executables} files cannot be executed any more: {lost}",
            most=0,
        ),
        QualityRule(Expect.BETWEEN, "broken_links", "{name}: {broken_links} links lead nowhere: {broken}", most=0),
        QualityRule(
            Expect.AT_LEAST, "files", "{name}: {files} files, {files_before} in the build before; expected at least "
            "{files_least}", "files_least",
        ),
    )  # fmt: skip
    return SuiteInput(Suite.PUBLISHED, tuple(_published_row(artifact, band) for artifact in artifacts), rules)


def night_suite(tonight: NightFigures, nights: Sequence[NightFigures], settings: QualitySettings) -> SuiteInput:
    """Files, bytes and working time of a build, as a whole and of each artifact, against the nights before it."""
    here = {name: figures for name, figures in tonight.artifacts.items() if figures.files is not None}
    earlier = {name: [night.artifacts[name] for night in nights if _has(night, name)] for name in here}
    known = [name for name, figures in earlier.items() if len(figures) >= NIGHTS]
    rows = [_night_row(name, here[name], earlier[name], settings) for name in sorted(known)]
    if known:
        sums = [_sum([earlier[name][number] for name in known]) for number in range(NIGHTS)]
        rows.insert(0, _night_row(ALL, _sum([here[name] for name in known]), sums, settings))
    usual = "; expected {%s} to {%s}"
    rules = []
    for column in ("files", "bytes"):
        reason = f"{{name}}: {{{column}}} {column}, {{{column}_usual}}" + usual % (f"{column}_least", f"{column}_most")
        rules.append(QualityRule(Expect.AT_LEAST, column, reason, f"{column}_least"))
        rules.append(QualityRule(Expect.AT_LEAST, f"{column}_most", reason, column))
    slow = "{name}: {seconds} s of work, {seconds_usual}; expected at most {seconds_most}"
    rules.append(QualityRule(Expect.AT_LEAST, "seconds_most", slow, "seconds"))
    return SuiteInput(Suite.NIGHT, tuple(rows), tuple(rules), _history(nights, "nothing is compared"))


def growth_suite(tonight: NightFigures, nights: Sequence[NightFigures], settings: QualitySettings) -> SuiteInput:
    """Return what a build added to the repository, against the nights before it."""
    row: dict[str, Cell] = {"name": ALL}
    now, earlier = _sum(tonight.artifacts.values()), [_sum(night.artifacts.values()) for night in nights]
    rules = []
    for column, what, floor in (("added_bytes", "bytes", ADDED_BYTES), ("added_objects", "objects", ADDED_OBJECTS)):
        row[column] = getattr(now, column)
        values = [float(getattr(figures, column)) for figures in earlier]
        row |= _most(column, values, settings.factor, floor)
        reason = f"{{name}}: adds {{{column}}} {what}, {{{column}_usual}}; expected at most {{{column}_most}}"
        rules.append(QualityRule(Expect.AT_LEAST, f"{column}_most", reason, column))
    return SuiteInput(Suite.GROWTH, (row,), tuple(rules), _history(nights, "nothing is compared"))


def _listed_row(
    artifact: Artifact,
    listed: Sequence[Artifact],
    before: NightFigures | None,
    nights: Sequence[NightFigures],
    settings: QualitySettings,
) -> Row:
    row: dict[str, Cell] = {"name": artifact.name, "sha256": artifact.sha256, "size": artifact.size}
    sizes = [float(night.artifacts[artifact.name].size) for night in nights if artifact.name in night.artifacts]
    row |= _band("size", sizes, settings.band, BYTES)
    same = {other.name: other.size for other in listed if other.sha256 == artifact.sha256}
    if before is not None:
        same |= {
            f"{name} of {before.key}": other.size
            for name, other in before.artifacts.items()
            if other.sha256 == artifact.sha256
        }
    if artifact.sha256 == _EMPTY_SHA256:
        row["digest"] = f"its digest is that of an empty file, and its size {artifact.size} bytes"
    elif contradicting := next((name for name, size in same.items() if size != artifact.size), None):
        row["digest"] = f"it has the digest of {contradicting}, and another size"
    return row


def _published_row(artifact: PublishedArtifact, band: float) -> Row:
    row: dict[str, Cell] = {
        "name": artifact.name, "listed": artifact.listed, "published": artifact.published,
        "files_prepared": artifact.files, "bytes_prepared": artifact.bytes,
    }  # fmt: skip
    if artifact.now is None:
        return row | {"missing": "the ledger has it as published, and its destination does not exist"}
    if artifact.before is not None:
        fewer = max(artifact.before.files * band, FILES)
        row |= {"files_before": artifact.before.files, "files_least": max(0, round(artifact.before.files - fewer))}
    before = artifact.before or TreeFacts(0, 0, 0, frozenset(), frozenset(), frozenset())
    # what the build before had already is known, and no fault of this one
    empty = artifact.now.empty_libraries - before.empty_libraries
    broken = artifact.now.broken_links - before.broken_links
    return row | {
        "files": artifact.now.files, "content": artifact.now.content, "bytes": artifact.now.bytes,
        "empty_libraries": len(empty), "empty": _some(empty),
        "lost_executables": len(artifact.now.plain), "lost": _some(artifact.now.plain),
        "broken_links": len(broken), "broken": _some(broken),
    }  # fmt: skip


def _night_row(
    name: str, now: ArtifactFigures, earlier: Sequence[ArtifactFigures], settings: QualitySettings
) -> dict[str, Cell]:
    return {
        "name": name, "files": now.files, "bytes": now.bytes, "seconds": round(now.seconds, 1),
        **_band("files", [float(figures.files or 0) for figures in earlier], settings.band, FILES),
        **_band("bytes", [float(figures.bytes or 0) for figures in earlier], settings.band, BYTES),
        **_most("seconds", [figures.seconds for figures in earlier], settings.factor, SECONDS),
    }  # fmt: skip


def _band(column: str, earlier: Sequence[float], share: float, floor: float) -> Mapping[str, Cell]:
    """Return what is expected of a figure that may differ from its median by a share, and by `floor` in any case."""
    if len(earlier) < NIGHTS:
        return {}
    usual = median(earlier[:NIGHTS])
    apart = max(usual * share, floor)
    return {
        f"{column}_usual": _usual(usual),
        f"{column}_least": max(0, round(usual - apart)),
        f"{column}_most": round(usual + apart),
    }


def _most(column: str, earlier: Sequence[float], factor: float, floor: float) -> Mapping[str, Cell]:
    """The same of a figure that may be several times its median, and more than it by `floor` in any case."""
    if len(earlier) < NIGHTS:
        return {}
    usual = median(earlier[:NIGHTS])
    return {f"{column}_usual": _usual(usual), f"{column}_most": round(max(usual * factor, usual + floor))}


def _usual(value: float) -> str:
    return f"the median of the last {NIGHTS} nights is {round(value)}"


def _history(nights: Sequence[NightFigures], what: str) -> tuple[str, ...]:
    if len(nights) >= NIGHTS:
        return ()
    return (f"no history, {len(nights)} of {NIGHTS} nights: {what}",)


def _has(night: NightFigures, name: str) -> bool:
    return name in night.artifacts and night.artifacts[name].files is not None


def _sum(figures: Collection[ArtifactFigures]) -> ArtifactFigures:
    return ArtifactFigures(
        sum(artifact.size for artifact in figures),
        "",
        sum(artifact.files or 0 for artifact in figures),
        sum(artifact.bytes or 0 for artifact in figures),
        sum(artifact.seconds for artifact in figures),
        sum(artifact.added_bytes for artifact in figures),
        sum(artifact.added_objects for artifact in figures),
    )


def _some(paths: Collection[str], shown: int = 3) -> str:
    """The first paths, cut and with control characters escaped: they come from archives."""
    return ", ".join(repr(path)[1:121].rstrip("'") for path in sorted(paths)[:shown]) + " …" * (len(paths) > shown)
