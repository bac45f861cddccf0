"""Collections behind a stock gateway, by its ``/gc``.

A stock gateway keeps commits out while it collects, and not leases: a publisher does not send an object that is there
already, loses it to the collection, and then commits. So everything is leased meanwhile. Where that is refused, the
gateway gives out no leases at all while it collects (docs/publishers.md, collections by stock tools).
"""

from __future__ import annotations

import fcntl
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from include.cvmfs.collect.report import GRACE, CollectionOptions, CollectionReport
from include.cvmfs.coordination.generation import look
from include.cvmfs.errors import CollectionBusy, CollectionRefused, FormatError
from include.gateway import errors
from include.gateway.client.client import GatewayClient
from include.gateway.client.leases import Lease
from include.site.site import Site
from include.storage.errors import StoreError

log = logging.getLogger(__name__)

_SHORTEST_LIMIT_S = 3600.0
_MARGIN_S = 60.0
"""Stop waiting for the end of a collection when less than this remains of the lease."""
_ENABLING_S = 120.0


@dataclass(frozen=True, slots=True)
class StockWaits:
    """Waits for leases of others, between two checks, and for the end of a collection whose reply was lost."""

    patience_s: float = 600.0
    poll_s: float = 5.0
    limit_s: float | None = None  # the longest of an hour, a lease, and twice the last collection


USUAL = StockWaits()


def collect_behind(site: Site, fqrn: str, options: CollectionOptions, waits: StockWaits = USUAL) -> CollectionReport:
    """Let a stock gateway collect, and report it. Asked for a dry run it deletes nothing, and nothing is leased.

    Raises CollectionRefused and PathBusy before anything is deleted, CollectionBusy while another collection of this
    machine is at work, CollectionFailed, AdminKeyNeeded, COLLECTION_UNCLEAR, and other GatewayErrors.
    """
    report = CollectionReport(fqrn, started=datetime.now(UTC), dry_run=options.dry_run)
    if options.dry_run:
        with site.gateway_admin(fqrn) as admin:
            revisions, limit_s = _revisions(site, fqrn, options), waits.limit_s or _SHORTEST_LIMIT_S
            lines = admin.collect_garbage(fqrn, timeout_s=limit_s, revisions=revisions, dry_run=True)
        report.read_stock_output(lines)
        return report
    site.require_thawed(fqrn)
    # publishers check the time of stock collections only where none of ours has left its document
    if look(site.repository_store(fqrn)).generation is not None:
        what = "Nightshift collected it before, and its publishers do not see collections of others"
        raise CollectionRefused(fqrn, what, hint="delete its .nightshift/generation while no publisher runs")
    with _alone(site, fqrn) as memory, site.gateway(fqrn) as client, site.gateway_admin(fqrn) as admin:
        _Run(site, fqrn, options, waits, report, memory, client, admin).collect()
    report.ended = datetime.now(UTC)
    return report


@dataclass(slots=True)
class Remembered:
    """Memory of this machine of the collections of one gateway's repository."""

    file: Path
    seconds: float | None = None  # of the last one
    disabled: bool = False  # the repository, by a collection that did not enable it again

    @classmethod
    def read(cls, file: Path) -> Remembered:
        """Nothing, where the file is absent or unreadable: then the next collection writes it again."""
        with suppress(OSError, ValueError, TypeError):
            return cls(file, **json.loads(file.read_text()))
        return cls(file)

    def write(self) -> None:
        staged = self.file.with_suffix(".new")
        staged.write_text(json.dumps({"seconds": self.seconds, "disabled": self.disabled}) + "\n")
        staged.replace(self.file)


@contextmanager
def _alone(site: Site, fqrn: str) -> Iterator[Remembered]:
    folder = site.settings.paths.var / "collections" / fqrn
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "stock.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            until = datetime.now(UTC) + timedelta(seconds=_SHORTEST_LIMIT_S)
            raise CollectionBusy(fqrn, "another collection of this machine is at work", until) from None
        yield Remembered.read(folder / "stock.json")


