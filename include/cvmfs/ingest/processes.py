"""Processes that compress, hash and write small files where the store is files: there the interpreter is the limit.

They are programs of their own, started by subprocess: a worker of a task runner may not fork, and a fork would not
survive the threads of a store's client. Messages are marshalled tuples over pipes, lengths first:

to a process     (contents, verdicts)     files to pack; which objects of its oldest batch it shall write
                 None                     no more comes
from a process   (digests, sizes)         of one batch, in order
                 (puts, bytes)            when no more comes and all is written
                 pickled error            it ends
"""

from __future__ import annotations

import ctypes
import marshal
import os
import pickle
import select
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any

from include.cvmfs.format.hashes import DIGEST_BYTES, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import Compressor, compress
from include.storage.errors import StoreError, Unavailable
from include.storage.file import FileStore

KEPT_BYTES = 4 << 20
ENVIRONMENT = {"MALLOC_TOP_PAD_": str(KEPT_BYTES)}
"""The same for a process that is about to be started."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h of the GNU C library
_LARGE_BYTES = 32 << 20  # the library takes no higher value


@cache
def keep_freed_memory(*, large: bool = False) -> bool:
    """Let this process keep what it frees, at most ``KEPT_BYTES`` per arena; whether this C library can.

    ``large``: for pieces of many MB keep twice 32 MB, in blocks of any size below that: else each block that is read
    takes its pages from the system, and gives them back, which costs more than hashing it.
    """
    kept = [(_M_TOP_PAD, KEPT_BYTES)]
    kept += [(_M_MMAP_THRESHOLD, _LARGE_BYTES), (_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)] if large else []
    try:
        return all(ctypes.CDLL(None).mallopt(*option) for option in kept)
    except (OSError, AttributeError):
        return False


MOST = 4
_BATCH_FILES = 64
_BATCH_BYTES = 256 << 10
_AHEAD = 3  # batches that wait for a process
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_LENGTH = struct.Struct("<I")

Deliver = Callable[[Any, bytes, int], bool]
"""Gets ticket, digest and stored size of a packed file, in the caller's thread; returns whether it is to be written."""


def useful() -> int:
    """Return how many processes are worth starting here."""
    processors = len(os.sched_getaffinity(0))
    return min(processors, MOST) if processors > 1 else 0


class Processes:
    """Packs files in ``count`` processes. Use from one thread; end with :meth:`finish` or :meth:`kill`."""

    def __init__(
        self, store: FileStore, *, algorithm: Algorithm, compressor: Compressor, count: int, deliver: Deliver
    ) -> None:
        self._store = store
        self._deliver = deliver
        self._contents: list[bytes] = []
        self._tickets: list[Any] = []
        self._bytes = 0
        job = (str(store.root), store.fsync, algorithm.name, compressor.name)
        self._all = [_Process(job) for _ in range(count)]
        self._by_output = {process.output: process for process in self._all}

    def pack(self, ticket: Any, content: bytes) -> None:
        """Take a file; :data:`Deliver` is called for it, or for others, now or later. Raises what a process raised."""
        self._tickets.append(ticket)
        self._contents.append(content)
        self._bytes += len(content)
        if len(self._contents) >= _BATCH_FILES or self._bytes >= _BATCH_BYTES:
            self._send()

    def flush(self) -> None:
        """Deliver all that was taken; the objects are written at the latest when :meth:`finish` returns."""
        if self._contents:
            self._send()
        while any(process.waiting for process in self._all):
            self._receive(wait=True)
        for process in self._all:
            if process.verdicts:
                process.send([])

    def finish(self) -> None:
        """Everything is delivered and written when this returns; no process is left."""
        self.flush()
        for process in self._all:
            process.end()
        for process in self._all:
            puts, count = process.receive()
            process.close()
            self._store.counters.add(puts=puts, bytes_put=count)

    def kill(self) -> None:
        """No process is left when this returns, and what they had not written is not."""
        for process in self._all:
            process.kill()

    def _send(self) -> None:
        self._receive(wait=False)
        while True:
            process = min(self._all, key=lambda each: len(each.waiting))
            if len(process.waiting) < _AHEAD:
                break
            self._receive(wait=True)
        process.waiting.append(self._tickets)
        process.send(self._contents)
        self._tickets, self._contents, self._bytes = [], [], 0

    def _receive(self, *, wait: bool) -> None:
        readable, _, _ = select.select(self._by_output, [], [], None if wait else 0)
        for output in readable:
            process = self._by_output[output]
            digests, sizes = process.receive()
            deliver = self._deliver
            at = 0
            verdict = bytearray()
            for ticket, size in zip(process.waiting.popleft(), sizes, strict=True):
                verdict.append(deliver(ticket, digests[at : at + DIGEST_BYTES], size))
                at += DIGEST_BYTES
            process.verdicts.append(bytes(verdict))


