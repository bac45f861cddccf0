"""The storage of a site over XRootD, by the program `xrdfs` (Debian: xrootd-client), one process for each file."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import IO
from urllib.parse import urlsplit

from include.fts.states import FailureReason
from include.fts.transport import BearerToken, Credential, X509Files
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED, XRDFS_MISSING
from include.stageout.places import facts

_PROGRAM = "xrdfs"
_ERROR = re.compile(r"\[ERROR\] Server responded with an error: \[(3\d{3})\]")
"""The number of the server's error (kXR_*, XProtocol/XProtocol.hh) in what xrdfs prints."""
_FAILURES: Mapping[int, int] = {
    3009: errno.ENOSPC, 3010: errno.EACCES, 3013: errno.EOPNOTSUPP, 3015: errno.EISDIR, 3016: errno.EISDIR,
    3021: errno.EDQUOT, 3024: errno.EAGAIN, 3030: errno.EACCES,
}  # fmt: skip
"""The errno for each error number; others are EIO."""
_NOT_FOUND = 3011
_SIZE, _FLAGS = re.compile(r"^Size:\s+(\d{1,19})$", re.MULTILINE), re.compile(r"^Flags:.*\bIsDir\b", re.MULTILINE)
_MODIFIED = re.compile(r"^MTime:\s+(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)$", re.MULTILINE)
_CHECKSUM = re.compile(r"^(adler32|crc32c) ([0-9a-fA-F]{1,8})\s*$", re.MULTILINE)
_TIME = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
# with owner and group, or as old servers list
_FILE = re.compile(rf"-\S+ +(?:\S+ +\S+ +(\d{{1,19}}) +{_TIME}|{_TIME} +(\d{{1,19}})) (/.*)")
_BYTES_A_SECOND = 500_000
_PROCESSES = 4


@dataclass(frozen=True, slots=True)
class _Output:
    """The output of a command. ``number``: of the server's error; None without one, as where there is no connection."""

    code: int
    text: str
    number: int | None = None

    def failure(self, verb: str) -> FailureReason:
        if self.number is None:
            return facts.failed(errno.ECOMM, f"{_PROGRAM} {verb}: no connection, or no reply in time")
        return facts.failed(_FAILURES.get(self.number, errno.EIO), f"{_PROGRAM} {verb}: XRootD error {self.number}")


