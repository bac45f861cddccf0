"""Provenance of a path: what the ledger and the signed documents have of it, and whether the path still has that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.paths import MOST_LINKS, ancestors, link_target
from include.cvmfs.revision.repository import Repository
from include.provenance.records import ChangeKind, CheckedRecord, ProvenanceRecord, check, nearest, unknown_documents
from include.site.site import Site
from include.storage.errors import StoreError

_ORIGINS = 100
_HANDS = 8


@dataclass(frozen=True, slots=True)
class PathRecord:
    """Record with its document's key, what that is worth, and what the path has `now`, in words.

    `asked`: the path that it answers for, another one than was asked for where a link leads there. `origin`: who
    published first what was inherited, moved or put in the place of something else.
    """

    asked: str
    record: ProvenanceRecord
    document: str | None
    checked: CheckedRecord
    now: str
    origin: ProvenanceRecord | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            **self.record.to_json(),
            "document": self.document,
            "checked": self.checked.verdict,
            "good": self.checked.good,
            "now": self.now,
            "origin": self.origin.to_json() if self.origin is not None else None,
        }


@dataclass(frozen=True, slots=True)
class PathProvenance:
    """All that is known of a path in a repository; `stands`: whether the path exists, None if that is not known."""

    repository: str
    path: str
    answers: tuple[PathRecord, ...]
    stands: bool | None


def ask(site: Site, fqrn: str, path: str, *, limit: int = 1) -> PathProvenance:
    """Return who published a path or the nearest tree above it, and what links on the way lead to; the newest first
    for each.

    Documents that the ledger does not have come last. If the repository cannot be read, the records are returned all
    the same, and `now` has the reason. Raises SettingsError and LedgerError.
    """
    head: Repository | None
    try:
        head, fault = site.head(fqrn), ""
        ways, stands = _ways(head, path)
    except (CvmfsError, StoreError, OSError) as error:
        head, fault, ways, stands = None, str(error), [path], None
    answers: dict[str, PathRecord] = {}

    def answer(way: str, record: ProvenanceRecord, key: str | None, checked: CheckedRecord) -> None:
        now = f"not known: {fault}" if head is None else _now(head, record)
        answers.setdefault(key or repr(record), PathRecord(way, record, key, checked, now, _origin(site, record, way)))

    for way in ways:
        for record, key in nearest(site.ledger, fqrn, way, limit=limit):
            answer(way, record, key, check(site, record, key))
    for way in ways:
        for record, key, worth in unknown_documents(site, fqrn, way)[:limit]:
            good = None if worth.good else worth.good
            answer(way, record, key, CheckedRecord(good, f"{worth.verdict}, and the ledger does not have it"))
    return PathProvenance(fqrn, path, tuple(answers.values()), stands)


def _ways(head: Repository, path: str) -> tuple[list[str], bool]:
    """The path, and where it leads by the links on its way; and whether anything exists at its end."""
    found = [path]
    for _ in range(MOST_LINKS):
        here, gone = found[-1], False
        for place in ancestors(here):
            entry = head.revision.lookup(place)
            if entry is None:
                return found, False
            if entry.is_symlink:
                target = link_target(place, entry.symlink)
                found.append(target + here[len(place) :])
                gone = True
                break
        if not gone:
            return found, True
    return found, False


def _origin(site: Site, record: ProvenanceRecord, asked: str) -> ProvenanceRecord | None:
    """Return who published what a record took from elsewhere, through as many hands as it went."""
    origin, here = None, record
    rest = asked[len(record.path) :]
    for _ in range(_HANDS):
        if here.came_from is None:
            return origin
        known = nearest(site.ledger, record.repository, here.came_from + rest, limit=_ORIGINS, until=here.revision)
        found = [change for change, _ in known if change.kind is not ChangeKind.REMOVED and change != here]
        same = [change for change in found if here.artifact_sha256 in (None, change.artifact_sha256)]
        if not same:
            return origin
        rest = (here.came_from + rest)[len(same[0].path) :]
        origin = here = same[0]
    return origin


def _now(head: Repository, record: ProvenanceRecord) -> str:
    """Return what the path of a record has now."""
    try:
        entry, there = head.revision.lookup(record.path), head.revision.nested_at(record.path)
    except (CvmfsError, StoreError) as error:
        return f"not known: {error}"
    if record.kind is ChangeKind.REMOVED:
        return "nothing, as it was left" if entry is None else "the path exists again"
    if record.kind is ChangeKind.LINK:
        if entry is None:
            return "no such link any more"
        if not entry.is_symlink:
            return "something else, that is no link"
        target = link_target(record.path, entry.symlink)
        if record.leads_to not in (entry.symlink, target):
            return f"a link that leads to {target}"
        return "this very link" if head.revision.lookup(target) is not None else "this very link, which leads nowhere"
    if there is None and (record.nested_hash is not None or entry is None):
        return "no such tree any more"
    if there is None:
        return "the path exists"  # a file or directory that was moved has no hash to compare
    return "this very tree" if str(there.hash) == record.nested_hash else "another tree"


def lines(answers: Sequence[PathRecord]) -> list[str]:
    """For a reader: a block for each answer, what is not known left out."""
    found: list[str] = []
    for answer in answers:
        if found:
            found.append("")
        facts = answer.to_json()
        origin = facts.pop("origin") or {}
        facts |= {f"origin {name}": origin.get(name) for name in _OF_ORIGIN}
        found += [
            f"{name.replace('_', ' '):22} {value}" for name, value in facts.items() if name not in _SILENT and value
        ]
    return found


_SILENT = {"format", "good"}
_OF_ORIGIN = ("path", "build_id", "artifact_sha256", "source", "revision", "run_id", "holder", "published_at")
