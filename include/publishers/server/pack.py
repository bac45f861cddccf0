"""Prepare for a node: read a tree, refuse what cannot be taken, and keep it as one plain archive on this machine.

The changeset is that of the same tree prepared without a store: its root identifies the tree, its counters are those
that the destination must have in the end. It names no stored objects.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.catalog import MARKER
from include.cvmfs.format.objects import Compressor
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import DEFAULTS, NO_BASE, Base, PrepareOptions, PrepareProgress, prepare
from include.cvmfs.ingest.spool import SpecialBits, Specials
from include.cvmfs.ingest.tree import beyond, check_member
from include.cvmfs.sources.artifact import DirectorySource
from include.cvmfs.sources.source import (
    SPECIALS,
    AttributedSource,
    Entry,
    EntryKind,
    Opener,
    OwnerMap,
    SourceLimits,
    TreeSource,
    checked_destination,
    fixed,
    refused,
    unpack_xattrs,
)
from include.cvmfs.sources.tarball import TarSource
from include.publishers.capabilities import Operation
from include.publishers.errors import PACKED_MISSING
from include.storage.file import FileStore

_READ_BYTES = 1 << 20
_END = bytes(2 * tarfile.BLOCKSIZE)
_KEPT = timedelta(days=2)
_TYPES = {
    EntryKind.FILE: tarfile.REGTYPE,
    EntryKind.DIRECTORY: tarfile.DIRTYPE,
    EntryKind.SYMLINK: tarfile.SYMTYPE,
    EntryKind.HARDLINK: tarfile.LNKTYPE,
    EntryKind.FIFO: tarfile.FIFOTYPE,
    EntryKind.CHARACTER_DEVICE: tarfile.CHRTYPE,
    EntryKind.BLOCK_DEVICE: tarfile.BLKTYPE,
}
Lossless = Callable[[Operation, str], object]
"""Called with an operation of the table and the path that needs it; raises if that would be lost on the way."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Packs trees for one repository into ``folder``, and finds them there. ``options``: what is kept of a tree."""

    fqrn: str
    folder: Path
    options: PrepareOptions
    lossless: Lossless

    @classmethod
    def finder(cls, fqrn: str, folder: Path) -> Packing:
        """Return one that only finds what was packed."""
        return cls(fqrn, folder, DEFAULTS, lambda _operation, _path: None)

    def pack(
        self,
        source: TreeSource,
        *,
        destination: str,
        now: datetime,
        base: Base = NO_BASE,
        limits: SourceLimits | None = None,
        progress: Callable[[PrepareProgress], None] | None = None,
        dry_run: bool = False,
    ) -> Changeset:
        """Keep ``source`` for a destination. Nothing is sent anywhere.

        Raises SourceError, DestinationError, Lossy for what the way to the repository would drop, and CvmfsError if
        this machine's disk cannot take it.
        """
        checked_destination(destination)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._forget_old(now)
        handle, name = tempfile.mkstemp(prefix="packing-", dir=self.folder)
        try:
            with os.fdopen(handle, "w+b") as file:
                writer = _Writer(file, source, destination, self.options, limits or self.options.limits, self.lossless)
                writer.write()
                made = prepare(
                    TarSource(_blocks(file), source.name),
                    store=FileStore(self.folder / "nothing-is-stored-here"),
                    fqrn=self.fqrn,
                    destination=destination,
                    now=now,
                    options=replace(
                        self.options, compressor=Compressor.NONE, specials=Specials.KEEP, owner=None,
                        limits=SourceLimits(), index=None,
                    ),
                    base=base,
                    progress=progress,
                    dry_run=True,
                )  # fmt: skip
            changeset = replace(
                made, source=source.name, source_sha256=source.sha256, stored=not dry_run,
                objects_new=0, objects_reused=0, bytes_uploaded=0, notes=(*writer.notes(), *made.notes),
            )  # fmt: skip
            if not dry_run:
                Path(name).replace(self._path(changeset))
            return changeset
        except OSError as fault:
            raise CvmfsError(f"{self.folder}: cannot keep the packed tree ({fault}); free space there") from fault
        finally:
            Path(name).unlink(missing_ok=True)

    def find(self, changeset: Changeset) -> NodeArchive:
        """The archive of a changeset. Raises PrepareAgain: it may have been packed on another machine."""
        path = self._path(changeset)
        if not changeset.stored or not path.is_file():
            raise PACKED_MISSING(changeset.destination, f"its archive is not in {self.folder} of this machine")
        return NodeArchive(path, changeset)

    def _path(self, changeset: Changeset) -> Path:
        return self.folder / f"{changeset.root.digest.hex()}.tar"

    def _forget_old(self, now: datetime) -> None:
        for file in self.folder.iterdir():
            try:
                if file.is_file() and now.timestamp() - file.stat().st_mtime > _KEPT.total_seconds():
                    file.unlink()
            except FileNotFoundError:
                continue  # another task was faster