@dataclass(slots=True)
class _Run:
    """A collection behind a stock gateway."""

    site: Site
    fqrn: str
    options: CollectionOptions
    waits: StockWaits
    report: CollectionReport
    memory: Remembered
    client: GatewayClient
    admin: GatewayClient
    _lease_s: float = 0.0
    _limit_s: float = 0.0

    def collect(self) -> None:
        if self.memory.disabled:  # by a collection that was killed
            self._enable()
            self.report.notes.append("an earlier collection had left the repository disabled; it is enabled again")
        try:
            self._under_lease()
        except errors.CollectionFailed as refused:
            log.warning("%s; trying again with the repository disabled instead of leased", refused)
            self.report.notes.append("the gateway refused to collect under a lease: it gave out none meanwhile")
            self._disable()
            self._repeat(self._require_drained, self.waits.patience_s)
            self._gc(None, self._limit_s)
        finally:
            if self.memory.disabled:
                self._enable()

    def _under_lease(self) -> None:
        with ExitStack() as stack:
            lease: Lease = self._repeat(
                lambda: stack.enter_context(self.client.lease(self.fqrn, "", hostname=self.options.holder)),
                self.waits.patience_s,
            )
            try:
                self.client.renew(lease)
                renews = True
            except errors.NotOffered:
                renews = False
            left_s = self.client.left_s(lease)
            if left_s is None:
                what = "the gateway does not report how long its leases last"
                raise CollectionRefused(self.fqrn, what, hint="see whether GET /leases of the gateway works")
            self._lease_s, needed_s = left_s, 2 * (self.memory.seconds or 0)
            self._limit_s = self.waits.limit_s or max(needed_s, left_s, _SHORTEST_LIMIT_S)
            if not renews and left_s < needed_s:
                lasts = f"a lease lasts {left_s:.0f} s there, and the last collection took {needed_s / 2:.0f} s"
                hint = f"raise max_lease_time of the gateway to {needed_s:.0f} s or more"
                raise CollectionRefused(self.fqrn, f"{lasts}, of which a lease must have twice as many", hint=hint)
            self._gc(lease, self._limit_s if renews else max(1.0, left_s - self._margin_s))

    def _repeat(self, attempt: Callable[[], Any], patience_s: float, *, outage: bool = False) -> Any:
        """Return what an attempt returns, repeated while the path is busy or, with ``outage``, the gateway is down."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return attempt()
            except errors.GatewayError as error:
                passes = error.outage if outage else isinstance(error, errors.PathBusy)
                if not passes or time.monotonic() >= deadline:
                    raise
            time.sleep(self.waits.poll_s)

    def _disable(self) -> None:
        """The gateway gives out no lease until :meth:`_enable`, by the next run of this machine if this one dies."""
        self.memory.disabled = True
        self.memory.write()
        self.admin.set_enabled(self.fqrn, enabled=False)

    def _enable(self) -> None:
        try:
            self._repeat(lambda: self.admin.set_enabled(self.fqrn, enabled=True), _ENABLING_S, outage=True)
        except errors.GatewayError as error:
            what = f"{self.fqrn} is still disabled: {error}; {errors.NOT_SWITCHED.hint}"
            raise errors.NOT_SWITCHED(what, repository=self.fqrn) from error
        self.memory.disabled = False
        self.memory.write()

    def _require_drained(self) -> None:
        held = [lease for lease in self.client.leases() if lease.repository == self.fqrn]
        if held:
            last = max(held, key=lambda lease: lease.expires)
            what = f"{self.fqrn} is disabled for its collection, and {last.full_path} is still leased"
            hint = errors.PathBusy.hint
            raise errors.PathBusy(f"{what} by {last.hostname!r}; {hint}", holder=last, repository=self.fqrn)

    @property
    def _margin_s(self) -> float:
        return min(_MARGIN_S, self._lease_s / 4)

    def _gc(self, lease: Lease | None, timeout_s: float) -> None:
        """``lease``: under which it runs; None: the repository is disabled."""
        before = look(self.site.repository_store(self.fqrn)).last_collection
        revisions = _revisions(self.site, self.fqrn, self.options)
        self.options.progress("stock collection", 0, 0)
        begun, lines = time.monotonic(), None
        try:
            try:
                lines = self.admin.collect_garbage(self.fqrn, timeout_s=timeout_s, revisions=revisions)
            except errors.ReplyLost as lost:
                log.warning("%s; waiting for its end", lost)
                self._await_end(lease, before, begun)
        except BaseException as error:
            # with an error of the gateway it was refused, has failed, or is given up
            if lease is not None and not isinstance(error, errors.GatewayError):
                self.client.abandon(lease, "the collection may go on")
            raise
        if lines is None:
            self.report.notes.append("the gateway's reply was lost: what was deleted is not known")
        else:
            self.report.read_stock_output(lines, self.options.log)
        self.memory.seconds = self.report.seconds["collect"] = time.monotonic() - begun
        self.memory.write()

    def _await_end(self, lease: Lease | None, before: int, begun: float) -> None:
        """Wait until the status file shows another collection; before the lease ends, disable the repository."""
        while True:
            try:
                if look(self.site.repository_store(self.fqrn)).last_collection != before:
                    return
            except (StoreError, FormatError) as fault:
                log.warning("%s: cannot see whether the collection has ended: %s", self.fqrn, fault)
            waited_s = time.monotonic() - begun
            if waited_s >= self._limit_s:
                what = f"the reply to a collection of {self.fqrn} was lost, and no end was seen in {waited_s:.0f} s"
                raise errors.COLLECTION_UNCLEAR(f"{what}; {errors.COLLECTION_UNCLEAR.hint}", repository=self.fqrn)
            if lease is not None and (self.client.left_s(lease) or 0.0) <= self._margin_s:
                # a gateway that is down gives out no lease either
                with suppress(errors.GatewayUnreachable, errors.ReplyLost):
                    self._disable()
                    lease = None
            time.sleep(self.waits.poll_s)


def _revisions(site: Site, fqrn: str, options: CollectionOptions) -> int:
    """Return how many revisions before the current one to keep; 0: those of 3 days, which a gateway keeps by itself."""
    grace = options.rules.grace
    return 0 if grace <= GRACE else site.head(fqrn).superseded_after(int((datetime.now(UTC) - grace).timestamp()))
