"""What a copy needs of a storage, and the storages whose bytes pass through this service: a folder, and S3."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from include.storage.errors import Forbidden, NotFound, StoreError
from include.storage.open import Credentials, StoreOptions
from include.storage.s3 import S3Connection, S3Store
from lab.fts.errors import FtsServiceError

BLOCK = 1 << 20


class CopyFault(FtsServiceError):
    """A step of a copy failed; FTS's reason has the number and the text."""

    code = "fts-service-copy-failed"

    def __init__(self, errno: int, text: str) -> None:
        super().__init__(text)
        self.errno, self.text = errno, text


class CopyStorage(Protocol):
    """A kind of storage. Each call may take long; it raises CopyFault. ``token`` is the user's for this storage."""

    def size(self, url: str, token: str | None) -> int | None:
        """Bytes of a file; None if it does not exist."""

    def checksum(self, url: str, algorithm: str, token: str | None) -> str | None:
        """The checksum that the storage has of a file, in hexadecimal; None if it has none."""

    def read(self, url: str, token: str | None) -> Iterator[bytes]:
        """The bytes of a file."""

    def write(self, url: str, pieces: Iterator[bytes], size: int, token: str | None, *, draft: str) -> None:
        """Create a file, or replace it. ``draft``: digits of this copy, for a name until the file is whole."""

    def clean(self, url: str, draft: str) -> None:
        """Remove what a copy with these digits has left, where it has a name of its own."""

    def remove(self, url: str, token: str | None) -> None:
        """Remove a file; it is no fault if it does not exist."""


def digest_of(algorithm: str, pieces: Iterable[bytes]) -> str:
    """The checksum of all pieces together, in hexadecimal."""
    if algorithm == "adler32":
        value = 1
        for piece in pieces:
            value = zlib.adler32(piece, value)
        return f"{value:08x}"
    if algorithm not in ("md5", "sha1", "sha256"):
        raise CopyFault(errno.EPROTONOSUPPORT, f"Checksum algorithm {algorithm} is not supported")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class CopyFolder:
    """Files below one folder, as `file://localhost/<path>`: from the folder on, or absolute."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def size(self, url: str, token: str | None) -> int | None:  # noqa: ARG002
        with _os_faults():
            path = self._path(url)
            return path.stat().st_size if path.is_file() else None

    def checksum(self, url: str, algorithm: str, token: str | None) -> str | None:  # noqa: ARG002
        return None

    def read(self, url: str, token: str | None) -> Iterator[bytes]:  # noqa: ARG002
        with _os_faults(), self._path(url).open("rb") as file:
            while piece := file.read(BLOCK):
                yield piece

    def write(self, url: str, pieces: Iterator[bytes], size: int, token: str | None, *, draft: str) -> None:  # noqa: ARG002
        with _os_faults():
            path, begun = self._path(url), self._draft(url, draft)
            path.parent.mkdir(parents=True, exist_ok=True)
            begun.unlink(missing_ok=True)
            try:
                with begun.open("xb") as file:
                    file.writelines(pieces)
                begun.replace(path)
            finally:
                begun.unlink(missing_ok=True)

    def clean(self, url: str, draft: str) -> None:
        with _os_faults():
            self._draft(url, draft).unlink(missing_ok=True)

    def remove(self, url: str, token: str | None) -> None:  # noqa: ARG002
        with _os_faults():
            self._path(url).unlink(missing_ok=True)

    def _draft(self, url: str, draft: str) -> Path:
        path = self._path(url)
        # 240 bytes at most: a name has 255
        return path.with_name(f".{path.name[:56]}.{draft}")

    def _path(self, url: str) -> Path:
        parts = urlsplit(url)
        given = Path(unquote(parts.path))
        inside = given if given.is_relative_to(self._folder) else self._folder / unquote(parts.path).strip("/")
        path = inside.resolve()
        if parts.hostname not in (None, "localhost") or path == self._folder or not path.is_relative_to(self._folder):
            raise CopyFault(errno.EACCES, "Permission denied: the file is not below the folder of this service")
        return path


class BucketStorage:
    """Objects of S3, as `s3://bucket/key`, with one endpoint and one key pair for all buckets."""

    def __init__(self, endpoint: str | None, credentials: Credentials | None) -> None:
        self._options = StoreOptions(endpoint=endpoint)
        self._credentials = credentials
        self._connections: dict[str, S3Connection] = {}

    def size(self, url: str, token: str | None) -> int | None:  # noqa: ARG002
        with _store_faults():
            store, key = self._open(url)
            meta = store.head(key)
        return None if meta is None else meta.size

    def checksum(self, url: str, algorithm: str, token: str | None) -> str | None:  # noqa: ARG002
        return None

    def read(self, url: str, token: str | None) -> Iterator[bytes]:  # noqa: ARG002
        with _store_faults():
            store, key = self._open(url)
            yield from store.stream(key, block=BLOCK)

    def clean(self, url: str, draft: str) -> None:
        """An object exists when it is whole."""

    def write(self, url: str, pieces: Iterator[bytes], size: int, token: str | None, *, draft: str) -> None:  # noqa: ARG002
        import obstore
        from obstore.exceptions import BaseError

        with _store_faults(), tempfile.TemporaryFile() as file:
            connection, key = self._connection(url)
            # not the pieces themselves: the client would ask for them in its own thread, and cannot call itself there
            file.writelines(pieces)
            file.seek(0)
            try:
                obstore.put(connection.client, key, file, chunk_size=8 << 20, max_concurrency=2)
            except BaseError as error:
                raise CopyFault(errno.EIO, f"S3 refused the object ({type(error).__name__})") from None

    def remove(self, url: str, token: str | None) -> None:  # noqa: ARG002
        with _store_faults():
            store, key = self._open(url)
            store.delete([key])

    def _open(self, url: str) -> tuple[S3Store, str]:
        connection, key = self._connection(url)
        return S3Store(f"s3://{connection.bucket}", connection), key

    def _connection(self, url: str) -> tuple[S3Connection, str]:
        parts = urlsplit(url)
        bucket = parts.hostname or ""
        if bucket not in self._connections:
            self._connections[bucket] = S3Connection(bucket, self._credentials, self._options)
        return self._connections[bucket], unquote(parts.path).strip("/")


@contextlib.contextmanager
def _os_faults() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or errno.EIO
        raise CopyFault(
            number, os.strerror(number) if number != errno.ENOENT else "No such file or directory"
        ) from None


@contextlib.contextmanager
def _store_faults() -> Iterator[None]:
    try:
        yield
    except NotFound:
        raise CopyFault(errno.ENOENT, "No such file or directory") from None
    except Forbidden:
        raise CopyFault(errno.EACCES, "Permission denied") from None
    except StoreError as error:
        raise CopyFault(errno.EIO, f"S3: {error}") from None
