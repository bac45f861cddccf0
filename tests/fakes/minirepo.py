"""A small signed repository, written piece by piece into a store, so that tests can damage exactly one thing in it.

Entries are noted, then ``build`` makes the catalogs, ``damage`` changes one of them behind their counters' backs, and
``publish`` hashes, stores and signs all of it anew.
"""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from include.cvmfs.format import database as reflogs, manifest as manifests, whitelist as whitelists
from include.cvmfs.format.catalog import MARKER, Catalog, NestedRef, PackedCatalog
from include.cvmfs.format.database import History, Reflog, RefType, Tag
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import CERTIFICATE, HISTORY, META, PARTIAL, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.keys import Signer, fingerprint, format_public_key, generate_master, generate_repository_key
from include.cvmfs.format.layout import Layout, MetaInfo
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import Compression, compress
from include.cvmfs.format.paths import name_of, parent_of
from include.cvmfs.format.whitelist import Whitelist
from include.cvmfs.revision.repository import Repository
from include.storage.store import Store

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
FQRN = "mini.example.org"


@cache
def master_key() -> RSAPrivateKey:
    """One for all tests: making keys is slow."""
    return generate_master()


@cache
def signer() -> Signer:
    return generate_repository_key(FQRN, NOW)


def public_key() -> bytes:
    """PEM text of the master key's public half."""
    return format_public_key(master_key().public_key())


@dataclass
class MiniRepository:
    """Builds into ``store``. Paths are absolute; parents are made by whoever adds to them."""

    store: Store
    fqrn: str = FQRN
    algorithm: Algorithm = Algorithm.SHA1
    layout: Layout = Layout.PLAIN
    entries: dict[str, Dirent] = field(default_factory=dict)
    pieces: dict[str, tuple[Chunk, ...]] = field(default_factory=dict)
    databases: dict[str, bytes] = field(default_factory=dict)
    manifest: Manifest | None = None

    def __post_init__(self) -> None:
        self.entries[""] = Dirent("", stat.S_IFDIR | 0o755, size=4096, mtime=SECONDS, linkcount=2)

    # -- entries

    def add(self, path: str, entry: Dirent, chunks: Sequence[Chunk] = ()) -> None:
        self.entries[path] = entry.changed(name=name_of(path), mtime=SECONDS)
        if chunks:
            self.pieces[path] = tuple(chunks)

    def directory(self, path: str, **fields: object) -> None:
        self.add(path, Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2).changed(**fields))

    def nested(self, path: str, **fields: object) -> None:
        """A directory that is a nested catalog, with its marker."""
        self.directory(path, mountpoint=True, **fields)
        self.file(f"{path}/{MARKER}", b"")

    def file(self, path: str, content: bytes, how: Compression = Compression.ZLIB, **fields: object) -> ObjectHash:
        name = self.keep(content, how=how)
        entry = Dirent(
            "", stat.S_IFREG | 0o644, size=len(content), hash=name, algorithm=name.algorithm, compression=how
        )
        self.add(path, entry.changed(**fields))
        return name

    def chunked(self, path: str, contents: Sequence[bytes]) -> None:
        chunks, offset = [], 0
        for content in contents:
            chunks.append(Chunk(offset, len(content), self.keep(content, PARTIAL)))
            offset += len(content)
        entry = Dirent("", stat.S_IFREG | 0o644, size=offset, chunked=True, algorithm=self.algorithm)
        self.add(path, entry, chunks)

    def symlink(self, path: str, target: str) -> None:
        self.add(path, Dirent("", stat.S_IFLNK | 0o777, size=len(target), symlink=target))

    def hardlinks(self, paths: Sequence[str], content: bytes, group: int = 1) -> None:
        for path in paths:
            self.file(path, content, linkcount=len(paths), hardlink_group=group)

    def fifo(self, path: str) -> None:
        self.add(path, Dirent("", stat.S_IFIFO | 0o644))

    # -- catalogs

    def build(self) -> MiniRepository:
        """Make the catalogs of all entries noted so far; link counts follow from the tree."""
        catalogs: dict[str, Catalog] = {}
        for path in sorted(self.entries, key=lambda path: (path.count("/"), path)):
            entry = self.entries[path]
            if entry.is_directory:
                entry = entry.changed(linkcount=2 + self._subdirectories(path))
            if not path:
                catalogs[path] = Catalog.create(path, entry, self.layout)
                continue
            self._holder(catalogs, path).add(path, entry, self.pieces.get(path, ()))
            if entry.mountpoint:
                catalogs[path] = Catalog.create(path, entry, self.layout)
        for path in sorted(catalogs, key=lambda path: -path.count("/")):
            catalog = catalogs[path]
            catalog.set_property("last_modified", SECONDS)
            catalog.set_property("revision", 1)
            self.databases[path] = catalog.to_bytes()
            packed = PackedCatalog.of(self.databases[path], self.algorithm)
            if path:
                reference = NestedRef(path, packed.hash, packed.size)
                self._holder(catalogs, path).set_nested(reference, catalog.statistics.total)
        return self

    def damage(self, catalog: str, sql: str, *values: object) -> MiniRepository:
        """Run a statement on the SQLite file of the catalog mounted at ``catalog``, as no writer of ours would."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.deserialize(self.databases[catalog])
        connection.execute(sql, values)
        self.databases[catalog] = connection.serialize()
        connection.close()
        return self

    def _subdirectories(self, path: str) -> int:
        return sum(
            1 for other, entry in self.entries.items() if other and entry.is_directory and parent_of(other) == path
        )

    def _holder(self, catalogs: dict[str, Catalog], path: str) -> Catalog:
        above = parent_of(path)
        while above not in catalogs:
            above = parent_of(above)
        return catalogs[above]

    # -- publishing

    def keep(self, content: bytes, suffix: str = "", how: Compression = Compression.ZLIB) -> ObjectHash:
        """Store an object."""
        data = content if how is Compression.NONE else compress(content)
        name = hash_bytes(data, self.algorithm, suffix)
        self.store.put(name.key, data)
        return name

    def publish(self, tags: Sequence[Tag] = (), **fields: object) -> Manifest:
        """Store catalogs, tags, reflog, whitelist and manifest, with all hashes as they follow from the bytes.

        ``fields`` replace those of the manifest before it is signed.
        """
        root = self.store_catalogs()
        history = History.create(self.fqrn)
        history.rotate_trunk(Tag("", root.hash, 1, SECONDS, root.size))
        for tag in tags:
            history.add(tag)
        draft = Manifest(
            root=root.hash,
            root_size=root.size,
            revision=1,
            fqrn=self.fqrn,
            timestamp=SECONDS,
            certificate=self.keep(signer().certificate_pem, CERTIFICATE),
            history=self.keep(history.to_bytes(), HISTORY),
            meta=self.keep(MetaInfo(administrator="nobody").format(), META),
        )
        draft = replace(draft, reflog=self.write_reflog(draft))
        self.write_whitelist()
        return self.write_manifest(replace(draft, **fields))

    def store_catalogs(self) -> PackedCatalog:
        """Store all catalogs, children first, each named in the one above; returns the root's."""
        packed = PackedCatalog.of(b"")
        for path in sorted(self.databases, key=lambda path: -path.count("/")):
            packed = PackedCatalog.of(self.databases[path], self.algorithm)
            self.store.put(packed.hash.key, packed.data)
            if path:
                above = max((p for p in self.databases if path.startswith(f"{p}/")), key=len)
                sql = "UPDATE nested_catalogs SET sha1 = ?, size = ? WHERE path = ?"
                self.damage(above, sql, str(packed.hash), packed.size, path)
        return packed

    def write_reflog(self, *manifests_: Manifest) -> ObjectHash:
        """Store a reflog of all that these manifests name; returns its hash."""
        reflog = Reflog.create(self.fqrn)
        for manifest in manifests_:
            named = (manifest.root, manifest.certificate, manifest.history, manifest.meta)
            for name, kind in zip(named, RefType, strict=True):
                if name is not None:
                    reflog.add(name, kind, SECONDS)
        data = reflog.to_bytes()
        self.store.put(reflogs.KEY, data)
        return hash_bytes(data, self.algorithm)

    def write_whitelist(self, fqrn: str | None = None, valid: timedelta = timedelta(days=30)) -> None:
        mark = fingerprint(signer().certificate_pem, self.algorithm)
        whitelist = Whitelist(fqrn or self.fqrn, NOW, NOW + valid, (mark,))
        self.store.put(whitelists.KEY, whitelists.sign(whitelist, master_key(), self.algorithm))

    def write_manifest(self, manifest: Manifest) -> Manifest:
        self.manifest = manifest
        self.store.put(manifests.KEY, manifests.sign(manifest, signer().private_key))
        return manifest


