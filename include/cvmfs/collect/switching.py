"""What a collection does with the signing key: the barrier, the reflog afterwards, and what stock tools read."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from include.cvmfs.commit.commit import ATTEMPTS, REFLOG_KEY, Head, fence, load_history, named_by, publish, read_head
from include.cvmfs.commit.manifest_verifier import Voucher
from include.cvmfs.commit.metadata_objects import Records
from include.cvmfs.commit.repair import repair_reflog
from include.cvmfs.coordination.generation import STATUS_KEY
from include.cvmfs.errors import FormatError, ManifestConflict, ReflogError
from include.cvmfs.format.database import Ref
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.history import Tag
from include.cvmfs.format.keys import ManifestSigner
from include.cvmfs.format.manifest import Manifest
from include.storage.errors import Conflict, NotFound
from include.storage.store import Store

_STOCK_TIME = "%a %b %d %H:%M:%S %Z %Y"


@dataclass(frozen=True, slots=True)
class Named:
    """What is known of a repository's revisions at one moment."""

    manifest: Manifest
    refs: tuple[Ref, ...]
    tags: tuple[Tag, ...]


class SwitchingSide:
    """A repository for a collection, by the gateway's credentials and the signing key."""

    def __init__(self, store: Store, fqrn: str, signer: ManifestSigner, voucher: Voucher | None = None) -> None:
        self.store = store
        self.fqrn = fqrn
        self._signer = signer
        self._voucher = voucher or Voucher(signer)

    def read(self) -> Named:
        """Manifest, reflog and tags as they are. Raises ReflogError for a reflog that is missing or damaged."""
        head = read_head(self.store, self.fqrn, self._voucher)
        stored = Records().take_reflog(self.store, head.manifest)
        try:
            refs = tuple(stored.reflog.refs())
        except FormatError as fault:
            raise ReflogError(self.fqrn, f"unreadable: {fault}; run: nightshift repo repair --reflog") from fault
        missing = [name for name, _ in named_by(head.manifest) if not stored.reflog.contains(name)]
        if missing:
            raise ReflogError(self.fqrn, f"lacks {missing[0]}, which the manifest names")
        return Named(head.manifest, refs, tuple(load_history(self.store, head.manifest).tags()))

    def manifest(self) -> Manifest:
        """As it is now. Raises what reading and verifying it raise."""
        return read_head(self.store, self.fqrn, self._voucher).manifest

    def rebuild_reflog(self, now: datetime) -> int:
        """Write it again from what manifest, tags and earlier revisions lead to; how many references were added."""
        return repair_reflog(
            self.store, self.fqrn, signer=self._signer, now=int(now.timestamp()), voucher=self._voucher
        )[1]

    def fence(self, now: datetime) -> None:
        """Return when no commit can switch any more that has read the generation before this call."""
        fence(self.store, self.fqrn, signer=self._signer, now=int(now.timestamp()), voucher=self._voucher)

    def forget(self, gone: Collection[ObjectHash], now: datetime) -> int:
        """Take roots and histories out of the reflog, and sign a manifest that names it; how many there were.

        What the manifest or a tag names by now stays. Raises ManifestConflict when others keep being faster.
        """
        for attempt in range(ATTEMPTS):
            try:
                return self._forget(gone, now)
            except ManifestConflict:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError  # the last attempt returns or raises

    def _forget(self, gone: Collection[ObjectHash], now: datetime) -> int:
        head: Head = read_head(self.store, self.fqrn, self._voucher)
        stored = Records().take_reflog(self.store, head.manifest)
        named = {name.digest for name, _ in named_by(head.manifest)}
        named |= {tag.hash.digest for tag in load_history(self.store, head.manifest).tags()}
        removed = stored.reflog.remove_all([hash_ for hash_ in gone if hash_.digest not in named])
        if not removed and stored.is_of(head.manifest):
            return 0  # else a commit switched while it was pruned, and its manifest names the reflog from before
        try:
            self.store.replace(REFLOG_KEY, stored.reflog.to_bytes(), expected=stored.version)
        except Conflict:
            raise ManifestConflict(self.fqrn, "another writer is replacing the reflog; read it again") from None
        later = max(int(now.timestamp()), head.manifest.timestamp)
        publish(self.store, head, replace(head.manifest, timestamp=later), signer=self._signer, now=later)
        return removed

    def note_collection(self, now: datetime) -> None:
        note_collection(self.store, now)


def note_collection(store: Store, now: datetime) -> None:
    """Write to the status file when the last collection ended, as the stock tools do. Raises StoreError."""
    try:
        data, version = store.get_versioned(STATUS_KEY)
        status = json.loads(data)
    except NotFound:
        status, version = {}, None
    except (ValueError, RecursionError):
        return  # not ours to mend: the stock tools write it
    if isinstance(status, dict):
        status["last_gc"] = now.astimezone(UTC).strftime(_STOCK_TIME)
        store.replace(STATUS_KEY, json.dumps(status, indent=2).encode() + b"\n", expected=version)
