"""Check a repository: everything that the stock check verifies, and what it passes over as warnings.

Never stops at the first problem; memory is bounded, whatever the repository's size. Rules: docs/formats.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from include.cvmfs.check.check_catalog import Audited, Mounted, audit, compare_counters
from include.cvmfs.check.check_objects import HEADS_AT_ONCE, NeededObjects, check_contents, check_presence
from include.cvmfs.check.findings import Findings, Lost, Problem, Subject
from include.cvmfs.commit.create import expiry_warning
from include.cvmfs.errors import CvmfsError, FormatError, ObjectDamaged, ObjectError
from include.cvmfs.format import database as reflogs, manifest as manifests
from include.cvmfs.format.database import History, Reflog
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, META, ObjectHash, hash_bytes
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.manifest import Manifest, alternative_key
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.repository import Repository, load_certificate
from include.storage.errors import Forbidden, NotFound, StoreError
from include.storage.file import abandoned, described
from include.storage.store import Store

_BRANCH = re.compile(r"[A-Za-z0-9@./_-]*")
_FETCH_AHEAD = 8
_NAMED_AT_MOST = 3


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """State of a check: ``step`` is what it does now, ``total`` is 0 when that is not known yet."""

    step: str
    done: int
    total: int = 0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Outcome of a check. Of very many problems the first are kept; ``problem_count`` and ``warning_count`` are exact.

    ``objects``: the different data objects named by the catalogs (0 when they were not looked for). ``lost``: what the
    store has not, or not whole, and could be sent again (``restore``); what hangs below a lost catalog is not known.
    """

    fqrn: str
    revision: int
    root: ObjectHash
    verified: bool
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    problem_count: int
    warning_count: int
    entries: int
    catalogs: int
    objects: int
    lost: tuple[Lost, ...] = ()

    @property
    def ok(self) -> bool:
        return self.problem_count == 0

    @property
    def verdict(self) -> str:
        """``no problems found``, or how many."""
        if self.ok:
            return "no problems found"
        return "1 problem found" if self.problem_count == 1 else f"{self.problem_count} problems found"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "repository": self.fqrn,
            "revision": self.revision,
            "root_hash": str(self.root),
            "verified": self.verified,
            "verdict": self.verdict,
            "problem_count": self.problem_count,
            "warning_count": self.warning_count,
            "problems": [problem.as_dict() for problem in self.problems],
            "warnings": [warning.as_dict() for warning in self.warnings],
            "entries": self.entries,
            "catalogs": self.catalogs,
            "objects": self.objects,
            "lost": [lost.as_dict() for lost in self.lost],
        }


def check(
    repository: Repository,
    *,
    data_objects: bool = True,
    contents: bool = False,
    quick: bool = False,
    tag: str | None = None,
    now: datetime | None = None,
    progress: Callable[[CheckProgress], None] = lambda _: None,
) -> CheckReport:
    """Check the revision that the manifest names, or the one of ``tag``.

    ``data_objects``: each exists and is not empty. ``contents``: each is read, and has its hash and size. ``quick``:
    only metadata and catalogs: no data objects, no other tags' catalogs. ``now`` (aware): when given, a whitelist that
    is near its end is warned of, and so are unfinished writes older than a day. Raises TagError for an unknown tag,
    StoreError when the store does not answer; everything else that is wrong is in the report.
    """
    findings = Findings()
    manifest = repository.manifest
    _signature(repository, findings)
    _whitelist(repository, findings, now)
    _meta_info(repository, findings)
    history = _history(repository, findings)
    _alternative_paths(repository, findings)
    if now is not None:
        _unfinished(repository.store, findings, now)
    root = Mounted("", manifest.root, manifest.root_size)
    revision = manifest.revision
    if tag is not None:
        tagged = repository.tag(tag)
        root, revision = Mounted("", tagged.hash, tagged.size), tagged.revision
    if history is not None and not quick:
        _tagged_catalogs(repository.store, history, findings)
    needed = NeededObjects()
    try:
        tree = _Tree(repository, findings, needed, progress)
        tree.check(root)
        _layouts(tree.layouts, findings)
        objects = 0
        if (data_objects or contents) and not quick:
            objects = len(needed)
            look = check_contents if contents else check_presence
            look(repository.store, needed, findings, lambda done: progress(CheckProgress("objects", done, objects)))
    finally:
        needed.close()
    _reflog(repository, findings)
    return CheckReport(
        manifest.fqrn, revision, root.hash, repository.verified,
        tuple(findings.problems), tuple(findings.warnings), findings.problem_count, findings.warning_count,
        tree.entries, tree.catalogs, objects, tuple(findings.lost),
    )  # fmt: skip


# -- what the manifest names


def _signature(repository: Repository, findings: Findings) -> None:
    """Opening verified it against a key if one was given; without one the manifest must fit its own certificate."""
    if repository.verified:
        return
    try:
        manifests.verify(repository.trusted.signed, load_certificate(repository.store, repository.manifest))
    except CvmfsError as fault:
        findings.problem(Subject.SIGNATURE, "", str(fault))


