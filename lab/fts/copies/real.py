"""Copies of real files: the steps of one copy as FTS makes them, and a few threads that make them."""

from __future__ import annotations

import contextlib
import errno
import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from include.fts.states import FailureReason, FailureScope
from lab.fts.config import FtsServiceConfig
from lab.fts.copies.copier import DESTINATION_EXISTS, SOURCE_MISSING, Copier, CopyEnd, CopyOrder
from lab.fts.copies.storages import BucketStorage, CopyFault, CopyFolder, CopyStorage, digest_of
from lab.fts.copies.webdav import SCHEMES, CopyNotPossible, WebdavStorage

log = logging.getLogger(__name__)

LEAST_S, S_PER_MB = 600.0, 2.0
"""FTS's time limit of a copy: so many seconds, and so many more for each megabyte."""


class CopyFailed(CopyFault):
    """A copy ended with this reason."""

    code = "fts-service-copy-ended"

    def __init__(self, reason: FailureReason) -> None:
        super().__init__(reason.errno or errno.EIO, reason.text)
        self.reason = reason


class Copy:
    """One copy, in a thread of its own. ``canceled`` is set by others."""

    def __init__(self, order: CopyOrder, source: CopyStorage, destination: CopyStorage) -> None:
        self.order = order
        self.canceled = threading.Event()
        self._source, self._destination = source, destination
        self._tokens = order.tokens or (None, None)

    def run(self) -> CopyEnd:
        """Make the copy; how it ended. A failed copy leaves nothing at the destination."""
        order = self.order
        try:
            size, checksum = self._run()
        except CopyFailed as failure:
            return CopyEnd(order.file_id, failure.reason)
        return CopyEnd(
            order.file_id, size=size, checksum=f"{order.expected[0].upper()}:{checksum}" if checksum else None
        )

    def _run(self) -> tuple[int, str | None]:
        order, source_digits = self.order, None
        with _at(FailureScope.SOURCE):
            size = self._source.size(order.source, self._tokens[0])
        if size is None:
            raise CopyFailed(SOURCE_MISSING)
        if not order.strict:
            if order.verify in "bs":
                source_digits = self._source_digits()
                if fault := order.source_fault(source_digits):
                    raise CopyFailed(fault)
            self._clear_destination()
        try:
            with _at(FailureScope.TRANSFER):
                self._transfer(size)
            digits = source_digits if order.strict else self._check_destination(size, source_digits)
        except CopyFailed:
            with contextlib.suppress(CopyFault):  # a part may stay, as with FTS
                self._destination.remove(order.destination, self._tokens[1])
            raise
        return size, digits

    def _source_digits(self) -> str:
        with _at(FailureScope.SOURCE):
            return _digits(self._source, self.order.source, self.order.expected[0], self._tokens[0])

    def _clear_destination(self) -> None:
        order, token = self.order, self._tokens[1]
        with _at(FailureScope.DESTINATION):
            if self._destination.size(order.destination, token) is None:
                return
            if order.overwrite:
                self._destination.remove(order.destination, token)
                return
        raise CopyFailed(DESTINATION_EXISTS)

    def _transfer(self, size: int) -> None:
        order = self.order
        ends = time.monotonic() + (order.timeout_s or LEAST_S + S_PER_MB * size / 1e6)
        self._check(ends)
        if isinstance(self._source, WebdavStorage) and isinstance(self._destination, WebdavStorage):
            try:
                check = partial(self._check, ends)
                self._destination.copy(order.source, order.destination, order.tokens, check=check)
            except CopyNotPossible:
                pass
            else:
                return
        pieces = self._pieces(ends)
        self._destination.write(order.destination, pieces, size, self._tokens[1], draft=order.draft)

    def _pieces(self, ends: float) -> Iterator[bytes]:
        for piece in self._source.read(self.order.source, self._tokens[0]):
            self._check(ends)
            yield piece

    def _check(self, ends: float) -> None:
        if self.canceled.is_set():
            raise CopyFault(errno.ECANCELED, "Transfer canceled")
        if time.monotonic() > ends:
            raise CopyFault(errno.ETIMEDOUT, "Connection timed out: operation timeout")

    def _check_destination(self, size: int, source_digits: str | None) -> str | None:
        order, token = self.order, self._tokens[1]
        with _at(FailureScope.DESTINATION):
            there = self._destination.size(order.destination, token)
            if there != size:
                raise CopyFault(errno.EIO, f"Source and destination file size mismatch ({size} != {there})")
            if order.verify not in "bt":
                return source_digits
            found = _digits(self._destination, order.destination, order.expected[0], token)
        if not order.expected[1] and source_digits is None:
            source_digits = self._source_digits()
        if fault := order.destination_fault(found, source_digits):
            raise CopyFailed(fault)
        return found


