"""Uploads from many threads over a queue that is bounded in bytes; the first error stops all of it."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol

FILE_STORE_THREADS = 4  # files are written by the processor: more threads only fight for the interpreter
_OVERHEAD_BYTES = 512  # of an object in the queue: key, tuple, headers
_PER_THREAD = 16  # objects waiting for each thread, at most


class Budget:
    """Bytes that may be held at once. Who asks for more than there are waits; one that is too large goes alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def take(self, count: int) -> None:
        """Wait for room. Raises the failure that was reported, whether room is there or not."""
        with self._changed:
            while self._failure is None and self._held and self._held + count > self._limit:
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            self._held += count

    def give(self, count: int) -> None:
        """Give back; a negative ``count`` takes at once, and may overdraw."""
        with self._changed:
            self._held -= count
            self._changed.notify()

    def fail(self, failure: BaseException) -> None:
        """From now on, all who ask get this error. The first one is kept."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the failure that was reported, if one was."""
        if self._failure is not None:
            raise self._failure

    @property
    def failed(self) -> bool:
        return self._failure is not None


class Destination(Protocol):
    """Where objects are put: a store, or a layer before one."""

    @property
    def is_local(self) -> bool: ...

    def put(self, key: str, data: bytes) -> None: ...


class Uploader:
    """Puts objects with up to ``connections`` threads, started as they are needed.

    Use as a context: it ends when everything is stored, and raises the store's first error. When it is left by another
    error, what still waits is dropped. Either way no thread survives.
    """

    def __init__(self, store: Destination, *, connections: int, budget: Budget) -> None:
        self._store = store
        self._budget = budget
        self._most = min(connections, FILE_STORE_THREADS) if store.is_local else connections
        self._queue: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._room = threading.BoundedSemaphore(self._most * (_PER_THREAD + 1))
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._stored = 0
        self._taken = 0

    def put(self, key: str, data: bytes) -> None:
        """Hand over an object whose bytes the budget holds already (:meth:`cost`). Raises the first upload's error."""
        self._room.acquire()
        with self._lock:
            self._taken += 1
            if self._taken - self._stored > len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name=f"upload-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put((key, data))
        self._budget.check()

    @staticmethod
    def cost(data: bytes) -> int:
        """Bytes of the budget that an object takes while it waits."""
        return len(data) + _OVERHEAD_BYTES

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is not None:
            self._budget.fail(fault)
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if fault is None:
            self._budget.check()

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            key, data = task
            try:
                if not self._budget.failed:
                    self._store.put(key, data)
            except BaseException as fault:  # noqa: BLE001 - raised again on the preparing side
                self._budget.fail(fault)
            finally:
                with self._lock:
                    self._stored += 1
                self._budget.give(self.cost(data))
                self._room.release()
