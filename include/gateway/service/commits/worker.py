"""The process that ``process.py`` starts: makes revisions for the service, and ends with it.

It reads what publishers wrote, and holds no signing key: the service signs each manifest that it makes.

One thread reads the messages and never waits for anything else: a commit that is under way waits for answers that only
this thread can hand over, and the end of the service is seen here.

``python -m include.gateway.service.commits.worker FD [log]``: the socket to the service, and whether to write its log.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from include.cvmfs.commit.commit import SwitchStep
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.revision.needed_objects import KnownRoot
from include.gateway.service import log
from include.gateway.service.commits.committer import StoreCommitter
from include.gateway.service.commits.process import portable
from include.gateway.service.commits.queue import CommitOrder
from include.gateway.service.config import ConfigError, ReadConfig


class _Memory:
    """Revisions on their way to and from the service, which keeps them."""

    def __init__(self, known: Mapping[str, tuple[KnownRoot, ...]]) -> None:
        self._known = known
        self._learnt: dict[str, list[KnownRoot]] = {}

    def revisions(self, repository: str) -> Iterable[KnownRoot]:
        return self._known.get(repository, ())

    def remember_revisions(self, repository: str, revisions: Sequence[KnownRoot]) -> None:
        self._learnt.setdefault(repository, []).extend(revisions)

    def learnt(self, repository: str) -> tuple[KnownRoot, ...]:
        return tuple(self._learnt.pop(repository, ()))


class _SigningService:
    """The signer of one repository, whose key is in the service."""

    def __init__(self, worker: _Worker, repository: str) -> None:
        self._worker, self._repository = worker, repository
        certificate, checksum = worker.ask("certificate", repository)
        self.certificate_pem: bytes = certificate
        self.reflog_checksum: Path | None = checksum

    def sign(self, letter: bytes, algorithm: Algorithm) -> bytes:  # noqa: ARG002 - the letter contains it, too
        signed: bytes = self._worker.ask("sign", self._repository, letter)
        return signed


class _Worker:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[Any]] = {}
        self._memory = _Memory({})
        self._questions = itertools.count(-1, -1)  # commits have positive numbers
        self._settling = ThreadPoolExecutor(1, thread_name_prefix="gateway-settle")

    def run(self) -> None:
        """Until the process ends: when the service asks for it, or is gone."""
        while True:
            try:
                what, *rest = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)  # no service is left to ask before a switch: all work under way stops here
            if what == "commit":
                number = rest[0]
                self._answers[number] = queue.SimpleQueue()
                threading.Thread(target=self._commit, args=rest, daemon=True).start()
            elif what in ("fenced", "stepped", "answered"):
                number, *answer = rest
                self._answers[number].put(answer[0] if answer else None)
            else:
                self._settling.submit(self._settle, what, *rest)

    def ask(self, what: str, *arguments: Any) -> Any:
        """The service's answer to a question of this process. Raises what it was refused with."""
        number = next(self._questions)
        answers = self._answers[number] = queue.SimpleQueue()
        self._send("ask", number, what, *arguments)
        answer = answers.get()
        del self._answers[number]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _settle(self, what: str, *arguments: Any) -> None:
        problem: Exception | None = None
        try:
            getattr(self, f"_{what}")(*arguments)
        except Exception as error:  # noqa: BLE001 - reported to the service
            problem = portable(
                error if isinstance(error, ConfigError) else ConfigError(f"it cannot be served: {error}")
            )
        self._send("settled", 0, problem)

    def _start(self, read_config: ReadConfig, known: Mapping[str, tuple[KnownRoot, ...]], wait_s: float) -> None:
        self._memory, self._read_config = _Memory(known), read_config
        self._committer = StoreCommitter(
            read_config(), lambda repository: _SigningService(self, repository), self._memory
        )
        self._committer.start(wait_s)

    def _reconfigure(self) -> None:
        self._committer.reconfigure(self._read_config())

    def _end(self) -> None:
        if hasattr(self, "_committer"):
            self._committer.close()
        os._exit(0)

    def _commit(self, number: int, orders: Sequence[CommitOrder], trace: str, steps: bool) -> None:
        log.TRACE.set(trace)
        answers = self._answers[number]

        def fence(members: Sequence[int]) -> Mapping[int, Exception]:
            self._send("fence", number, list(members))
            refused: Mapping[int, Exception] | Exception = answers.get()
            if isinstance(refused, Exception):
                raise refused
            return refused

        def on_step(step: SwitchStep) -> None:
            if steps:
                self._send("step", number, step.value)
                answers.get()

        outcomes: list[int | Exception]
        try:
            outcomes = self._committer.commit(orders, fence=fence, on_step=on_step)
        except Exception as error:  # noqa: BLE001 - it is the outcome of each of the group
            outcomes = [error] * len(orders)
        del self._answers[number]
        told = [portable(outcome) if isinstance(outcome, Exception) else outcome for outcome in outcomes]
        self._send("outcome", number, told, self._memory.learnt(orders[0].repository))

    def _send(self, *message: Any) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._connection.send(message)


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the service gets them too, and decides when to end
    if "log" in sys.argv[2:]:
        log.log_to()
    _Worker(Connection(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
