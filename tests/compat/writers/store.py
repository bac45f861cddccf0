"""Documents in a repository's store, and what a preparation keeps on a worker's disk."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from include.care.provenance.document import ChangeKind, ProvenanceRecord, Sealed, seal
from include.cvmfs.collect.record import CollectionRecord, Ended
from include.cvmfs.coordination.condemned import key_of, read_list, store_list
from include.cvmfs.coordination.freeze import Freeze
from include.cvmfs.coordination.generation import CollectionPhase, Generation, Past
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.compression import Compression
from include.cvmfs.format.counters import Counts, Statistics
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, META, PARTIAL, Algorithm, ObjectHash
from include.cvmfs.format.history import History, Tag
from include.cvmfs.format.keys import GatewayKey, fingerprint
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.manifest import sign as sign_manifest
from include.cvmfs.format.metainfo import MetaInfo
from include.cvmfs.format.reflog import Reflog, RefType
from include.cvmfs.format.whitelist import Whitelist
from include.cvmfs.format.whitelist import sign as sign_whitelist
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.content_index import ContentIndex
from include.cvmfs.ingest.upload_journal import UploadJournal
from include.gateway.service.commits.ownership import GatewayOwner
from tests.compat.corpus import Document
from tests.compat.keys import FQRN, master, signer
from tests.compat.sqldump import dump, dump_file, load_into, loaded
from tests.fakes.memorystore import MemoryStore

AT = datetime(2026, 11, 21, 2, 3, 4, 567890, tzinfo=UTC)
WHOLE = AT.replace(microsecond=0)
SECRET = "not-a-secret"
SHA256 = "5e" * 32
ROOT = ObjectHash(bytes(range(20)), suffix=CATALOG)
OLDER = ObjectHash(bytes(range(20, 40)), suffix=CATALOG)
SHAKE = ObjectHash(bytes(range(40, 60)), Algorithm.SHAKE128, CATALOG)
DATA = ObjectHash(bytes(range(60, 80)))
PIECE = ObjectHash(bytes(range(80, 100)), Algorithm.RMD160, PARTIAL)
PLACE = "/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt"

GENERATION = Generation(
    4,
    CollectionPhase.SWEEPING,
    AT,
    SHA256,
    (Past(2, None, AT - timedelta(days=1)), Past(3, "0a" * 32, AT - timedelta(hours=3))),
)
COLLECTIONS = CollectionRecord(
    61, (Ended(3, AT - timedelta(days=1), 400_000, 0, 0, True), Ended(4, AT, 300_000, 100_000, 17, False)),
    (ROOT, OLDER, SHAKE), SHA256, AT - timedelta(hours=25), 6, WHOLE,
)  # fmt: skip
FREEZE = Freeze("0123456789abcdef", "disks are moved, é", "shift@node", WHOLE, WHOLE + timedelta(hours=4))
OWNER = GatewayOwner("0123456789abcdef" * 2, "node.example.org", 4711, "boot-1", "2026-11-21T02:03:04+00:00", 17)
PROVENANCE = ProvenanceRecord(
    repository=FQRN, path=PLACE, revision=7, run_id="nightly_install/scheduled__2026-11-21T00:30:00+00:00",
    holder="nightly_install/scheduled__2026-11-21T00:30:00+00:00/artifacts.publish[3] try 2", publisher="native",
    key_id="worker", published_at=AT, root_hash=str(ROOT), nested_hash=str(OLDER), changeset=SHA256,
    source="s3://builds/main/2026-11-21/Gaudi.tar.zst", artifact_sha256="a1" * 32, slot="main", build_id="b1",
    project="Gaudi", platform="x86_64-el9-gcc13-opt",
)  # fmt: skip
LINK = replace(
    PROVENANCE, path="/nightlies/main/latest", kind=ChangeKind.LINK,
    leads_to="/nightlies/main/b1", before="/nightlies/main/b0", came_from="/nightlies/main/b0", from_build="b0",
    reason="from build b0 of 2026-11-20: naïve",
)  # fmt: skip
CHANGESET = Changeset(
    repository=FQRN, destination=PLACE, root=ROOT, root_size=32768,
    root_entry=Dirent("x86_64-el9-gcc13-opt", 0o40755, size=4096, mtime=1795222984, uid=7, gid=8, linkcount=3),
    statistics=Statistics(Counts(*range(1, 13)), Counts(*range(101, 113))), catalogs=2, objects_new=3,
    objects_reused=4, bytes_uploaded=5678, source="s3://builds/main/2026-11-21/Gaudi.tar.zst", created=AT,
    source_sha256="a1" * 32, base_root=SHAKE, base_revision=6, generation=3, notes=("1 socket left out", "été"),
)  # fmt: skip
DRY = replace(
    CHANGESET, root_entry=CHANGESET.root_entry.changed(xattr=bytes.fromhex("01010803757365722e666f6f626172"),
                                                       mtime_ns=123456789),
    stored=False, source_sha256=None, base_root=None, notes=(),
)  # fmt: skip
MANIFEST = Manifest(
    root=ROOT, root_size=32768, revision=7, fqrn=FQRN, garbage_collectable=True,
    certificate=ObjectHash(b"x" * 20, suffix=CERTIFICATE), history=ObjectHash(b"h" * 20, suffix=HISTORY),
    timestamp=1795222984, meta=ObjectHash(b"m" * 20, suffix=META), reflog=ObjectHash(b"y" * 20),
)  # fmt: skip
META_INFO = MetaInfo(
    administrator="shift", email="shift@example.org", organisation="an experiment", description="nightly builds, é",
    url="https://example.org", stratum0="https://stratum0.example.org", stratum1s=("https://one.example.org",),
    custom={"own": 1}, others={"more": ["kept"]},
)  # fmt: skip
CONDEMNED = (ROOT, SHAKE, DATA, PIECE)


def whitelist() -> Whitelist:
    listed = fingerprint(signer().certificate_pem, comment=FQRN)
    return Whitelist(FQRN, WHOLE, WHOLE + timedelta(days=30), (listed,))


def catalog() -> Catalog:
    """A catalog with each kind of row that is written."""
    made = Catalog.create("/sw", Dirent("sw", 0o40755, size=4096, mtime=5, linkcount=3, nested_root=True))
    made.set_property("revision", 3)
    made.set_property("last_modified", 1795222984)
    made.set_property("previous_revision", str(OLDER))
    made.add("/sw/sub", Dirent("sub", 0o40755, size=4096, mtime=6, linkcount=2, mountpoint=True))
    made.set_nested(NestedRef("/sw/sub", ROOT, 32768), Counts(regular=9, dir=2, file_size=99))
    file = Dirent("file", 0o100644, size=6, mtime=7, uid=7, gid=8, hash=DATA, linkcount=2, hardlink_group=1)
    made.add("/sw/file", file)
    made.add("/sw/same", file.changed(name="same"))
    chunks = [Chunk(0, 4, PIECE), Chunk(4, 2, replace(PIECE, digest=b"p" * 20))]
    made.add("/sw/big", Dirent("big", 0o100600, size=6, chunked=True, algorithm=Algorithm.RMD160), chunks)
    plain = {"hash": replace(DATA, digest=b"d" * 20), "compression": Compression.NONE}
    made.add("/sw/plain", Dirent("plain", 0o100644, size=3, xattr=bytes.fromhex("0101010161ff"), **plain))
    made.add("/sw/link", Dirent("link", 0o120777, size=4, symlink="file"))
    made.add("/sw/fifo", Dirent("fifo", 0o010644))
    return made


def read_catalog(sql: bytes) -> dict[str, Any]:
    """All that a reader makes of a catalog."""
    found = Catalog.load(loaded(sql))
    entries = {entry.name: entry for entry in found.listing("/sw")}
    return {
        "root": found.root_entry, "entries": entries, "nested": found.nested(), "statistics": found.statistics,
        "revision": found.revision, "previous": found.previous_revision, "at": found.last_modified,
        "chunks": found.chunks("/sw/big", entries["big"]), "path": found.path, "objects": list(found.object_hashes()),
    }  # fmt: skip


def history() -> History:
    made = History.create(FQRN)
    made.set_previous(ObjectHash(b"h" * 20, suffix=HISTORY))
    made.rotate_trunk(Tag("", OLDER, 6, 1795222000, 32768))
    made.rotate_trunk(Tag("", ROOT, 7, 1795222984, 32768))
    made.add(Tag("main-b1", ROOT, 7, 1795222984, 32768, "main, build b1 of 2026-11-21"))
    return made


def reflog() -> Reflog:
    made = Reflog.create(FQRN)
    for hash_, kind, at in ((ROOT, RefType.CATALOG, 9), (b"x", RefType.CERTIFICATE, 8), (b"m", RefType.META, 7)):
        named = hash_ if isinstance(hash_, ObjectHash) else ObjectHash(hash_ * 20, suffix=kind.suffix)
        made.add(named, kind, at)
    return made


@dataclass(frozen=True)
class Journal:
    """What a journal of sent objects is about, and what it holds."""

    about: tuple[str | None, ...]
    generation: int
    sent: tuple[ObjectHash, ...]


JOURNAL = Journal(("s3://cvmfs/compat.example.org", PLACE, None, "a1" * 32), 3, (DATA, ROOT, PIECE))


def write_journal(journal: Journal) -> bytes:
    """Its name, and then its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        kept = UploadJournal(Path(folder), about=journal.about, generation=journal.generation, now=AT)
        for one in journal.sent:
            kept.note(one.key)
        kept.close()
        return kept.path.name.encode() + b"\n" + kept.path.read_bytes()