class RealCopier:
    """Copies between storages, by a pool of threads.

    `storages`: by the scheme of their URLs. `threads`: how many copies are made at the same time; others wait although
    they are ACTIVE.
    """

    def __init__(self, storages: Mapping[str, CopyStorage], threads: int) -> None:
        self._storages = storages
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fts-copy")
        self._running: dict[int, Copy] = {}
        self._ends: queue.SimpleQueue[tuple[Copy, CopyEnd]] = queue.SimpleQueue()

    def start(self, order: CopyOrder, now: float) -> None:  # noqa: ARG002 - threads have their own clock
        ends = (self._storages[url.partition("://")[0]] for url in (order.source, order.destination))
        copy = self._running[order.file_id] = Copy(order, *ends)
        self._pool.submit(self._run, copy)

    def cancel(self, file_id: int) -> None:
        copy = self._running.pop(file_id, None)
        if copy is not None:
            copy.canceled.set()

    def ended(self, now: float) -> Iterable[CopyEnd]:  # noqa: ARG002
        found = []
        while not self._ends.empty():
            copy, end = self._ends.get()
            # a canceled copy is not there, or another one of the same file
            if self._running.get(end.file_id) is copy:
                del self._running[end.file_id]
                found.append(end)
        return found

    def clean(self, destination: str, draft: str) -> None:
        try:
            self._storages[destination.partition("://")[0]].clean(destination, draft)
        except CopyFault as fault:
            log.warning("a part of %s may be left: %s", destination, fault)

    def close(self) -> None:
        for copy in self._running.values():
            copy.canceled.set()
        self._running.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, copy: Copy) -> None:
        if copy.canceled.is_set():
            return
        try:
            end = copy.run()
        except BaseException as error:  # noqa: BLE001 - the file must end; panics of a native library are no Exception
            text = f"{type(error).__name__} in the copy"
            end = CopyEnd(copy.order.file_id, FailureReason(FailureScope.GENERAL_FAILURE, errno.EIO, text))
        self._ends.put((copy, end))


def real_copiers(config: FtsServiceConfig) -> dict[str, Copier]:
    """Return one copier for the storages that a configuration allows, by their schemes."""
    storages: dict[str, CopyStorage] = {}
    if config.folder is not None:
        storages["file"] = CopyFolder(config.folder)
    if config.s3_credentials is not None:
        storages["s3"] = BucketStorage(config.s3_endpoint, config.s3_credentials)
    if config.webdav:
        storages |= dict.fromkeys(SCHEMES, WebdavStorage(config.storage_authorities, config.threads))
    return dict.fromkeys(storages, RealCopier(storages, config.threads)) if storages else {}


def _digits(storage: CopyStorage, url: str, algorithm: str, token: str | None) -> str:
    """The checksum of a file: the storage's own, or of its bytes."""
    return storage.checksum(url, algorithm, token) or digest_of(algorithm, storage.read(url, token))


@contextlib.contextmanager
def _at(scope: FailureScope) -> Iterator[None]:
    """Gives faults inside the block their scope."""
    try:
        yield
    except CopyFailed:
        raise
    except CopyFault as fault:
        raise CopyFailed(FailureReason(scope, fault.errno, fault.text)) from None