class XrootdStorage:
    """A command of xrdfs takes 0.1 s of a processor: `davs` is better for many files."""

    def __init__(self, site: RemoteSite, credential: Credential | None, options: facts.PlaceOptions) -> None:
        program = shutil.which(_PROGRAM)
        if program is None:
            raise XRDFS_MISSING(f"site {site.name}", f"its root URLs need the program {_PROGRAM}, which is not in PATH")
        self._program = program
        self._options = replace(options, threads=min(options.threads, _PROCESSES))
        # without the credentials of this process, which are not those of the user
        hidden = ("X509_USER_", "BEARER_TOKEN")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        self._environment = {**inherited, **_limits(options.timeout_s), **_identity(credential)}

    def close(self) -> None:
        """Nothing is open between two calls."""

    def look(self, urls: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, facts.FileAnswer]:
        return facts.at_once(lambda url: self._look(url, checksum), urls, self._options)

    def remove(self, urls: Sequence[str]) -> Mapping[str, FailureReason | None]:
        return facts.at_once(self._remove, urls, self._options)

    def read(self, url: str, offset: int, length: int) -> bytes | FailureReason:
        late = threading.Event()
        data = b""
        with self._cat(url, self._options.timeout_s, late) as output:
            while offset > 0 and (block := output.read(min(facts.BLOCK, offset))):
                offset -= len(block)
            data = output.read(length)
        if late.is_set():
            return facts.failed(errno.ETIMEDOUT, f"{_PROGRAM} cat: {length} bytes were not read in time")
        answer = self._look(url, ChecksumMode.NONE) if not data else None
        if isinstance(answer, FailureReason):
            return answer
        return facts.whole(data, length) if data else facts.failed(errno.ENOENT, f"{_PROGRAM} cat: nothing to read")

    def write(self, url: str, data: bytes) -> FailureReason | None:  # noqa: ARG002
        return facts.unsupported("write")

    def copy(self, source: str, url: str) -> FailureReason | None:  # noqa: ARG002
        return facts.unsupported("copy")

    def listed(self, url: str) -> Iterator[facts.ListedFile]:
        output = self._run(url, "ls", "-l", "-R")
        if output.number == _NOT_FOUND:
            return
        if output.code:
            raise PLACE_UNLISTED(url, output.failure("ls").text)
        below = f"{_path(url)}/"
        for line in output.text.splitlines():
            found = _FILE.fullmatch(line)
            if found and found[5].startswith(below):
                yield found[5].removeprefix(below), int(found[1] or found[4]), _utc(found[2] or found[3])

    def _look(self, url: str, checksum: ChecksumMode) -> facts.FileAnswer:
        output = self._run(url, "stat")
        if output.number == _NOT_FOUND:
            return None
        size = _SIZE.search(output.text)
        if output.code or size is None:
            return output.failure("stat") if output.code else facts.failed(errno.EPROTO, f"{_PROGRAM} stat: no size")
        if _FLAGS.search(output.text):
            return facts.failed(errno.EISDIR, "it is not a file, but a folder")
        if checksum is ChecksumMode.NONE:
            return facts.FileFacts(
                int(size[1]), None, _utc(time[1]) if (time := _MODIFIED.search(output.text)) else None
            )
        if checksum is ChecksumMode.READ_BACK:
            return self._read_back(url, int(size[1]))
        output = self._run(url, "query", "checksum", query=f"?cks.type={checksum.value}")
        if output.number == _NOT_FOUND:
            return None
        if output.code:
            refused = _FAILURES.get(output.number or 0) == errno.EOPNOTSUPP
            return facts.FileFacts(int(size[1]), None) if refused else output.failure("query checksum")
        found = _CHECKSUM.search(output.text)
        return facts.FileFacts(int(size[1]), facts.checksum_of(found[1], found[2]) if found else None)

    def _remove(self, url: str) -> FailureReason | None:
        output = self._run(url, "rm")
        return output.failure("rm") if output.code and output.number != _NOT_FOUND else None

    def _run(self, url: str, *verb: str, query: str = "") -> _Output:
        command = [self._program, _server(url), *verb, _path(url) + query]
        try:
            done = subprocess.run(  # noqa: S603 - no shell; the path begins with a slash
                command, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=2 * self._options.timeout_s, text=True, errors="surrogateescape",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return _Output(1, "")
        found = _ERROR.search(done.stderr) or _ERROR.search(done.stdout)
        return _Output(done.returncode, done.stdout, int(found[1]) if found and done.returncode else None)

    def _read_back(self, url: str, size: int) -> facts.FileFacts | FailureReason:
        with self._cat(url, self._options.timeout_s + size / _BYTES_A_SECOND) as output:
            return facts.read_back(iter(lambda: output.read(facts.BLOCK), b""), size)

    @contextmanager
    def _cat(self, url: str, seconds: float, late: threading.Event | None = None) -> Iterator[IO[bytes]]:
        """The bytes of a file. When the time is over, `late` is set, and no more come."""
        command = [self._program, _server(url), "cat", _path(url)]
        process = subprocess.Popen(  # noqa: S603 - as in _run
            command, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

        def end() -> None:
            if late is not None:
                late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            with process:
                yield process.stdout  # type: ignore[misc]
                process.kill()
        finally:
            timer.cancel()


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _limits(timeout_s: float) -> dict[str, str]:
    seconds = str(int(timeout_s))
    window = str(min(int(timeout_s), 10))
    return {
        "XRD_REQUESTTIMEOUT": seconds, "XRD_STREAMTIMEOUT": seconds, "XRD_CONNECTIONWINDOW": window,
        "XRD_CONNECTIONRETRY": "1", "TZ": "UTC", "LC_ALL": "C",
        # computed in software, it makes reading several times slower; the Adler-32 proves the same
        "XRD_CPUSEPGWRTRD": "0",
    }  # fmt: skip


def _identity(credential: Credential | None) -> dict[str, str]:
    """Return how XRootD's client is given a credential. Only the user that runs the program can read its
    environment."""
    match credential:
        case BearerToken(token):
            return {"BEARER_TOKEN": token, "X509_USER_PROXY": os.devnull}
        case X509Files(certificate, None):
            return {"X509_USER_PROXY": certificate}
        case X509Files(certificate, key):
            return {"X509_USER_CERT": certificate, "X509_USER_KEY": str(key)}
        case None:
            return {"X509_USER_PROXY": os.devnull}


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"root://{parts.netloc}"


def _path(url: str) -> str:
    """XRootD's URLs have two slashes before an absolute path."""
    return "/" + urlsplit(url).path.strip("/")