def read_journal(data: bytes) -> Journal:
    """As the next try reads it, an hour later."""
    name, _, content = data.partition(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name.decode()).write_bytes(content)
        now = AT + timedelta(hours=1)
        with UploadJournal(Path(folder), about=JOURNAL.about, generation=JOURNAL.generation, now=now) as kept:
            known = kept.known
    by_identity = {one.digest + one.suffix.encode(): one for one in JOURNAL.sent}
    return replace(JOURNAL, sent=tuple(by_identity[one] for one in known))


CONTENTS = {b"hello\n": DATA.digest, b"": ROOT.digest}


def write_content_index(contents: dict[bytes, bytes]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "index.db"
        with ContentIndex(file, algorithm=Algorithm.SHA1, compression=Compression.ZLIB) as index:
            for content, digest in contents.items():
                index.remember(index.key(content), digest)
        return dump_file(file)


def read_content_index(sql: bytes) -> dict[bytes, bytes]:
    """What the contents are known to have become."""
    with tempfile.TemporaryDirectory() as folder:
        file = load_into(Path(folder) / "index.db", sql)
        with ContentIndex(file, algorithm=Algorithm.SHA1, compression=Compression.ZLIB) as index:
            keys = {index.key(content): content for content in CONTENTS}
            return {keys[key]: digest for key, digest in index.find(list(keys)).items()}


def write_condemned(hashes: Iterable[ObjectHash]) -> bytes:
    """All documents of a list: the key and the bytes of each in hex, its index last."""
    store = MemoryStore()
    index = key_of(store_list(store, hashes))
    keys = sorted(store.objects, key=lambda key: (key == index, key))
    return _lines(f"{key} {store.objects[key].hex()}" for key in keys)


def read_condemned(data: bytes) -> tuple[ObjectHash, ...]:
    """The objects of such a list; before lists had shards, each was one document."""
    store = MemoryStore()
    if data.startswith(b"nightshift condemned 1\n"):
        key = key_of(hashlib.sha256(data).hexdigest())
        store.put(key, data)
    else:
        for key, content in (line.split() for line in data.decode().splitlines()):
            store.put(key, bytes.fromhex(content))
    return tuple(sorted(read_list(store, key.rpartition("/")[2]), key=CONDEMNED.index))


def signed(record: ProvenanceRecord) -> bytes:
    """Where the document of a record is stored, and then the document."""
    sealed = seal(record, secret=SECRET, private_key=signer().private_key)
    return record.key.encode() + b"\n" + sealed.format()


def unsealed(data: bytes) -> ProvenanceRecord:
    """The record of a document whose signatures both fit."""
    sealed = Sealed.parse(data.partition(b"\n")[2])
    assert sealed.is_by_gateway_key(SECRET)
    assert sealed.is_by_repository_key(signer().private_key.public_key())
    return sealed.record


def _of(kind: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    return lambda value: value.format(), kind.parse


def read_manifest(data: bytes) -> Manifest:
    from include.cvmfs.format.manifest import verify

    found = Manifest.parse(data)
    verify(found, signer().certificate_pem, fqrn=FQRN)
    return found.manifest


def read_whitelist(data: bytes) -> Whitelist:
    from include.cvmfs.format.whitelist import verify

    found = Whitelist.parse(data)
    key = master().public_key()
    verify(found, [key], fqrn=FQRN, now=AT + timedelta(days=1), certificate=signer().certificate_pem)
    return found.whitelist


def documents() -> dict[str, Document]:
    """By the name of the file in the corpus."""
    return {
        "generation.json": Document(GENERATION, *_of(Generation)),
        "generation-idle.json": Document(Generation(0, CollectionPhase.IDLE, WHOLE), *_of(Generation)),
        "generation-swept.json": Document(replace(GENERATION, swept=17), *_of(Generation)),
        "condemned.bin": Document(CONDEMNED, write_condemned, read_condemned),
        "collections.json": Document(COLLECTIONS, *_of(CollectionRecord)),
        "collections-empty.json": Document(CollectionRecord(), *_of(CollectionRecord)),
        "freeze.json": Document(FREEZE, *_of(Freeze)),
        "freeze-thawed.json": Document(replace(FREEZE, until=None, thawed=WHOLE + timedelta(hours=1)), *_of(Freeze)),
        "gateway-owner.json": Document(OWNER, *_of(GatewayOwner)),
        "provenance-tree.txt": Document(PROVENANCE, signed, unsealed),
        "provenance-link.txt": Document(LINK, signed, unsealed),
        "changeset.json": Document(CHANGESET, *_of(Changeset)),
        "changeset-dry.json": Document(DRY, *_of(Changeset)),
        "changeset-swept.json": Document(replace(CHANGESET, swept=17), *_of(Changeset)),
        "changeset-digest.txt": Document([CHANGESET, DRY], lambda value: _lines(one.digest for one in value)),
        "manifest.bin": Document(MANIFEST, lambda value: sign_manifest(value, signer().private_key), read_manifest),
        "whitelist.bin": Document(whitelist(), lambda value: sign_whitelist(value, master()), read_whitelist),
        "metainfo.json": Document(META_INFO, *_of(MetaInfo)),
        "gateway-key.txt": Document(
            GatewayKey("worker", SECRET),
            lambda key: key.format().encode(),
            lambda data: GatewayKey.parse(data.decode()),
        ),
        "catalog.sql": Document(
            read_catalog(dump(catalog().to_bytes())), lambda _: dump(catalog().to_bytes()), read_catalog
        ),
        "history.sql": Document(
            history().tags(), lambda _: dump(history().to_bytes()), lambda sql: History.load(loaded(sql)).tags()
        ),
        "reflog.sql": Document(
            reflog().refs(), lambda _: dump(reflog().to_bytes()), lambda sql: Reflog.load(loaded(sql)).refs()
        ),
        "sent-journal.bin": Document(JOURNAL, write_journal, read_journal),
        "content-index.sql": Document(CONTENTS, write_content_index, read_content_index),
    }


def _lines(values: Any) -> bytes:
    return "".join(f"{one}\n" for one in values).encode()