class _Process:
    """A process, seen from its user."""

    def __init__(self, job: tuple[object, ...]) -> None:
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path}
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment,
        )  # fmt: skip
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        self._input = self._process.stdin
        self._output = self._process.stdout
        self.output = self._output.fileno()
        self.waiting: deque[list[Any]] = deque()
        self.verdicts: deque[bytes] = deque()
        _widen(self._input.fileno())
        self._write(job)

    def send(self, contents: list[bytes]) -> None:
        verdicts = list(self.verdicts)
        self.verdicts.clear()
        self._write((contents, verdicts))

    def end(self) -> None:
        self._write(None)

    def receive(self) -> tuple[Any, Any]:
        message = _read(self._output)
        if isinstance(message, tuple):
            return message
        if isinstance(message, bytes):
            raise pickle.loads(message)  # noqa: S301 - from our own process
        raise self._died()

    def close(self) -> None:
        self._process.wait()
        self._input.close()
        self._output.close()

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def _write(self, message: Any) -> None:
        try:
            _write(self._input, message)
        except BrokenPipeError:
            last = _read(self._output)
            while isinstance(last, tuple):
                last = _read(self._output)
            raise (pickle.loads(last) if isinstance(last, bytes) else self._died()) from None  # noqa: S301

    def _died(self) -> StoreError:
        code = self._process.wait()
        return Unavailable(f"a process that writes objects ended with code {code}; run again", key="", cause="process")


def _widen(pipe: int) -> None:
    import fcntl

    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        return  # smaller pipes only wait more often


def _write(pipe: IO[bytes], message: Any) -> None:
    data = marshal.dumps(message)
    rest = memoryview(_LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(pipe.fileno(), rest) :]


def _read(pipe: IO[bytes]) -> Any:
    """The next message; Ellipsis at the end of the pipe."""
    head = _exactly(pipe, _LENGTH.size)
    if len(head) < _LENGTH.size:
        return ...
    (length,) = _LENGTH.unpack(head)
    body = _exactly(pipe, length)
    return marshal.loads(body) if len(body) == length else ...  # noqa: S302 - from our own process


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = os.read(pipe.fileno(), count)
    if len(data) == count or not data:
        return data
    parts, missing = [data], count - len(data)
    while missing and (data := os.read(pipe.fileno(), missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def _work(source: IO[bytes], target: IO[bytes]) -> None:
    """The process itself. It ends when its user does, whose end of the pipe is then closed."""
    root, fsync, algorithm_name, compressor_name = _read(source)
    store = FileStore(Path(root), fsync=fsync)
    algorithm, compressor = Algorithm[algorithm_name], Compressor[compressor_name]
    held: deque[list[tuple[ObjectHash, bytes]]] = deque()
    while (message := _read(source)) is not ...:
        if message is None:
            _write(target, (store.counters.puts, store.counters.bytes_put))
            return
        contents, verdicts = message
        if contents:
            packed = [compress(content, compressor) for content in contents]
            batch = [(hash_bytes(data, algorithm), data) for data in packed]
            held.append(batch)
            _write(target, (b"".join(hash_.digest for hash_, _ in batch), [len(data) for data in packed]))
        for verdict in verdicts:
            for (hash_, data), is_wanted in zip(held.popleft(), verdict, strict=True):
                if is_wanted:
                    store.put(hash_.key, data)


def main() -> None:
    """Run by a fresh interpreter."""
    target = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)  # whatever prints must not come in between
    try:
        _work(os.fdopen(0, "rb", 0, closefd=False), target)
    except BrokenPipeError:
        return
    except Exception as fault:  # noqa: BLE001 - raised again by the user of this process
        _write(target, pickle.dumps(fault))


if __name__ == "__main__":
    main()
