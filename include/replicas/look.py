"""Looks at servers of a repository, one as a client has it, or its replicas, whose lag is recorded; jobs over SSH."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import requests
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from include.cvmfs.coordination.generation import STATUS_KEY, parse_status_time
from include.cvmfs.errors import FormatError, RepositoryError
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.objects import Hasher
from include.cvmfs.revision.repository import OpenFailure, Repository, failure_of, fetch_trusted
from include.errors import NightshiftError
from include.ledger.engine import Bind, reading, writing
from include.publishers.server.commands import Verb
from include.publishers.server.maintenance import DetachedJob
from include.publishers.server.publisher import address_of
from include.replicas.states import ReplicaLook, ReplicaRule, ReplicaState, SeenReplica, judge, replicas
from include.settings.errors import SettingsError
from include.settings.services import chosen
from include.site.site import Site
from include.storage.errors import StoreError, Unavailable
from include.storage.open import StoreOptions, open_store
from include.storage.remote import HttpStore

TIMEOUT_S = 30
REDIRECTIONS = 4
"""So many are followed, as clients do."""
OBJECT_BYTES = 1 << 30
OPTIONS = StoreOptions(timeout_s=TIMEOUT_S, retries=0)


@dataclass(frozen=True, slots=True)
class ServerLook:
    """Answer of a server: its revision, and where the object came from; `fault`: what is wrong with it."""

    url: str
    revision: int = 0
    text: str = ""
    fault: str = ""


def see_server(url: str, fqrn: str, public_keys: Sequence[bytes], now: datetime | None = None) -> ServerLook:
    """Read manifest and one object of a server; what is wrong is returned as its fault."""
    try:
        repository = Repository.open(open_store(url, options=OPTIONS), fqrn=fqrn, public_keys=public_keys, now=now)
        name = _some_object(repository)
    except NightshiftError as error:
        return ServerLook(url, fault=str(error))
    try:
        with requests.Session() as session:
            session.max_redirects = REDIRECTIONS
            session.trust_env = False
            answer = session.get(f"{url}/{name.key}", timeout=TIMEOUT_S, stream=True)
            answer.raise_for_status()
            digest, size = Hasher(name.algorithm), 0
            for block in answer.iter_content(1 << 20):
                digest.update(block)
                size += len(block)
                if size > OBJECT_BYTES:
                    break
    except requests.RequestException as error:
        return ServerLook(url, repository.manifest.revision, fault=f"{name.key} cannot be fetched: {error}")
    if digest.finish() != name.digest:
        return ServerLook(url, repository.manifest.revision, fault=f"{name.key} has other bytes than its hash says")
    steps = [step.headers.get("Location", "") for step in answer.history]
    way = f"redirected to {steps[-1].partition('/cvmfs/')[0]}" if steps else "not redirected"
    return ServerLook(url, repository.manifest.revision, f"{name.key} of {size} bytes is right, {way}")


def _some_object(repository: Repository) -> ObjectHash:
    """A data object, if the repository has one; else its root catalog."""
    first = next((name for name, _ in repository.revision.objects_below() if name.suffix != "C"), None)
    return first or repository.manifest.root


MARKER_KEY = ".cvmfs_is_snapshotting"
DOCUMENT_BYTES = 256 << 10
"""Limit for manifest, certificate, whitelist and status; each has a few KiB."""
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
        marker = store.head(MARKER_KEY)
    except Unavailable:
        raise
    except StoreError:
        return None  # S3 denies what is not there to readers that may not list
    if marker is None:
        return None
    # its content is the local time of that machine; from a server that states no time, `modified` is in 1970
    return min(marker.modified, now) if marker.modified > _EARLIEST else now


def _last_snapshot(store: ReplicaStore) -> datetime | None:
    """Return what the stratum 1 states; None where it states nothing that can be read."""
    try:
        fields = json.loads(store.get(STATUS_KEY))
    except (NightshiftError, ValueError, RecursionError):
        return None
    return parse_status_time(fields.get("last_snapshot")) if isinstance(fields, dict) else None


AT_ONCE = 8


def look_at_replicas(site: Site, fqrn: str, now: datetime, names: Sequence[str] = ()) -> list[ReplicaLook]:
    """Return how these replicas compare with stratum 0, or all; changes nothing. One that is away hides no other.

    Raises SettingsError for an unknown name, and what reading stratum 0's manifest raises.
    """
    settings = site.settings.repository(fqrn)
    selected = chosen(fqrn, settings.replicas, names)
    if not selected:
        return []
    keys = [settings.public_key.read_bytes()]
    with ThreadPoolExecutor(AT_ONCE, "replica") as pool:
        answers = list(
            pool.map(lambda replica: see(replica.name, replica.url, fqrn=fqrn, public_keys=keys, now=now), selected)
        )
    # after the replicas: what they got meanwhile it has, too
    head = site.head(fqrn).manifest
    before = {look.replica: look for look in looks_of(site.ledger, fqrn)}
    return [judge(look, head, before.get(look.name), now) for look in answers]


def record(bind: Bind, looks: Iterable[ReplicaLook]) -> None:
    """Note the looks in the ledger; one that is older than what is there is left out."""
    rows = [look.to_row() for look in looks]

    def work(connection: Connection) -> None:
        for row in rows:
            key = (replicas.c.repository == row["repository"], replicas.c.replica == row["replica"])
            newer = update(replicas).where(*key, replicas.c.looked_at <= row["looked_at"])
            if connection.scalar(select(replicas.c.replica).where(*key)) is None:
                try:
                    with connection.begin_nested():
                        connection.execute(insert(replicas).values(row))
                    continue
                except IntegrityError:
                    pass  # another process looked in this moment
            connection.execute(newer.values(row))

    writing(bind, work)


def looks_of(bind: Bind, fqrn: str) -> list[ReplicaLook]:
    """The last look at each replica of a repository, by name."""
    query = select(replicas).where(replicas.c.repository == fqrn).order_by(replicas.c.replica)
    with reading(bind) as connection:
        return [ReplicaLook.from_json(row) for row in connection.execute(query).mappings()]


def rules_of(site: Site, fqrn: str) -> dict[str, ReplicaRule]:
    """The limits of a repository's replicas, by name."""
    return {replica.name: ReplicaRule.of(replica) for replica in site.settings.repository(fqrn).replicas}


_OPTIONS = {Verb.SNAPSHOT: (), Verb.COLLECT: ("-f",)}


def job_on(site: Site, fqrn: str, replica: str, verb: str) -> DetachedJob:
    """The job of a replica's machine: `snapshot` or `gc`. Raises SettingsError for a replica without `node:`."""
    (settings,) = chosen(fqrn, site.settings.repository(fqrn).replicas, [replica])
    if settings.node is None:
        raise SettingsError(f"replica {replica} of {fqrn} has no machine; add `node:` to it in the configuration.")
    login, kind = settings.node, Verb(verb)
    command = (*login.command, kind.value, *_OPTIONS[kind], fqrn)
    return DetachedJob(address_of(fqrn, login, site.secrets), kind, login.spool.replace("{fqrn}", fqrn), command)
