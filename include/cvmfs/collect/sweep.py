"""Everything that a collection changes: deletions under fresh claims, and what needs the signing key.

Deletions are requests of many keys, several under way. The key makes the barrier and the reflog afterwards.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from include.cvmfs.collect.report import SETTLE, CollectionRules
from include.cvmfs.commit.commit import REFLOG_KEY, Head, fence, load_history, named_by, publish, read_head, until_first
from include.cvmfs.commit.metadata_objects import Records
from include.cvmfs.commit.repair import repair_reflog
from include.cvmfs.coordination import generation
from include.cvmfs.coordination.condemned import SHARDS, Index, hashes_in, read_shard
from include.cvmfs.errors import CollectionBusy, FormatError, ManifestConflict, ReflogError
from include.cvmfs.format.database import Ref, Tag
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.keys import ManifestSigner
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.repository import ManifestVerifier
from include.storage.errors import Conflict, NotFound, StoreError
from include.storage.store import Store, Version

STALE = generation.TAKEOVER / 2
"""A claim that was not renewed for so long is renewed before anything is deleted: another may have taken over."""
RENEW_EVERY = generation.TAKEOVER / 6
OVERTAKEN = "another collection took over, while this one made no progress"


class Claim:
    """The document as this collector wrote it last. Moves may come from two threads."""

    def __init__(self, store: Store, fqrn: str, now: Callable[[], datetime]) -> None:
        self._store = store
        self._fqrn = fqrn
        self._now = now
        self._lock = threading.Lock()
        self._version: Version | None = None
        self._written: datetime | None = None
        self.document = generation.Generation(0, generation.CollectionPhase.IDLE, now())
        self.took_over = False
        """Another collector began what is under way: its requests may still be carried out by the store."""

    @property
    def held(self) -> bool:
        """Tell whether this collector has written the document."""
        return self._written is not None

    def take(self) -> generation.Look:
        """Begin a collection, or take up one that died: its sweep is then to be finished.

        Raises CollectionBusy while another is at work, StoreError.
        """
        before = generation.look(self._store)
        self.document, self._version = before.generation or self.document, before.version
        document, now = self.document, self._now()
        dies = document.since + generation.TAKEOVER
        if document.phase is not generation.CollectionPhase.IDLE and now < dies and not is_dead(document.collector):
            what = f"collection {document.number} is {document.phase.value}; it counts as dead at {dies:%H:%M} UTC"
            raise CollectionBusy(self._fqrn, f"{what} if it makes no progress; run it again then", dies)
        match document.phase:
            case generation.CollectionPhase.IDLE:
                self.move(generation.CollectionStep.BEGIN)
            case generation.CollectionPhase.SWEEPING:
                self.took_over = True
                self.move(generation.CollectionStep.RENEW)
            case _:
                self.move(generation.CollectionStep.BEGIN_ANEW)
        return before

    def move(self, step: generation.CollectionStep, *, condemned: str | None = None, swept: int | None = None) -> None:
        """Write the document after a step. Raises CollectionBusy if another collector has written it, StoreError."""
        with self._lock:
            now = self._now()
            document = self.document.after(step, now, condemned=condemned, swept=swept)
            at_work = document.phase is not generation.CollectionPhase.IDLE
            document = replace(document, collector=process_name(os.getpid()) if at_work else None)
            try:
                self._version = generation.write(self._store, document, expected=self._version)
            except Conflict:
                raise CollectionBusy(self._fqrn, OVERTAKEN, now + generation.TAKEOVER) from None
            self.document, self._written = document, now

    @property
    def age(self) -> timedelta:
        """Since when it was not written. Before the first time: zero."""
        return timedelta() if self._written is None else self._now() - self._written

    @property
    def fresh(self) -> bool:
        """Tell whether no other collector can have taken over."""
        return self.held and timedelta() <= self.age < STALE

    def keep(self) -> None:
        """Renew it from time to time, in work that takes long."""
        if self.held and not timedelta() <= self.age < RENEW_EVERY:
            self.move(generation.CollectionStep.RENEW)


def process_name(process: int) -> str | None:
    """A name of a process of this machine that no other process has, before or after it; None if it is not found.

    Boot of the machine, name space of process numbers (of a container), number, and start in ticks since the boot.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/pid").stat().st_ino
        return f"{boot}:{space}:{process}:{_state(process)[19]}"
    except OSError:
        return None


