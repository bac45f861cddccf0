"""What was acknowledged must stand: in the revision that was named, and at the end in the final tree."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.publishing.places import Place
from bench.publishing.repositories import FQRN
from include.cvmfs.check.check import check
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision

_TOLD = 5


def faults(place: Place, public_key: Path, acknowledged: list[dict[str, Any]], first: int) -> list[str]:
    """What is wrong; ``first``: the revision before all those acknowledged. Changes are swaps or merged trees."""
    store = place.open()
    repository = Repository.open(store, fqrn=FQRN, public_keys=[public_key.read_bytes()], now=datetime.now(UTC))
    by_revision: dict[int, list[dict[str, Any]]] = defaultdict(list)
    last: dict[str, dict[str, Any]] = {}
    for commit in acknowledged:
        by_revision[commit["revision"]].append(commit)
        if commit["revision"] > last.get(commit["destination"], {"revision": 0})["revision"]:
            last[commit["destination"]] = commit
    expected, found = first + len(by_revision), []
    if repository.manifest.revision != expected:
        found.append(f"the repository is at revision {repository.manifest.revision}, not {expected}")
    catalogs = CatalogCache(store)
    view = Revision(catalogs, repository.manifest.root)
    found += [f"final tree: {fault}" for commit in last.values() if (fault := _fault(view, commit))]
    while (number := view.root.revision) > first:
        here = by_revision.pop(number, [])
        if not here:
            found.append(f"nobody was told of revision {number}")
        found += [f"revision {number}: {fault}" for commit in here if (fault := _fault(view, commit))]
        before = view.root.previous_revision
        view.close()
        if before is None:
            break
        view = Revision(catalogs, before)
    found += [f"revision {number} was acknowledged and is none" for number in by_revision]
    report = check(repository, quick=True)
    found += [f"check: {problem.as_dict()}" for problem in report.problems[:_TOLD]]
    return found


def _fault(view: Revision, commit: dict[str, Any]) -> str | None:
    path = commit["destination"]
    if "entries" in commit:
        entry, total = view.lookup(path), view.inside(path).statistics.own.entries
        wanted = commit["entries"] + 2  # the catalog's own root and its marker
        return None if entry and total == wanted else f"{path} holds {total} entries, not {wanted}"
    reference = view.nested_at(path)
    held = reference.hash.text if reference else "nothing"
    return None if held == commit["root"] else f"{path} holds {held}, not {commit['root']}"