def _whitelist(repository: Repository, findings: Findings, now: datetime | None) -> None:
    """Opening found it in force; whether it stays so for the next hours is worth a warning."""
    whitelist = repository.trusted.whitelist
    warning = expiry_warning(whitelist, now) if whitelist is not None and now is not None else None
    if warning is not None:
        findings.warning(Subject.WHITELIST, "", warning)


def _unfinished(store: Store, findings: Findings, now: datetime) -> None:
    """Leftovers of killed writers take room, and no listing shows it."""
    try:
        leftovers = abandoned(store, now)
    except StoreError:
        return  # a reader may not ask for it
    if leftovers:
        findings.warning(Subject.STORE, "", described(leftovers, store))


def _meta_info(repository: Repository, findings: Findings) -> None:
    try:
        repository.meta()
    except FormatError as fault:
        findings.warning(Subject.META_INFO, "", str(fault))
    except CvmfsError as fault:
        findings.problem(Subject.META_INFO, "", str(fault))


def _reflog(repository: Repository, findings: Findings) -> None:
    """Writers replace it just before the manifest: what looks wrong is compared with the manifest of now."""
    problems, note = _judged_reflog(repository.store, repository.manifest)
    if (problems or note) and (now := _manifest_now(repository)) is not None:
        problems, note = _judged_reflog(repository.store, now)
    for what in problems:
        findings.problem(Subject.REFLOG, "", what)
    if note is not None:
        findings.warning(Subject.REFLOG, "", note)


def _judged_reflog(store: Store, manifest: Manifest) -> tuple[list[str], str | None]:
    """Return what is wrong with the reflog; and, if nothing is, that it is not the one that the manifest names."""
    named = manifest.reflog
    try:
        data = store.get(reflogs.KEY)
    except (NotFound, Forbidden):
        return [f"{reflogs.KEY} is not there, but the manifest names it"] if named is not None else [], None
    wrong = []
    if named is None:
        wrong.append(f"{reflogs.KEY} exists, but the manifest does not have its hash (field Y)")
    try:
        reflog = Reflog.load(data)
        reflog.refs()
        if reflog.fqrn != manifest.fqrn:
            wrong.append(f"is of {reflog.fqrn!r}")
        words = {CATALOG: "root catalog", CERTIFICATE: "certificate", HISTORY: "history", META: "meta info"}
        wrong += [f"lacks the {words[name.suffix]} {name}" for name in manifest.named if not reflog.contains(name)]
        reflog.close()
    except FormatError as fault:
        wrong.append(str(fault))
    if named is None or (digest := hash_bytes(data, named.algorithm)).digest == named.digest:
        return wrong, None
    differs = f"{reflogs.KEY} has the hash {digest}, the manifest names {named}"
    if wrong:
        return [differs, *wrong], None
    return [], f"{differs}; a stock garbage collection or a commit that died leaves this, the next commit ends it"


def _manifest_now(repository: Repository) -> Manifest | None:
    """The manifest once more: another writer may have switched since the repository was opened."""
    try:
        signed = Manifest.parse(repository.store.get(manifests.KEY))
        manifests.verify(signed, load_certificate(repository.store, signed.manifest), fqrn=repository.fqrn)
        same_certificate = signed.manifest.certificate == repository.manifest.certificate
        return signed.manifest if same_certificate else None
    except (CvmfsError, NotFound):
        return None


def _history(repository: Repository, findings: Findings) -> History | None:
    say = partial(findings.problem, Subject.HISTORY, "")
    try:
        history = repository.history()
        if history is None:
            return None
        if history.fqrn != repository.fqrn:
            say(f"is of {history.fqrn!r}")
        for branch in history.branches():
            if not _BRANCH.fullmatch(branch.name):
                say(f"branch {branch.name!r} has a name that stock tools refuse")
        for what in history.problems():
            say(what)
    except CvmfsError as fault:
        say(str(fault))
        return None
    return history


def _tagged_catalogs(store: Store, history: History, findings: Findings) -> None:
    """A tag whose root catalog is gone cannot be mounted or rolled back to; the stock check does not look."""
    roots = {tag.hash: tag.name for tag in reversed(history.tags())}

    def exists(root: ObjectHash) -> bool:
        try:
            return store.exists(root.with_suffix(CATALOG).key)
        except Forbidden:
            return False

    with ThreadPoolExecutor(min(HEADS_AT_ONCE, len(roots) or 1)) as pool:
        for (root, name), is_stored in zip(roots.items(), pool.map(exists, roots), strict=True):
            if not is_stored:
                what = f"the root catalog of tag {name} is not in the store: {root.with_suffix(CATALOG).key}"
                findings.warning(Subject.TAG, "", what, root)