@dataclass(frozen=True, slots=True)
class NodeArchive:
    """An archive on this machine: what was packed, and all that a node needs."""

    path: Path
    changeset: Changeset

    def blocks(self) -> Iterator[bytes]:
        """Its bytes, from the beginning. Raises PrepareAgain."""
        try:
            with self.path.open("rb") as file:
                yield from _blocks(file)
        except FileNotFoundError:
            raise PACKED_MISSING(self.changeset.destination, f"{self.path} went away meanwhile") from None

    def entries(self, namespaces: tuple[str, ...] = ()) -> Iterator[tuple[Entry, Opener | None]]:
        """Return what is in it; without its root and the marker there, which are made on the node."""
        source = TarSource(self.blocks(), self.changeset.source)
        return (AttributedSource(source, namespaces) if namespaces else source).entries()

    def forget(self) -> None:
        """It is published, or not wanted any more."""
        self.path.unlink(missing_ok=True)


def member(entry: Entry) -> bytes:
    """The header of an entry in an archive, extended headers before it where it needs them."""
    info = tarfile.TarInfo(entry.path)
    info.type = _TYPES[entry.kind]
    info.mode, info.mtime, info.uid, info.gid = entry.mode, entry.mtime, entry.uid, entry.gid
    info.size = entry.size if entry.kind is EntryKind.FILE else 0
    info.linkname = entry.symlink or entry.hardlink_to
    info.devmajor, info.devminor = os.major(entry.device), os.minor(entry.device)
    extended = {"mtime": f"{entry.mtime}.{entry.mtime_ns:09}"} if entry.mtime_ns else {}
    for name, value in unpack_xattrs(entry.xattr).items():
        key = f"SCHILY.xattr.{name.decode('utf-8', 'surrogateescape')}"
        extended[key] = value.decode("utf-8", "surrogateescape")
    info.pax_headers = extended
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class _Writer:
    """Goes through a source once, and writes what is to be kept of it."""

    def __init__(
        self,
        file: BinaryIO,
        source: TreeSource,
        destination: str,
        options: PrepareOptions,
        limits: SourceLimits,
        lossless: Lossless,
    ) -> None:
        self._file = file
        self._source = source
        self._destination = destination
        self._options = options
        self._limits = limits
        self._lossless = lossless
        self._owners = fixed(*options.owner) if isinstance(options.owner, tuple) else options.owner or OwnerMap()
        self._packed: set[str] = set()
        self._left_out: set[str] = set()
        self._stripped = 0
        self._members = 0
        self._bytes = 0
        self._told: set[Operation] = set()

    def write(self) -> None:
        namespaces = self._options.xattrs
        source = AttributedSource(self._source, namespaces) if namespaces else self._source
        for entry, opener in source.entries():
            self._members += 1
            self._bytes += entry.size
            check_member(entry.path, self._members, entry.size, self._limits, self._source.name)
            if self._bytes > self._limits.bytes:
                cure = f"is beyond the limit of {self._limits.bytes} bytes in all; split the tree or raise the limit"
                raise beyond(entry.path, cure, self._source.name)
            if self._taken(entry):
                self._add(entry, opener)
        self._file.write(_END)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0)

    def notes(self) -> tuple[str, ...]:
        found = []
        if self._stripped:
            found.append(f"set-uid, set-gid and sticky bits stripped from {self._stripped} entries")
        if self._left_out:
            found.append(f"{len(self._left_out)} special files left out")
        return tuple(found)

    def _taken(self, entry: Entry) -> bool:
        path, kind = entry.path, entry.kind
        if path == "" and kind is EntryKind.DIRECTORY:
            return False
        if path == MARKER and kind is EntryKind.FILE:
            return False
        if not isinstance(self._source, DirectorySource):
            if path in self._packed:
                if entry.hardlink_to == path:
                    return False  # as tar packs a file again that its list names twice
                raise refused(
                    self._source.name, path, "is there twice, which a stock publisher does not take; pack it once"
                )
            self._packed.add(path)
        if kind is EntryKind.HARDLINK:
            if entry.hardlink_to in self._left_out:
                self._left_out.add(path)
                return False
            self._tell(Operation.TREE_HARD_LINKS, path)
        if kind in SPECIALS:
            return self._special(entry)
        return True

    def _special(self, entry: Entry) -> bool:
        if self._options.specials is Specials.SKIP:
            self._left_out.add(entry.path)
            return False
        if self._options.specials is Specials.REFUSE or entry.kind is EntryKind.SOCKET:
            problem = f"is a {entry.kind.value}, which is not published; remove it"
            raise refused(self._source.name, entry.path, f"{problem}, or set `specials: skip`")
        self._tell(Operation.TREE_SPECIALS, entry.path)
        return True

    def _tell(self, operation: Operation, path: str) -> None:
        if operation not in self._told:
            self._lossless(operation, f"{self._destination}/{path}")
            self._told.add(operation)

    def _add(self, entry: Entry, opener: Opener | None) -> None:
        mode = entry.mode
        if mode & 0o7000 and self._options.special_bits is SpecialBits.STRIP:
            self._stripped += 1
            mode &= 0o777
        uid, gid = self._owners.of(entry.uid, entry.gid)
        ns = entry.mtime_ns if self._options.mtime_ns else 0
        self._file.write(member(replace(entry, mode=mode, uid=uid, gid=gid, mtime_ns=ns)))
        if opener is None:
            return
        content, size = opener(), 0
        try:
            while data := content.read(_READ_BYTES):
                size += len(data)
                self._file.write(data)
        finally:
            content.close()
        if size != entry.size:
            raise refused(
                self._source.name, entry.path, f"has {size} bytes where {entry.size} were announced; try again"
            )
        self._file.write(bytes(-size % tarfile.BLOCKSIZE))


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(_READ_BYTES):
        yield data
