"""An artifact as a source of a tree, whatever it is packed as: recognized by its first bytes, never by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from include.cvmfs.errors import SourceError
from include.cvmfs.sources.archive import blocks_of
from include.cvmfs.sources.directory import DirectorySource
from include.cvmfs.sources.source import SourceLimits, TreeSource, printable
from include.cvmfs.sources.tarball import TarSource
from include.cvmfs.sources.zipmembers import MAGIC, ZipSource

_MAGIC_BYTES = max(len(magic) for magic in MAGIC)


def open_artifact(
    stream: BinaryIO | Iterable[bytes],
    name: str,
    *,
    sha256: str | None = None,
    size: int | None = None,
    limits: SourceLimits | None = None,
) -> TreeSource:
    """A tar archive (plain, .gz, .xz, .zst) or a zip. Reads the first block at once; parameters as in ``TarSource``."""
    blocks = blocks_of(stream)
    first = b""
    for block in blocks:
        first += block
        if len(first) >= _MAGIC_BYTES:
            break
    whole: Iterator[bytes] = chain((first,), blocks) if first else iter(())
    kind = ZipSource if first.startswith(MAGIC) else TarSource
    return kind(whole, name, sha256=sha256, size=size, limits=limits)


def open_path(path: Path, *, sha256: str | None = None, limits: SourceLimits | None = None) -> TreeSource:
    """A folder or an archive of this machine. ``sha256``: what the archive's must be; a folder has none.

    Raises SourceError for what is not there or cannot be read.
    """
    if path.is_dir():
        if sha256 is not None:
            raise SourceError(printable(str(path)), "is a folder and has no SHA-256; give an archive, or no sum")
        return DirectorySource(path)
    try:
        return open_artifact(_content(path), path.name, sha256=sha256, size=path.stat().st_size, limits=limits)
    except OSError as fault:
        raise SourceError(printable(str(path)), f"{fault.strerror}; give a folder or an archive") from None


def _content(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from blocks_of(file)