def sample(store: Store, algorithm: Algorithm = Algorithm.SHA1, layout: Layout = Layout.PLAIN) -> MiniRepository:
    """One of everything, in catalogs two levels deep; built, not published yet."""
    mini = MiniRepository(store, algorithm=algorithm, layout=layout)
    mini.file("/readme", b"hello\n")
    mini.directory("/empty")
    mini.directory("/sw")
    mini.file("/sw/plain", b"stored as it is", Compression.NONE)
    mini.symlink("/sw/link", "app/run")
    mini.fifo("/sw/pipe")
    mini.nested("/sw/app", xattr=bytes.fromhex("01010803757365722e666f6f626172"))
    mini.file("/sw/app/run", b"#!/bin/sh\n")
    mini.hardlinks(["/sw/app/one", "/sw/app/two"], b"shared")
    mini.chunked("/sw/app/big", [b"a" * 1000, b"b" * 500, b"c" * 700])
    mini.directory("/sw/app/lib")
    mini.file("/sw/app/lib/code", b"code")
    mini.nested("/sw/app/lib/deep")
    mini.file("/sw/app/lib/deep/data", b"deep data")
    return mini.build()


ALL_PATHS = [
    "", "/empty", "/readme", "/sw", "/sw/app", "/sw/app/.cvmfscatalog", "/sw/app/big", "/sw/app/lib",
    "/sw/app/lib/code", "/sw/app/lib/deep", "/sw/app/lib/deep/.cvmfscatalog", "/sw/app/lib/deep/data", "/sw/app/one",
    "/sw/app/run", "/sw/app/two", "/sw/link", "/sw/pipe", "/sw/plain",
]  # fmt: skip
"""What is in the sample, in the order of a walk."""


def opened(store: Store, **options: object) -> Repository:
    """As readers open it, with its public key and at its time."""
    return Repository.open(store, **{"fqrn": FQRN, "public_keys": [public_key()], "now": NOW, **options})
