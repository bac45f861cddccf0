"""The one writer of the gateway's state: operations that wait together share a transaction and its flush to disk."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from include.errors import NightshiftError

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], Any]

_BATCH = 256


class StateError(NightshiftError):
    """The state could not be written; the message is SQLite's."""

    code = "gateway-state-unwritable"


class Writer:
    """A thread that owns the writing connection. An operation's result is given once its transaction is on disk."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[tuple[Operation, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gateway-state", daemon=True)
        self._closed = threading.Lock()
        self._open = True
        self._thread.start()

    def submit(self, operation: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue an operation. What it raises undoes its own writes only. Raises StateError through the future."""
        future: Future[T] = Future()
        with self._closed:
            if self._open:
                self._waiting.put((operation, future))
            else:
                future.set_exception(StateError("the gateway is stopping"))
        return future

    def close(self) -> None:
        """Finish what is queued, then stop."""
        with self._closed:
            if not self._open:
                return
            self._open = False
            self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < _BATCH and not self._waiting.empty():
                batch.append(self._waiting.get())
            work = [item for item in batch if item is not None]
            if work:
                self._transaction(work)
            if len(work) < len(batch):
                self._connection.close()
                return

    def _transaction(self, work: list[tuple[Operation, Future[Any]]]) -> None:
        outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes.extend((future, *self._one(operation)) for operation, future in work)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.rollback()
            for _, future in work:
                future.set_exception(StateError(str(error)))
            return
        for future, result, problem in outcomes:
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

    def _one(self, operation: Operation) -> tuple[Any, BaseException | None]:
        self._connection.execute("SAVEPOINT one")
        try:
            result = operation(self._connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, and must not end the writer
            self._connection.execute("ROLLBACK TO one")
            self._connection.execute("RELEASE one")
            return None, error
        self._connection.execute("RELEASE one")
        return result, None
