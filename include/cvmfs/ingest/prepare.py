"""Prepare a tree for a destination without a lease: read, pack and upload its files, and store its catalogs.

One side reads, compresses, hashes and keeps rows; the other only uploads. Memory is bounded, whatever the tree's size:
file contents by the budget, rows by a spool on disk.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from include.cvmfs.coordination.generation import CollectionProgress
from include.cvmfs.errors import DestinationError
from include.cvmfs.format.hashes import PARTIAL, PLAIN, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.objects import Compressor
from include.cvmfs.ingest.autocatalog import Cuts, cut
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.chunker import Chunker, ChunkLimits
from include.cvmfs.ingest.packing import PACKED_AT_ONCE_BYTES, ContentIndex, Packer
from include.cvmfs.ingest.spool import SpecialBits, Specials, Spool, is_marker
from include.cvmfs.ingest.tree import beyond, build_tree, check_member, survey
from include.cvmfs.ingest.upload import JournaledStore
from include.cvmfs.sources.source import (
    AttributedSource,
    Content,
    Entry,
    EntryKind,
    Opener,
    OwnerMap,
    SourceLimits,
    TreeSource,
    checked_destination,
    refused,
)
from include.storage.store import Store

_log = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_PROGRESS_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """``owner``: (uid, gid) for everything or a map; ``mtime``: Unix s for everything; None keeps the source's.

    ``algorithm`` and ``layout`` are those of the repository; ``mtime_ns``: keep nanoseconds, for which the layout must
    have a column; ``xattrs``: namespaces of the extended attributes to be kept, such as
    ``("user.",)``; ``external``: store no file contents, only their hashes, since they are served from elsewhere,
    as they are and under their paths; ``cuts``: where catalogs begin, and how large they may be.
    ``connections``: uploads at once; ``memory_mb``: contents in flight, in MB, beside a fixed amount for the rest.
    ``index``: file of this machine's content index, which spares compressing what was compressed before.
    """

    algorithm: Algorithm = Algorithm.SHA1
    layout: Layout = Layout.PLAIN
    compressor: Compressor = Compressor.STOCK
    chunking: ChunkLimits = field(default_factory=ChunkLimits)
    owner: tuple[int, int] | OwnerMap | None = None
    mtime: int | None = None
    mtime_ns: bool = False
    specials: Specials = Specials.REFUSE
    special_bits: SpecialBits = SpecialBits.STRIP
    xattrs: tuple[str, ...] = ()
    external: bool = False
    cuts: Cuts = field(default_factory=Cuts)
    connections: int = 64
    memory_mb: int = 128
    limits: SourceLimits = field(default_factory=SourceLimits)
    index: Path | None = None


@dataclass(frozen=True, slots=True)
class Base:
    """The revision that the destination is derived from, and how far collections were before it was read."""

    root: ObjectHash | None = None
    revision: int = 0
    moment: CollectionProgress = field(default_factory=CollectionProgress)


@dataclass(frozen=True, slots=True)
class PrepareProgress:
    """State of a preparation: regular files and their bytes read, objects sent or not, bytes of objects sent."""

    files: int
    bytes: int
    objects_new: int
    objects_reused: int
    bytes_uploaded: int


NO_BASE = Base()
DEFAULTS = PrepareOptions()


def prepare(
    source: TreeSource,
    *,
    store: Store | JournaledStore,
    fqrn: str,
    destination: str,
    now: datetime,
    options: PrepareOptions = DEFAULTS,
    known: Container[bytes] = frozenset(),
    base: Base = NO_BASE,
    progress: Callable[[PrepareProgress], None] | None = None,
    dry_run: bool = False,
) -> Changeset:
    """Store all of ``source`` as a nested catalog at ``destination`` of a repository (fqrn), and return its changeset.

    ``known``: identities (``digests.identity``: the 20-byte digest of a file, digest and letter of others) of objects
    that the store is sure to hold; they are not sent. ``progress`` is called a few times a second, and may raise to
    stop. Raises SourceError, DestinationError and the store's first error; then nothing of the tree can be seen.
    """
    checked_destination(destination)
    if options.mtime_ns and not options.layout.has_mtime_ns:
        raise DestinationError(destination, f"its catalogs of {options.layout.value} cannot hold nanoseconds")
    survey(source, destination, limits=options.limits, cuts=options.cuts, spool=lambda: _spool(source, options))
    attributed = AttributedSource(source, options.xattrs) if options.xattrs else None
    budget = max(options.memory_mb << 20, 1 << 20)
    with ExitStack() as stack:
        spool = stack.enter_context(_spool(source, options))
        algorithm, compression = options.algorithm, options.compressor.compression
        index = None
        if options.index is not None:
            index = stack.enter_context(ContentIndex(options.index, algorithm=algorithm, compression=compression))
            if known and index.is_new():
                _log.warning(
                    "%s of %s: this machine remembers no contents as %s yet (%s). What the repository has from another "
                    "compressor, or from another machine, may be sent again",
                    destination, fqrn, options.compressor.value, options.index,
                )  # fmt: skip
        with Packer(
            None if dry_run else store, known=known, algorithm=algorithm, compressor=options.compressor,
            connections=options.connections, budget_bytes=budget, deliver=spool.add, index=index,
        ) as packer:  # fmt: skip
            reading = _Reading(attributed or source, spool, packer, options, progress)
            reading.run()
            cut_where = cut(spool, destination, options.cuts, lambda: packer.pack(b""))
            tree = build_tree(
                spool, destination, algorithm=algorithm, compression=compression, put=packer.put, layout=options.layout
            )
        reading.report()
        notes = (*_notes(spool), *(attributed.notes() if attributed else ()), *cut_where)
    return Changeset(
        repository=fqrn,
        destination=tree.reference.path,
        root=tree.reference.hash,
        root_size=tree.reference.size,
        root_entry=tree.root_entry,
        statistics=tree.statistics,
        catalogs=tree.catalogs,
        objects_new=packer.objects_new,
        objects_reused=packer.objects_reused,
        bytes_uploaded=packer.bytes_new,
        source=source.name,
        created=now,
        source_sha256=source.sha256,
        base_root=base.root,
        base_revision=base.revision,
        generation=base.moment.completed,
        notes=notes,
        stored=not dry_run,
        swept=base.moment.swept,
    )


def _spool(source: TreeSource, options: PrepareOptions) -> Spool:
    return Spool(
        source.name, owner=options.owner, mtime=options.mtime, mtime_ns=options.mtime_ns, specials=options.specials,
        special_bits=options.special_bits, external=options.external,
    )  # fmt: skip


def _notes(spool: Spool) -> tuple[str, ...]:
    notes = []
    if spool.stripped:
        notes.append(f"set-uid, set-gid and sticky bits stripped from {spool.stripped} entries")
    if spool.skipped:
        notes.append(f"{spool.skipped} special files left out")
    if split := spool.split_links():
        notes.append(f"{split} hard-linked files have names in several directories and became separate files there")
    return tuple(notes)


@dataclass(slots=True)
class _Waiting:
    """A file whose pieces are being packed."""

    entry: Entry
    pieces: list[tuple[int, int, Future[bytes]]]

    @property
    def done(self) -> bool:
        return all(future.done() for _, _, future in self.pieces)


@dataclass
class _Reading:
    """The preparing side: takes the entries one by one, their contents to the packer and their rows to the spool."""

    _source: TreeSource
    _spool: Spool
    _packer: Packer[Entry]
    _options: PrepareOptions
    _progress: Callable[[PrepareProgress], None] | None

    def __post_init__(self) -> None:
        self._next_report = time.monotonic() + _PROGRESS_EVERY_S
        self._waiting: deque[_Waiting] = deque()
        self._chunker = Chunker(self._options.chunking)
        self._members = 0
        self._files = 0
        self._bytes = 0

    def run(self) -> None:
        entries = self._source.entries()
        try:
            self._take(entries)
        finally:
            # A source may read ahead: it must have stopped before what it reads from is closed.
            if isinstance(entries, Generator):
                entries.close()
        self._packer.flush()
        self._settle(everything=True)
        self._spool.complete()

    def _take(self, entries: Iterator[tuple[Entry, Opener | None]]) -> None:
        for entry, opener in entries:
            self._count(entry)
            if opener is not None:
                content = opener()
                try:
                    self._read(entry, content)
                finally:
                    content.close()
            else:
                if entry.kind is EntryKind.HARDLINK:
                    self._packer.flush()
                    if any(waiting.entry.path == entry.hardlink_to for waiting in self._waiting):
                        self._settle(everything=True)
                self._spool.add(entry)
            if self._progress and time.monotonic() >= self._next_report:
                self.report()

    def report(self) -> None:
        if self._progress:
            packer = self._packer
            done = PrepareProgress(
                self._files, self._bytes, packer.objects_new, packer.objects_reused, packer.bytes_new
            )
            self._progress(done)
            self._next_report = time.monotonic() + _PROGRESS_EVERY_S

    def _count(self, entry: Entry) -> None:
        """Keep the limits, before a member is read."""
        self._members += 1
        self._bytes += entry.size
        limits = self._options.limits
        check_member(entry.path, self._members, entry.size, limits, self._source.name)
        if self._bytes > limits.bytes:
            most = f"{limits.bytes} bytes"
            cure = "split the tree or raise the limit"
            raise beyond(entry.path, f"is beyond the limit of {most}; {cure}", self._source.name)

    def _read(self, entry: Entry, content: Content) -> None:
        self._files += 1
        external = self._options.external and not is_marker(entry.path)
        if entry.size > PACKED_AT_ONCE_BYTES or external:
            pack = self._name if external else self._packer.pack_later
            self._waiting.append(_Waiting(entry, self._pieces(entry, content, pack)))
            self._settle()
            return
        data = content.read()
        if len(data) != entry.size:
            raise self._changed(entry)
        self._packer.take(entry, data)

    def _pieces(
        self, entry: Entry, content: Content, pack: Callable[[bytes, str], Future[bytes]]
    ) -> list[tuple[int, int, Future[bytes]]]:
        """Cut a file as it is read. One that stays whole is an ordinary object, and has no suffix."""
        if entry.size <= self._options.chunking.min:
            data = content.read()
            if len(data) != entry.size:
                raise self._changed(entry)
            return [(0, len(data), pack(data, PLAIN))]
        pieces: list[tuple[int, int, Future[bytes]]] = []
        held: bytes | None = None
        offset = read = 0
        while read <= entry.size:
            block = content.read(_READ_BYTES)
            read += len(block)
            for piece in self._chunker.feed(block) if block else self._chunker.finish():
                if held is not None:
                    pieces.append((offset, len(held), pack(held, PARTIAL)))
                    offset += len(held)
                held = piece
            if not block:
                break
        if read != entry.size or held is None:
            raise self._changed(entry)
        pieces.append((offset, len(held), pack(held, PARTIAL if pieces else PLAIN)))
        return pieces

    def _settle(self, *, everything: bool = False) -> None:
        """Spool the files whose pieces are packed."""
        while self._waiting and (everything or self._waiting[0].done):
            waiting = self._waiting.popleft()
            if len(waiting.pieces) == 1:
                self._spool.add(waiting.entry, waiting.pieces[0][2].result())
            else:
                packed = [(offset, size, future.result()) for offset, size, future in waiting.pieces]
                self._spool.add(waiting.entry, None, packed)

    def _name(self, content: bytes, suffix: str) -> Future[bytes]:
        """The digest of what others serve, in the form in which they do: as it is."""
        done: Future[bytes] = Future()
        done.set_result(hash_bytes(content, self._options.algorithm, suffix).digest)
        return done

    def _changed(self, entry: Entry) -> Exception:
        problem = f"changed while it was read: it does not have the {entry.size} bytes that were announced"
        return refused(self._source.name, entry.path, f"{problem}; let the tree rest and try again")