def is_dead(name: str | None) -> bool:
    """Tell whether it is proven that a process has ended: it was one of this machine and of this container."""
    mine = process_name(os.getpid())
    if name is None or mine is None:
        return False
    boot, space, _, _ = mine.split(":")
    if (match := re.fullmatch(rf"{boot}:{space}:([0-9]{{1,9}}):[0-9]+", name)) is None:
        return False
    process = int(match[1])
    try:
        os.kill(process, 0)
        return _state(process)[0] in _ENDED or process_name(process) != name
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it is another user's, and /proc may hide it


def _state(process: int) -> list[str]:
    """Return what /proc tells of a process after its name: state, parent, and so on. Raises OSError."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


_ENDED = frozenset("ZXx")

REQUEST = 1000  # keys; what one request of S3 takes
REQUESTS_AT_ONCE = 8
GROUP = 20_000
"""Keys of whole shards, at least, between two renewals of the claim."""
_TRIES = 3
_STEP_S = 60.0
_ANSWERED = frozenset({"429", "503"})  # the server answered that it did nothing


@dataclass(frozen=True, slots=True)
class Swept:
    """A group of shards that is done: the number of the last, what was deleted, and the keys that were refused."""

    last: int
    deleted: Sequence[ObjectHash]
    failed: Mapping[str, StoreError]


KeysOf = Callable[[ObjectHash], Sequence[str]]


def sweep(
    store: Store, index: Index, claim: Claim, *, keys_of: KeysOf, rules: CollectionRules
) -> Generator[Swept, None, None]:
    """Delete shard by shard from where the claim's document is; each group is written down when it is done.

    ``keys_of``: the keys of an object. A shard counts as swept when each request for it was answered. After one that
    was not, or after a collector that died, which the store may carry out later, none counts until it has settled.
    Raises CollectionBusy as soon as another has taken over; before a request is sent the claim is young enough that
    none can have. Raises as ``read_shard``, and StoreError for the document.
    """
    with (
        # Closed here, not when it is garbage: its threads would be waited for wherever Python collects garbage then.
        closing(_groups(store, index, claim.document.swept)) as groups,
        ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="sweep") as pool,
        ThreadPoolExecutor(1, thread_name_prefix="renew") as renewing,
    ):
        renewal: Future[None] | None = None
        settled: float | None = None  # when the last request without an answer can do no more harm
        if claim.took_over and not store.is_local:
            settled = time.monotonic() + SETTLE.total_seconds()  # after those of the collector that died
        for last, objects in groups:
            rules.pause()
            before = _unanswered(store)
            deleted, failed, unclear = _delete(store, objects, claim, keys_of, pool)
            if unclear or _unanswered(store) != before:
                settled = time.monotonic() + SETTLE.total_seconds()
            if renewal is not None:
                renewal.result()
            if settled is not None and last == SHARDS - 1:
                _settle(claim, settled - time.monotonic(), rules)
                settled = None
            if settled is not None and time.monotonic() >= settled:
                settled = None
            swept = None if settled is not None else last + 1
            renewal = renewing.submit(claim.move, generation.CollectionStep.RENEW, swept=swept)
            yield Swept(last, deleted, failed)
        if renewal is not None:
            renewal.result()


def _unanswered(store: Store) -> int:
    """Requests that were repeated without an answer: the first of two may still be under way somewhere."""
    return sum(count for cause, count in store.counters.retries.items() if cause not in _ANSWERED)


def _settle(claim: Claim, seconds: float, rules: CollectionRules) -> None:
    """Wait, and keep the claim meanwhile."""
    while seconds > 0:
        step = min(seconds, _STEP_S)
        rules.wait(step)
        seconds -= step
        claim.keep()


def _groups(store: Store, index: Index, first: int) -> Generator[tuple[int, list[ObjectHash]], None, None]:
    """Objects of whole shards, with the number of the last one; the next shards are read meanwhile."""
    with ThreadPoolExecutor(4, thread_name_prefix="lists") as pool:
        numbers = iter(range(first, SHARDS))
        ahead: deque[tuple[int, Future[bytes]]] = deque()
        group: list[ObjectHash] = []
        while True:
            while len(ahead) < 8 and (number := next(numbers, None)) is not None:
                ahead.append((number, pool.submit(read_shard, store, index, number)))
            if not ahead:
                return
            number, job = ahead.popleft()
            group.extend(hashes_in(job.result()))
            if len(group) >= GROUP or number == SHARDS - 1:
                yield number, group
                group = []


def _delete(
    store: Store, objects: Sequence[ObjectHash], claim: Claim, keys_of: KeysOf,
    pool: ThreadPoolExecutor,
) -> tuple[Sequence[ObjectHash], Mapping[str, StoreError], bool]:  # fmt: skip
    """Return what was deleted, the keys that were refused, and whether a request was given up without an answer."""

    def request(keys: Sequence[str]) -> Mapping[str, StoreError] | None:
        """Return what was refused; None if the claim has to be renewed before anything is sent."""
        if not claim.fresh:
            return None
        return store.delete_each(keys)

    waiting = [key for hash_ in objects for key in keys_of(hash_)]
    failed: dict[str, StoreError] = {}
    tries, unclear = 0, False
    while waiting and tries < _TRIES:
        failed = {}
        if not claim.fresh:
            claim.move(generation.CollectionStep.RENEW)
        jobs = [
            (part, pool.submit(request, part))
            for part in (waiting[start : start + REQUEST] for start in range(0, len(waiting), REQUEST))
        ]
        stale: list[str] = []
        for part, job in jobs:
            if (refused := job.result()) is None:
                stale.extend(part)
            else:
                failed.update(refused)
                unclear |= any(error.retryable for error in refused.values())
        tries += not stale
        waiting = [*failed, *stale]
    if failed:
        objects = [hash_ for hash_ in objects if not any(key in failed for key in keys_of(hash_))]
    return objects, failed, unclear


_STOCK_TIME = "%a %b %d %H:%M:%S %Z %Y"


@dataclass(frozen=True, slots=True)
class Named:
    """Revisions of a repository that are known at one moment."""

    manifest: Manifest
    refs: tuple[Ref, ...]
    tags: tuple[Tag, ...]


class SwitchingSide:
    """A repository for a collection, by the gateway's credentials and the signing key."""

    def __init__(
        self, store: Store, fqrn: str, signer: ManifestSigner, voucher: ManifestVerifier | None = None
    ) -> None:
        self.store = store
        self.fqrn = fqrn
        self._signer = signer
        self._voucher = voucher or ManifestVerifier(signer)

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
        """Read it as it is now. Raises what reading and verifying it raise."""
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
        return until_first(lambda: self._forget(gone, now))

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


def note_collection(store: Store, now: datetime) -> None:
    """Write to the status file when the last collection ended, as the stock tools do. Raises StoreError."""
    try:
        data, version = store.get_versioned(generation.STATUS_KEY)
        status = json.loads(data)
    except NotFound:
        status, version = {}, None
    except (ValueError, RecursionError):
        return  # not ours to mend: the stock tools write it
    if isinstance(status, dict):
        status["last_gc"] = now.astimezone(UTC).strftime(_STOCK_TIME)
        store.replace(generation.STATUS_KEY, json.dumps(status, indent=2).encode() + b"\n", expected=version)