def _alternative_paths(repository: Repository, findings: Findings) -> None:
    manifest = repository.manifest
    if not manifest.alt_paths:
        return
    for name in manifest.named:
        stored = repository.store.head(key := alternative_key(name))
        if stored is None or not stored.size:
            say = findings.problem if name.suffix in (CATALOG, CERTIFICATE) else findings.warning
            say(Subject.ALTERNATIVE_PATH, "", f"{key} is {'empty' if stored else 'not in the store'}")


# -- the catalogs


def _layouts(layouts: Mapping[str, list[str]], findings: Findings) -> None:
    """Stock publishers merge a nested catalog into its parent without naming columns."""
    if len(layouts) < 2:
        return
    counted = "; ".join(
        f"{len(paths)} with {layout} ({', '.join(path or '/' for path in sorted(paths)[:_NAMED_AT_MOST])}"
        f"{', …' if len(paths) > _NAMED_AT_MOST else ''})"
        for layout, paths in sorted(layouts.items())
    )
    cure = "bring them to one layout with: nightshift repo repair --catalog-layout"
    what = "stock publishers abort, or lose files, where they merge catalogs of different layouts"
    findings.problem(Subject.LAYOUT, "", f"catalogs of {len(layouts)} layouts: {counted}; {what}; {cure}")


@dataclass(slots=True)
class _Open:
    """A catalog whose nested ones are still being checked; ``below`` counts them up."""

    mounted: Mounted
    audited: Audited
    parent: _Open | None
    left: int
    below: Counts = field(default_factory=Counts)
    complete: bool = True


class _Tree:
    """All catalogs from a root down, each once it is known from above."""

    def __init__(
        self,
        repository: Repository,
        findings: Findings,
        needed: NeededObjects,
        progress: Callable[[CheckProgress], None],
    ) -> None:
        self._store = repository.store
        self._cache = repository.catalogs
        self._findings = findings
        self._needed = needed
        self._progress = progress
        self._known = 1
        self.layouts: dict[str, list[str]] = {}
        self.entries = 0
        self.catalogs = 0

    def check(self, root: Mounted) -> None:
        pending: list[tuple[Mounted, _Open | None]] = [(root, None)]
        with ThreadPoolExecutor(_FETCH_AHEAD) as pool:
            coming: dict[bytes, Future[object]] = {}
            while pending:
                mounted, parent = pending.pop()
                if (awaited := coming.pop(mounted.hash.digest, None)) is not None:
                    awaited.exception()
                audited = self._audit(mounted)
                if audited is None or not audited.complete:
                    _spoil(parent)
                if audited is None:
                    self._close(parent)
                    continue
                opened = _Open(mounted, audited, parent, len(audited.children), complete=audited.complete)
                pending.extend((child, opened) for child in reversed(audited.children))
                for child, _ in pending[-_FETCH_AHEAD:]:
                    if child.hash.digest not in coming:
                        coming[child.hash.digest] = pool.submit(self._warm, child.hash)
                if not audited.children:
                    self._close(opened)

    def _audit(self, mounted: Mounted) -> Audited | None:
        try:
            database = self._cache.database(mounted.hash)
        except (ObjectError, Forbidden) as fault:
            name = mounted.hash.with_suffix(CATALOG)
            object_meta = self._store.head(name.key) if isinstance(fault, ObjectDamaged) else None
            stored = object_meta.size if object_meta else None
            self._findings.lose(Lost(name, mounted.path, str(fault), stored=stored), mounted.hash)
            return None
        except CvmfsError as fault:
            self._findings.problem(Subject.CATALOG, mounted.path, str(fault), mounted.hash)
            return None

        needed, catalog = self._needed, mounted.hash
        audited = audit(
            mounted, database, self._findings,
            lambda name, path, size, form: needed.add(name, path, catalog, size, form),
        )  # fmt: skip
        if audited.columns:
            layout = Layout.of(audited.columns)
            self.layouts.setdefault(layout.value if layout else "columns of another order", []).append(mounted.path)
        self.catalogs += 1
        self.entries += audited.entries
        self._known += len(audited.children)
        self._progress(CheckProgress("catalogs", self.catalogs, self._known))
        return audited

    def _warm(self, name: ObjectHash) -> None:
        """Bring a catalog into the cache; only there is it kept, within the cache's budget."""
        self._cache.database(name)

    def _close(self, opened: _Open | None) -> None:
        """A catalog's last nested one is done: compare its subtree counters, then go on with the one above."""
        while opened is not None:
            opened.left -= 1
            if opened.left > 0:
                return
            if opened.complete:
                compare_counters(self._findings, opened.mounted, "subtree", opened.audited.stated, opened.below)
            if opened.parent is not None:
                opened.parent.below += opened.audited.own + opened.below
            opened = opened.parent


def _spoil(opened: _Open | None) -> None:
    """Unread rows cannot be counted: nothing above is blamed for it."""
    while opened is not None:
        opened.complete = False
        opened = opened.parent
