"""Collections that the stock tools run: behind a stock gateway by its ``/gc``, and on a node without any gateway.

A stock gateway keeps commits out while it collects, and not leases: a publisher does not send an object that is there
already, loses it to the collection, and then commits. So everything is leased meanwhile. Where that is refused, the
gateway gives out no leases at all while it collects (docs/publishers.md, collections by stock tools).
"""

from __future__ import annotations

import fcntl
import json
import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from include.cvmfs.collect.record import GRACE, CollectionOptions
from include.cvmfs.collect.report import CollectionReport
from include.cvmfs.coordination.generation import look
from include.cvmfs.errors import CollectionBusy, CollectionRefused, FormatError, ObjectMissing, ReflogError
from include.cvmfs.format import database as reflogs
from include.cvmfs.format.database import Ref, Reflog
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.gateway.client.client import GatewayClient
from include.gateway.client.values import Lease
from include.gateway.errors import (
    COLLECTION_UNCLEAR,
    NOT_SWITCHED,
    CollectionFailed,
    GatewayError,
    GatewayUnreachable,
    NotOffered,
    PathBusy,
    ReplyLost,
)
from include.site.site import Site
from include.storage.errors import NotFound, StoreError

log = logging.getLogger(__name__)

PATIENCE_S = 600.0
_SHORTEST_LIMIT_S = 3600.0
_MARGIN_S = 60.0
"""What is to be left of a lease when the end of a collection is no longer waited for under it."""
_ENABLING_S = 120.0


_DELETED = re.compile(r"Sweep: ([0-9a-f]{40}(?:-[a-z0-9]+)?[A-Z]?)")
_KEPT, _CONDEMNED = re.compile(r"Preserving Revision \d+"), re.compile(r"Sweeping Revision \d+")
_SHARE = re.compile(r"\s+- +\d+% +(\d+) / \d+ unreferenced revisions removed")
_DONE = "  --> done garbage collecting"
_LOG_TIME = "%a %b %d %H:%M:%S %Y"


@dataclass(frozen=True, slots=True)
class StockWaits:
    """Waits for leases of others, between two checks, and for the end of a collection whose reply was lost.

    ``limit_s``: None: twice the last one, as long as a lease, an hour, whichever is longest.
    """

    patience_s: float = PATIENCE_S
    poll_s: float = 5.0
    limit_s: float | None = None


USUAL = StockWaits()


