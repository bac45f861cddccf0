"""The storage of a site that is a folder of this machine, as in the lab.

Links are never followed below the folder: a user who may write there could otherwise have other files removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TypeVar
from urllib.parse import urlsplit

from include.fts.client.credentials import Credential
from include.fts.states import FailureReason
from include.settings.transfers.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED
from include.stageout.places.facts import BLOCK, FileAnswer, FileFacts, ListedFile, at_once, failed, read_back
from include.stageout.places.options import PlaceOptions

T = TypeVar("T")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


class FolderStorage:
    """The folders of a site. A folder has no identities, so the credential is not used; and it reports no checksum."""

    def __init__(self, site: RemoteSite, _: Credential | None, options: PlaceOptions) -> None:
        self._site, self._options = site, options

    def close(self) -> None:
        """Nothing is open between two calls."""

    def look(self, urls: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, FileAnswer]:
        reads = checksum is ChecksumMode.READ_BACK
        return at_once(lambda url: self._at(url, lambda parent, name: _facts(parent, name, reads)), urls, self._options)

    def remove(self, urls: Sequence[str]) -> Mapping[str, FailureReason | None]:
        return at_once(lambda url: self._at(url, _unlinked), urls, self._options)

    def listed(self, url: str) -> Iterator[ListedFile]:
        path = urlsplit(url).path

        def refuse(error: OSError) -> None:
            # removed since the folder above it was listed
            if error.errno not in _ABSENT:
                raise PLACE_UNLISTED(url, error.strerror or "it cannot be read") from None

        try:
            with self._folder(path) as top:
                for folder, _, names, opened in os.fwalk(".", onerror=refuse, follow_symlinks=False, dir_fd=top):
                    yield from _files(opened, PurePosixPath(folder), names)
        except OSError as error:
            refuse(error)

    def _at(self, url: str, work: Callable[[int, str], T]) -> T | FailureReason | None:
        """The work on an open folder and the name of the file in it; None for what does not exist."""
        path = PurePosixPath(urlsplit(url).path)
        try:
            with self._folder(str(path.parent)) as parent:
                return work(parent, path.name)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            return failed(error.errno or errno.EIO, error.strerror or "it failed")

    @contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        """An open folder of the site, reached without links below the site's own folder."""
        roots = [root for root in self._site.folders if PurePosixPath(path).is_relative_to(root)]
        if not roots:
            raise OSError(errno.EACCES, f"{path} is outside of the folders of the site")
        root = max(roots, key=lambda folder: len(folder.parts))
        try:
            opened = os.open(root, _FOLDER)
        except FileNotFoundError:
            # not ENOENT, by which every file of a storage that is not mounted would be gone
            raise OSError(errno.EIO, f"the folder {root} of the site does not exist") from None
        try:
            for part in PurePosixPath(path).relative_to(root).parts:
                below = _below(part, opened)
                os.close(opened)
                opened = below
            yield opened
        finally:
            os.close(opened)


def _below(part: str, parent: int) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, f"{part} is a link") from None
        raise


def _facts(parent: int, name: str, reads: bool) -> FileFacts | FailureReason:
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        return failed(errno.EISDIR, "it is not a file, but a folder, a link or a device")
    if not reads:
        return FileFacts(found.st_size, None, datetime.fromtimestamp(found.st_mtime, UTC))
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent), "rb", buffering=0) as file:
        return read_back(iter(lambda: file.read(BLOCK), b""), found.st_size)


def _unlinked(parent: int, name: str) -> FailureReason | None:
    if not stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        return failed(errno.EISDIR, "it is not a file, but a folder, a link or a device")
    os.unlink(name, dir_fd=parent)
    return None


def _files(opened: int, folder: PurePosixPath, names: Sequence[str]) -> Iterator[ListedFile]:
    for name in names:
        try:
            found = os.stat(name, dir_fd=opened, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield str(folder / name), found.st_size, datetime.fromtimestamp(found.st_mtime, UTC)
