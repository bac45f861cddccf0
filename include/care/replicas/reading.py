"""What a replica shows over HTTP. It is hostile input: answers are bounded in size and time, and verified."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from include.care.replicas.states import ReplicaState, SeenReplica
from include.cvmfs.coordination.generation import STATUS_KEY, parse_status_time
from include.cvmfs.errors import FormatError, RepositoryError
from include.cvmfs.revision.trust import OpenFailure, failure_of, fetch_trusted
from include.errors import NightshiftError
from include.storage.errors import StoreError, Unavailable
from include.storage.http import HttpStore
from include.storage.options import StoreOptions

MARKER_KEY = ".cvmfs_is_snapshotting"
DOCUMENT_BYTES = 256 << 10
"""Of manifest, certificate, whitelist and status; each has a few KiB."""
DOCUMENT_S = 10.0
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


class ReplicaStore(HttpStore):
    """A replica's documents: small, and here within seconds, whatever the server sends."""

    def get(self, key: str) -> bytes:
        """Raises FormatError for more than DOCUMENT_BYTES, Unavailable after DOCUMENT_S, and as every store."""
        data, end = bytearray(), time.monotonic() + DOCUMENT_S
        for piece in self.stream(key, block=1):  # pieces as they arrive, so that the time is checked
            data += piece
            if len(data) > DOCUMENT_BYTES:
                raise FormatError("document of a replica", f"{self.url}/{key} has more than {DOCUMENT_BYTES} bytes")
            if time.monotonic() > end:
                raise Unavailable(f"{self.url}/{key} is not here after {DOCUMENT_S:g} s", key=key, cause="timeout")
        return bytes(data)


def see(name: str, url: str, *, fqrn: str, public_keys: Sequence[bytes], now: datetime) -> SeenReplica:
    """Read a replica; what is wrong with it is returned as its fault. `public_keys`: PEM texts of master keys."""
    store = ReplicaStore.open(url, StoreOptions(timeout_s=DOCUMENT_S, retries=1, connections=4))
    manifest, fault, reason = None, ReplicaState.UNREACHABLE, ""
    try:
        manifest = fetch_trusted(store, fqrn=fqrn, public_keys=public_keys, now=now).manifest
    except NightshiftError as error:
        fault, reason = _fault(error), str(error)
    try:
        snapshot = _snapshot_since(store, now)
    except Unavailable as error:
        # without the marker it is not known whether a snapshot runs
        return SeenReplica(name=name, url=url, reason=reason or str(error))
    last = _last_snapshot(store)
    return SeenReplica(
        name=name, url=url, manifest=manifest, fault=fault, reason=reason, snapshot_since=snapshot, last_snapshot=last
    )


def _fault(error: NightshiftError) -> ReplicaState:
    stage = failure_of(error)
    if isinstance(error, StoreError) or (isinstance(error, RepositoryError) and stage is OpenFailure.DOWNLOAD):
        return ReplicaState.UNREACHABLE
    return ReplicaState.WRONG_REPOSITORY if stage is OpenFailure.NAME_MISMATCH else ReplicaState.BAD_SIGNATURE


def _snapshot_since(store: ReplicaStore, now: datetime) -> datetime | None:
    try:
        found = store.head(MARKER_KEY)
    except Unavailable:
        raise
    except StoreError:
        return None  # S3 denies what is not there to readers that may not list
    if found is None:
        return None
    # its content is the local time of that machine; from a server that states no time, `modified` is in 1970
    return min(found.modified, now) if found.modified > _EARLIEST else now


def _last_snapshot(store: ReplicaStore) -> datetime | None:
    """As the stratum 1 states it; None where it states nothing that can be read."""
    try:
        fields = json.loads(store.get(STATUS_KEY))
    except (NightshiftError, ValueError, RecursionError):
        return None
    return parse_status_time(fields.get("last_snapshot")) if isinstance(fields, dict) else None
