"""What a publisher's root was really derived from, whatever the publisher reports.

A stock publisher works on the revision that it has mounted, but reports the manifest that it reads when it publishes.
If another publication came in between, the difference of the two takes that one's work back. The root catalog itself
names its predecessor, and is believed (docs/formats.md, gateway).
"""

from __future__ import annotations

from collections.abc import Callable

from include.cvmfs.errors import BaseChanged, ObjectMissing
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash

STEPS = 32  # intermediate roots that a publisher may have made on its way


def true_base(
    catalogs: CatalogCache, *, told: ObjectHash, new: ObjectHash, is_revision: Callable[[ObjectHash], bool]
) -> ObjectHash:
    """The root that ``new`` was derived from: ``told``, or the revision that its catalogs name instead.

    Roots in between that never were a revision are steps of the same publisher. ``told`` counts where the catalog names
    no predecessor. Raises BaseChanged when none of the roots named is a revision, ObjectMissing for an unknown ``new``.
    """
    if new.digest == told.digest:
        return told
    at = _before(catalogs, new)
    if at is None:
        return told
    for _ in range(STEPS):
        if at.digest == told.digest or is_revision(at):
            return at
        try:
            before = _before(catalogs, at)
        except ObjectMissing:
            break
        if before is None:
            break
        at = before
    raise BaseChanged(
        "",
        f"the new root catalog was derived from {at}, not from {told} as in the request, and that is no revision of "
        "this repository; derive the change from the current revision",
    )


def _before(catalogs: CatalogCache, root: ObjectHash) -> ObjectHash | None:
    catalog = catalogs.open(root)
    try:
        return catalog.previous_revision
    finally:
        catalog.close()