@dataclass(slots=True)
class Remembered:
    """What this machine remembers of the collections of one gateway's repository.

    ``seconds``: how long the last one took. ``disabled``: a collection disabled the repository and did not enable it.
    """

    file: Path
    seconds: float | None = None
    disabled: bool = False

    @classmethod
    def read(cls, file: Path) -> Remembered:
        """Nothing, where the file is absent or unreadable: then the next collection writes it again."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            found: Mapping[str, Any] = json.loads(file.read_text())
            seconds = found["seconds"]
            return cls(file, None if seconds is None else float(seconds), bool(found["disabled"]))
        return cls(file)

    def write(self) -> None:
        staged = self.file.with_suffix(".new")
        staged.write_text(json.dumps({"seconds": self.seconds, "disabled": self.disabled}) + "\n")
        staged.replace(self.file)


def collect_behind(site: Site, fqrn: str, options: CollectionOptions, waits: StockWaits = USUAL) -> CollectionReport:
    """Let a stock gateway collect, and report it.

    Raises CollectionRefused and PathBusy before anything is deleted, CollectionBusy while another collection of this
    machine is at work, CollectionFailed, AdminKeyNeeded, COLLECTION_UNCLEAR, and other GatewayErrors.
    """
    site.require_thawed(fqrn)
    _require_seen(site, fqrn)
    report = CollectionReport(fqrn, started=datetime.now(UTC))
    with _alone(site, fqrn) as memory, site.gateway(fqrn) as client, site.gateway_admin(fqrn) as admin:
        _Run(site, fqrn, options, waits, report, memory, client, admin).collect()
    report.ended = datetime.now(UTC)
    return report


def rehearse_behind(site: Site, fqrn: str, options: CollectionOptions, waits: StockWaits = USUAL) -> CollectionReport:
    """Return what such a collection would delete now; the gateway is asked, and nothing is leased. Raises
    GatewayError."""
    report = CollectionReport(fqrn, started=datetime.now(UTC), dry_run=True)
    with site.gateway_admin(fqrn) as admin:
        revisions = _revisions(site, fqrn, options.rules.grace)
        timeout_s = waits.limit_s or _SHORTEST_LIMIT_S
        take_output(report, admin.collect_garbage(fqrn, timeout_s=timeout_s, revisions=revisions, dry_run=True))
    return report


def collect_on_node(site: Site, fqrn: str, options: CollectionOptions) -> CollectionReport:
    """Let ``cvmfs_server`` collect on the node of a repository without a gateway, in a transaction of its own.

    Raises NotSupported, NodeError, and TransactionOpen while another publishes.
    """
    site.require_thawed(fqrn)
    report = CollectionReport(fqrn, started=datetime.now(UTC), dry_run=options.dry_run)
    begun = time.monotonic()
    lines = site.server(fqrn).collect(
        older_than=datetime.now(UTC) - options.rules.grace, listed=True, dry_run=options.dry_run
    )
    take_output(report, lines, None if options.dry_run else options.log)
    report.seconds["collect"] = time.monotonic() - begun
    report.ended = datetime.now(UTC)
    return report


@dataclass(slots=True)
class _Run:
    """One collection behind a stock gateway."""

    site: Site
    fqrn: str
    options: CollectionOptions
    waits: StockWaits
    report: CollectionReport
    memory: Remembered
    client: GatewayClient
    admin: GatewayClient
    _lease_s: float = 0.0
    _pause: threading.Event = field(default_factory=threading.Event)

    def collect(self) -> None:
        if self.memory.disabled:  # by a collection that was killed
            self._enable()
            self.report.notes.append("an earlier collection had left the repository disabled; it is enabled again")
        try:
            self._guarded()
        finally:
            if self.memory.disabled:
                self._enable()

    def _guarded(self) -> None:
        try:
            self._under_lease()
        except CollectionFailed as refused:
            log.warning("%s; trying again with the repository disabled instead of leased", refused)
            self.report.notes.append("the gateway refused to collect under a lease: it gave out none meanwhile")
            self._disable()
            self._drain()
            self._gc(None, self._limit_s)

    # -- keeping publishers out

    def _under_lease(self) -> None:
        with ExitStack() as leased:
            lease = self._leased(leased)
            renews = self._renews(lease)
            left_s = self.client.left_s(lease)
            if left_s is None:
                what = "the gateway does not report how long its leases last"
                raise CollectionRefused(self.fqrn, what, hint="see whether GET /leases of the gateway works")
            self._lease_s = left_s
            needed_s = 2 * (self.memory.seconds or 0)
            if not renews and left_s < needed_s:
                what = (
                    f"a lease lasts {left_s:.0f} s there, and the last collection took {needed_s / 2:.0f} s, of which "
                    "a lease must have twice as many"
                )
                raise CollectionRefused(
                    self.fqrn, what, hint=f"raise max_lease_time of the gateway to {needed_s:.0f} s or more"
                )
            left_s = self.client.left_s(lease) or 0.0
            self._gc(lease, self._limit_s if renews else max(1.0, left_s - self._margin_s))

    def _leased(self, stack: ExitStack) -> Lease:
        deadline = time.monotonic() + self.waits.patience_s
        while True:
            try:
                return stack.enter_context(self.client.lease(self.fqrn, "", hostname=self.options.holder))
            except PathBusy:
                if time.monotonic() >= deadline:
                    raise
            self._pause.wait(self.waits.poll_s)

    def _renews(self, lease: Lease) -> bool:
        try:
            self.client.renew(lease)
        except NotOffered:
            return False
        return True

    def _disable(self) -> None:
        """The gateway gives out no lease until :meth:`_enable`, by the next run of this machine if this one dies."""
        self.memory.disabled = True
        self.memory.write()
        self.admin.set_enabled(self.fqrn, enabled=False)

    def _enable(self) -> None:
        deadline = time.monotonic() + _ENABLING_S
        while True:
            try:
                self.admin.set_enabled(self.fqrn, enabled=True)
                break
            except GatewayError as error:
                if not error.outage or time.monotonic() >= deadline:
                    what = f"{self.fqrn} is still disabled: {error}"
                    raise NOT_SWITCHED(f"{what}; {NOT_SWITCHED.hint}", repository=self.fqrn) from error
            self._pause.wait(self.waits.poll_s)
        self.memory.disabled = False
        self.memory.write()

    def _drain(self) -> None:
        deadline = time.monotonic() + self.waits.patience_s
        while held := [lease for lease in self.client.leases() if lease.repository == self.fqrn]:
            if time.monotonic() >= deadline:
                last = max(held, key=lambda lease: lease.expires)
                what = f"{self.fqrn} is disabled for its collection, and {last.full_path} is still leased"
                raise PathBusy(f"{what} by {last.hostname!r}; {PathBusy.hint}", holder=last, repository=self.fqrn)
            self._pause.wait(self.waits.poll_s)

    # -- the collection

    @property
    def _limit_s(self) -> float:
        return self.waits.limit_s or max(2 * (self.memory.seconds or 0), self._lease_s, _SHORTEST_LIMIT_S)

    @property
    def _margin_s(self) -> float:
        return min(_MARGIN_S, self._lease_s / 4)

    def _gc(self, lease: Lease | None, timeout_s: float) -> None:
        """``lease``: under which it runs; None: the repository is disabled."""
        store = self.site.repository_store(self.fqrn)
        before, revisions = look(store).last_collection, _revisions(self.site, self.fqrn, self.options.rules.grace)
        self.options.progress("stock collection", 0, 0)
        begun = time.monotonic()
        try:
            lines = self._asked(lease, before, begun, timeout_s, revisions)
        except GatewayError:
            raise  # it was refused, has failed, or is given up
        except BaseException:
            if lease is not None:
                self.client.abandon(lease, "the collection may go on")
            raise
        if lines is None:
            self.report.notes.append("the gateway's reply was lost: what was deleted is not known")
        else:
            take_output(self.report, lines, self.options.log)
        self.memory.seconds = self.report.seconds["collect"] = time.monotonic() - begun
        self.memory.write()

    def _asked(
        self, lease: Lease | None, before: int, begun: float, timeout_s: float, revisions: int
    ) -> tuple[str, ...] | None:
        """The output; None if the reply was lost, and the collection has ended."""
        try:
            return self.admin.collect_garbage(self.fqrn, timeout_s=timeout_s, revisions=revisions)
        except ReplyLost as lost:
            log.warning("%s; waiting for its end", lost)
        self._await_end(lease, before, begun)
        return None

    def _await_end(self, lease: Lease | None, before: int, begun: float) -> None:
        """Wait until the status file shows another collection; before the lease ends, disable the repository."""
        while not self._has_ended(before):
            waited_s = time.monotonic() - begun
            if waited_s >= self._limit_s:
                what = f"the reply to a collection of {self.fqrn} was lost, and no end was seen in {waited_s:.0f} s"
                raise COLLECTION_UNCLEAR(f"{what}; {COLLECTION_UNCLEAR.hint}", repository=self.fqrn)
            if lease is not None and (self.client.left_s(lease) or 0.0) <= self._margin_s:
                with suppress(GatewayUnreachable, ReplyLost):  # one that is down gives out no lease either
                    self._disable()
                    lease = None
            self._pause.wait(self.waits.poll_s)

    def _has_ended(self, before: int) -> bool:
        try:
            return look(self.site.repository_store(self.fqrn)).last_collection != before
        except (StoreError, FormatError) as fault:
            log.warning("%s: cannot see whether the collection has ended: %s", self.fqrn, fault)
            return False


def _revisions(site: Site, fqrn: str, grace: timedelta) -> int:
    """Return how many revisions before the current one a gateway is to keep; 0: those of 3 days, as it does by
    itself."""
    if grace <= GRACE:
        return 0
    return revisions_within(site.head(fqrn), int((datetime.now(UTC) - grace).timestamp()))


def take_output(report: CollectionReport, lines: Sequence[str], log: TextIO | None = None) -> None:
    """Put what ``cvmfs_server gc -l`` printed into a report; ``log``: gets the names of what was deleted.

    Lines of an unknown form are passed over: releases differ in what they print beside these.
    """
    shares, done = 0, False
    if log is not None:
        log.write(f"# Garbage Collection started at {report.started or datetime.now(UTC):{_LOG_TIME}}\n")
    for line in lines:
        if found := _DELETED.match(line):
            report.condemned += 1
            if log is not None:
                log.write(f"{found[1]}\n")
        elif _KEPT.match(line):
            report.roots_kept += 1
        elif _CONDEMNED.match(line):
            report.roots_condemned += 1
        elif found := _SHARE.match(line):
            shares = max(shares, int(found[1]))
        elif line.startswith(_DONE):
            done = True
        elif line.startswith("Warning:"):
            report.notes.append(line)
    if log is not None:
        log.write(f"# Garbage Collection finished at {datetime.now(UTC):{_LOG_TIME}}\n\n")
    report.roots_condemned = max(report.roots_condemned, shares)
    if not report.dry_run:
        report.deleted += report.condemned
    if not done:
        last = next((line for line in reversed(lines) if line.strip()), "nothing")
        report.notes.append(f"the stock collection did not report its end; its last line: {last[:200]}")


def preceding(head: Repository) -> Iterator[tuple[ObjectHash, ObjectHash]]:
    """Roots with the ones before them, from the current one back, until one was collected."""
    root = head.manifest.root
    while True:
        try:
            before = Revision(head.catalogs, root).root.previous_revision
        except ObjectMissing:
            if root == head.manifest.root:
                raise
            return
        if before is None:
            return
        yield root, before
        root = before


def revisions_within(head: Repository, cutoff: int) -> int:
    """Return how many revisions before the current one were superseded after ``cutoff`` (Unix s)."""
    published: Mapping[bytes, int] = {ref.hash.digest: ref.timestamp for ref in _refs(head)}
    count = 0
    for root, _ in preceding(head):
        if published.get(root.digest, cutoff) < cutoff:
            break
        count += 1
    return count


def _refs(head: Repository) -> Iterable[Ref]:
    """Of the reflog as it is: after a stock collection it is not the one that the manifest names."""
    try:
        return Reflog.load(head.store.get(reflogs.KEY)).refs()
    except NotFound:
        raise ReflogError(head.fqrn, f"no {reflogs.KEY} in {head.store.url}") from None


def _require_seen(site: Site, fqrn: str) -> None:
    """Publishers check the time of stock collections only where none of ours has left its document."""
    if look(site.repository_store(fqrn)).generation is not None:
        what = "Nightshift collected it before, and its publishers do not see collections of others"
        raise CollectionRefused(fqrn, what, hint="delete its .nightshift/generation while no publisher runs")


@contextmanager
def _alone(site: Site, fqrn: str) -> Iterator[Remembered]:
    folder = _folder(site, fqrn)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "stock.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            until = datetime.now(UTC) + timedelta(seconds=_SHORTEST_LIMIT_S)
            raise CollectionBusy(fqrn, "another collection of this machine is at work", until) from None
        yield Remembered.read(folder / "stock.json")


def _folder(site: Site, fqrn: str) -> Path:
    return site.settings.paths.var / "collections" / fqrn
