"""Writes that were begun and never finished, because their writer was killed: found, described, removed by age."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from include.storage.file import FileStore
from include.storage.store import Store, Unfinished

OLD = timedelta(days=1)
"""No write takes so long."""


def abandoned(store: Store, now: datetime) -> list[Unfinished]:
    """The unfinished writes of a store that are older than a day, the oldest first. ``now``: aware."""
    return sorted(
        (write for write in store.unfinished() if now - write.since > OLD), key=lambda write: (write.since, write.name)
    )


def remove_abandoned(store: Store, now: datetime, *, dry_run: bool = False) -> list[Unfinished]:
    """Remove them where the store is a folder; what was removed, or would be. Nothing of other stores is removed."""
    if not isinstance(store, FileStore):
        return []
    if dry_run:
        return abandoned(store, now)
    return sorted(store.remove_unfinished(now - OLD), key=lambda write: (write.since, write.name))


def described(found: Sequence[Unfinished], store: Store) -> str:
    """The message about them, with the hint. ``found`` is not empty, and the oldest comes first."""
    what, hint = "multipart upload", "let a lifecycle rule of the bucket abort them (AbortIncompleteMultipartUpload)"
    if isinstance(store, FileStore):
        what, hint = "unfinished file", "remove them with `nightshift repo repair FQRN --unfinished`"
    plural = "" if len(found) == 1 else "s"
    sizes = [write.size for write in found if write.size is not None]
    size = f" of {sum(sizes) / 1e6:,.1f} MB" if sizes else ""
    return f"{len(found)} {what}{plural}{size} of killed writers, the oldest of {found[0].since:%Y-%m-%d}; {hint}"
