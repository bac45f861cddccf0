"""The committer in a process of its own: merging is the processor's work, and no lease call shall wait for it.

The service keeps leases, fence, signing keys and everything that is written down; the process keeps repositories open
and makes their revisions. It is a program, started by subprocess, and ends with the service: it asks before every
switch, and stops at once when no one answers. When it dies alone it is started again, and the commits that
were under way are made again, once: a change that was already published is recognized.

Messages are pickled tuples over a socket pair, a name first:

to the process     start (configuration, revisions, wait)   reconfigure ()   commit (number, orders, trace, steps)
                   fenced (number, refused)    stepped (number)       answered (number, answer)    end
from the process   settled (0, error)          outcome (number, outcomes, revisions learnt)
                   fence (number, members)     step (number, step)    ask (number, question, ...)

The process reads what publishers wrote, and holds no signing key: the service signs each manifest that it makes. One of
its threads reads the messages and never waits for anything else: a commit that is under way waits for answers that only
this thread can hand over, and the end of the service is seen here.

``python -m include.gateway.service.commits.process FD [log]``: the socket to the service, and whether to write its log.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from include.cvmfs.commit.commit import SwitchStep
from include.cvmfs.format.hashes import CERTIFICATE, Algorithm, hash_bytes
from include.cvmfs.format.keys import Signer
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import compress
from include.cvmfs.revision.needed_objects import KnownRoot
from include.errors import NightshiftError
from include.gateway.service.commits.committer import OPENING_S, RevisionMemory, StoreCommitter
from include.gateway.service.commits.queue import CommitOrder, Fence
from include.gateway.service.config import ConfigError, ReadConfig, RepositoryConfig, ServiceConfig
from include.gateway.service.telemetry import TRACE, log_to

log = logging.getLogger(__name__)

PROGRAM = "include.gateway.service.commits.process"
_START_S = 120.0
_END_S = 30.0


class WorkerEnded(NightshiftError):
    """The process ended in the middle of a commit, twice; whether the commit was made is found by repeating it."""

    code = "committer-ended"


class CommitterApart:
    """Commits as ``StoreCommitter`` does, elsewhere.

    ``read_config`` is pickled: the process reads the configuration itself, for its stores; keys stay here.
    ``looked_at``: ``on_step`` is called for each step.
    """

    def __init__(
        self,
        read_config: ReadConfig,
        config: ServiceConfig,
        memory: RevisionMemory | None = None,
        *,
        looked_at: bool = False,
    ) -> None:
        self._read_config = read_config
        self._signers = Signers(config.repositories)
        self._memory = memory
        self._looked_at = looked_at
        self._numbers = itertools.count(1)
        self._starting = threading.Lock()
        self._process: _Process | None = None

    def start(self) -> None:
        """Start the process, which opens the repositories (``StoreCommitter.start``). Raises ConfigError, Owned."""
        self._running(OPENING_S)

    def commit(
        self, orders: Sequence[CommitOrder], *, fence: Fence, on_step: Callable[[SwitchStep], None]
    ) -> list[int | Exception]:
        try:
            return self._commit(orders, fence, on_step)
        except WorkerEnded as error:
            log.warning("commits are made again", extra={"fields": {"detail": str(error)}})
            return self._commit(orders, fence, on_step)

    def _commit(
        self, orders: Sequence[CommitOrder], fence: Fence, on_step: Callable[[SwitchStep], None]
    ) -> list[int | Exception]:
        process, number = self._running(), next(self._numbers)
        with process.conversation(number) as answers:
            process.send("commit", number, tuple(orders), TRACE.get(), self._looked_at)
            while True:
                what, *rest = answers.get()
                if what == "fence":
                    process.send("fenced", number, _asked(fence, rest[0]))
                elif what == "step":
                    on_step(SwitchStep(rest[0]))
                    process.send("stepped", number)
                elif what == "outcome":
                    outcomes, learnt = rest
                    self._remember(orders[0].repository, learnt)
                    return list(outcomes)
                else:
                    raise WorkerEnded(f"the process that commits ended with code {rest[0]}; repeat the commit")

    def reconfigure(self, config: ServiceConfig) -> None:
        """Serve another configuration from now on. Raises ConfigError, and the old one stays."""
        process, before = self._running(), self._signers.repositories
        self._signers.repositories = config.repositories
        try:
            process.ask("reconfigure")
        except BaseException:
            self._signers.repositories = before
            raise

    def close(self) -> None:
        """Let go of the repositories, and end the process."""
        with self._starting:
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def _running(self, wait_s: float = 0.0) -> _Process:
        """The process; started again if it is not there, without waiting for any store."""
        with self._starting:
            if self._process is None or self._process.ended:
                process = _Process(self._signers)
                try:
                    process.ask("start", self._read_config, self._known(), wait_s, timeout_s=_START_S)
                except BaseException:
                    process.end()
                    raise
                self._process = process
            return self._process

    def _known(self) -> dict[str, tuple[KnownRoot, ...]]:
        memory = self._memory
        return {} if memory is None else {name: tuple(memory.revisions(name)) for name in self._signers.repositories}

    def _remember(self, repository: str, learnt: Sequence[KnownRoot]) -> None:
        if self._memory is not None and learnt:
            self._memory.remember_revisions(repository, learnt)


class Signers:
    """Signs the manifests that the process makes. ``repositories``: those that are served now.

    A key stays known when another one takes its place: a commit that has begun ends with the certificate it began with.
    """

    def __init__(self, repositories: Mapping[str, RepositoryConfig]) -> None:
        self.repositories = repositories
        self._known: dict[tuple[str, bytes], Signer] = {}

    def certificate(self, repository: str) -> tuple[bytes, Path | None]:
        """A repository's certificate (PEM) and where stock tools keep the reflog's hash.

        Raises ConfigError for a repository that is not served any more, and KeyFileError.
        """
        config = self.repositories.get(repository)
        if config is None:
            raise ConfigError(f"{repository} is not served any more")
        signer = config.signer()
        self._known[repository, signer.certificate_pem] = signer
        return signer.certificate_pem, signer.reflog_checksum

    def sign(self, repository: str, letter: bytes) -> bytes:
        """The signed file of a manifest of the repository. Raises FormatError for another letter, ConfigError."""
        manifest = Manifest.from_letter(letter)
        certificate = manifest.certificate
        if certificate is not None and manifest.fqrn == repository:
            for (name, pem), signer in list(self._known.items()):
                if name == repository and hash_bytes(compress(pem), certificate.algorithm, CERTIFICATE) == certificate:
                    return signer.sign(letter, manifest.root.algorithm)
        raise ConfigError(
            f"{repository}: no key here signs a manifest of {manifest.fqrn} with certificate {certificate}; "
            "restart the gateway"
        )


class _Process:
    """The process, seen from the service. Several threads may talk with it at the same time."""

    def __init__(self, signers: Signers) -> None:
        ours, its_end = socket.socketpair()
        root = str(Path(__file__).parents[4])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        with its_end:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", PROGRAM, str(its_end.fileno()), *(["log"] if _logs() else [])],
                pass_fds=[its_end.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self._signers = signers
        self._signing = ThreadPoolExecutor(thread_name_prefix="gateway-sign")
        self._answers: dict[int, queue.SimpleQueue[tuple[Any, ...]]] = {}
        self._known = threading.Lock()
        self._asking = threading.Lock()
        self.ended = False
        threading.Thread(target=self._receive, name="gateway-committer", daemon=True).start()

    @contextmanager
    def conversation(self, number: int) -> Iterator[queue.SimpleQueue[tuple[Any, ...]]]:
        """The answers to one number."""
        answers: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        with self._known:
            self._answers[number] = answers
            if self.ended:
                answers.put(("ended", self._process.returncode))
        try:
            yield answers
        finally:
            with self._known:
                self._answers.pop(number, None)

    def send(self, *message: Any) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            return  # the other thread informs those who wait for an answer

    def ask(self, what: str, *arguments: Any, timeout_s: float = _END_S) -> None:
        """Send, and wait until it is done. Raises what it was refused with."""
        with self._asking, self.conversation(0) as answers:
            self.send(what, *arguments)
            try:
                event, error = answers.get(timeout=timeout_s)
            except queue.Empty:
                raise ConfigError(f"the process that commits does not {what} within {timeout_s:.0f} s") from None
        if event == "ended":
            raise ConfigError(f"the process that commits ended with code {error}; see the gateway's log")
        if error is not None:
            raise error

    def end(self) -> None:
        self.send("end")
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self) -> None:
        while True:
            try:
                what, number, *rest = self._connection.recv()
            except (EOFError, OSError):
                break
            if what == "ask":
                self._signing.submit(self._answer, number, *rest)
                continue
            with self._known:
                answers = self._answers.get(number)
            if answers is not None:
                answers.put((what, *rest))
        self._signing.shutdown(wait=False)
        code = self._process.wait()
        if code:
            log.error("the process that commits ended", extra={"fields": {"code": code}})
        with self._known:
            self.ended = True
            for answers in self._answers.values():
                answers.put(("ended", code))
        self._connection.close()

    def _answer(self, number: int, question: str, repository: str, *letter: bytes) -> None:
        answer: Any
        try:
            answer = (self._signers.sign if question == "sign" else self._signers.certificate)(repository, *letter)
        except Exception as error:  # noqa: BLE001 - raised again on the other side, which must not wait for ever
            answer = portable(error)
        self.send("answered", number, answer)


def _asked(fence: Fence, members: Sequence[int]) -> dict[int, Exception] | Exception:
    try:
        return dict(fence(members))
    except Exception as error:  # noqa: BLE001 - raised again on the other side, which must not wait for ever
        return portable(error)


def portable(error: Exception) -> Exception:
    """The error if it can be pickled, else a RuntimeError with its text."""
    error.__cause__ = error.__context__ = None
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _logs() -> bool:
    """Tell whether this process writes a log: then the other one writes into the same."""
    return bool(logging.getLogger("include").handlers)


# -- the process


class _Memory:
    """Revisions on their way to and from the service, which keeps them."""

    def __init__(self, revisions: Mapping[str, tuple[KnownRoot, ...]]) -> None:
        self._known = revisions
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

    def _start(self, read_config: ReadConfig, revisions: Mapping[str, tuple[KnownRoot, ...]], wait_s: float) -> None:
        self._memory, self._read_config = _Memory(revisions), read_config
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
        TRACE.set(trace)
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
        with self._sending, suppress(OSError):
            self._connection.send(message)


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the service gets them too, and decides when to end
    if "log" in sys.argv[2:]:
        log_to()
    _Worker(Connection(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
