"""Documents and small things for `readers.py`: examples, and reading them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
import zlib
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from include.cvmfs.collect.report import CollectionRecord, Ended
from include.cvmfs.coordination.condemned import (
    SHARDS,
    Index,
    condemned_among,
    hashes_in,
    key_of,
    read_list,
    read_shard,
    store_list,
)
from include.cvmfs.coordination.freeze import Freeze
from include.cvmfs.coordination.generation import (
    KEY,
    STATUS_KEY,
    CollectionPhase,
    CollectionProgress,
    EndedCollection,
    Generation,
    look,
    require_unmoved,
)
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, Algorithm, DigestSet, ObjectHash, hash_bytes
from include.cvmfs.format.layout import MetaInfo
from include.cvmfs.format.objects import Compression, load, stream
from include.cvmfs.format.schema import Counts, Statistics
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.upload import RECORD_BYTES, UploadJournal
from include.cvmfs.sources.dirtab import Dirtab
from include.cvmfs.sources.source import IdMap, pack_xattrs, unpack_xattrs
from include.nightlies.rules.index import BuildIndex
from include.provenance.records import ProvenanceRecord, Sealed, seal
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW


def changesets() -> list[bytes]:
    entry = Dirent("b", 0o40755, linkcount=2, xattr=pack_xattrs({b"user.a": b"b"}), mtime_ns=5)
    one = Changeset(
        FQRN, "/a/b", ObjectHash(bytes(range(20)), suffix=CATALOG), 1, entry,
        Statistics(Counts(regular=2, file_size=10), Counts(regular=3, file_size=5)), 1, 1, 2, 3, "x.tar", NOW,
        source_sha256="0" * 64, base_root=hash_bytes(b"x"), base_revision=3, generation=7, notes=("a note",),
    )  # fmt: skip
    return [one.format()]


def read_changeset(data: bytes) -> None:
    changeset = Changeset.parse(data)
    again = Changeset.parse(changeset.format())
    assert again.digest == changeset.digest
    assert (changeset.files, changeset.bytes, changeset.reference) is not None


def freezes() -> list[bytes]:
    one = Freeze("one", "disks are moved", "operator@host", NOW, NOW + timedelta(hours=1))
    return [one.format(), replace(one, until=None, thawed=NOW).format()]


def read_freeze(data: bytes) -> None:
    found = Freeze.parse(data)
    assert str(found)
    assert found.holds(NOW) in {True, False}
    assert found.format()


def collection_records() -> list[bytes]:
    ended = (Ended(6, NOW, 10, 3, 1, careful=True), Ended(7, NOW, 10, 3, 1, careful=False))
    return [CollectionRecord(7, ended, (hash_bytes(b"x", suffix=CATALOG),), "a" * 64, NOW, 3, NOW).format()]


def read_collection_record(data: bytes) -> None:
    found = CollectionRecord.parse(data)
    assert CollectionRecord.parse(found.format()) == found


def provenance_records() -> list[bytes]:
    record = ProvenanceRecord(FQRN, "/a/b", 7, "run", "holder", "native", "key1", NOW, source="x.tar")
    return [seal(record, secret="secret").format()]


def read_provenance(data: bytes) -> None:
    sealed = Sealed.parse(data)
    sealed.is_by_gateway_key("secret")
    read_provenance_document(sealed.document)


def provenance_documents() -> list[bytes]:
    return [Sealed.parse(data).document for data in provenance_records()]


def read_provenance_document(data: bytes) -> None:
    record = Sealed(data, {}, "key1").record
    assert Sealed.parse(seal(record, secret="secret").format()).record == record


def generations() -> list[bytes]:
    past = (EndedCollection(3, "a" * 64, NOW - timedelta(hours=3)), EndedCollection(4, None, NOW))
    return [
        Generation(5, CollectionPhase.SWEEPING, NOW, "b" * 64, past).format(),
        Generation(5, CollectionPhase.SWEEPING, NOW, "b" * 64, past, swept=17).format(),
        Generation(5, CollectionPhase.IDLE, NOW, None, past).format(),
    ]


def read_generation(data: bytes) -> None:
    store = MemoryStore()
    store.objects[KEY] = data
    seen = look(store)
    assert seen.generation is not None
    assert Generation.parse(seen.generation.format()) == seen.generation
    for began in (0, 3, 5, 9):
        for moment in (CollectionProgress(began), CollectionProgress(began, 17)):
            seen.lists_since(moment)
            seen.running_since(moment)
    require_unmoved(store, seen.token, fqrn=FQRN)


def read_status(data: bytes) -> None:
    store = MemoryStore()
    store.objects[STATUS_KEY] = data
    assert look(store).completed >= 0


def _condemned() -> MemoryStore:
    """A list: an index and two shards."""
    kinds = [(one, letter) for one in Algorithm for letter in ("", "C", "P")] * 3
    store = MemoryStore()
    store_list(store, (ObjectHash(bytes([n % 2]) * 2 + bytes([n]) * 18, *kind) for n, kind in enumerate(kinds)))
    return store


def condemned_lists() -> list[bytes]:
    return list(_condemned().objects.values())


def read_condemned(data: bytes) -> None:
    """Read it as the index of a list, and as each of its shards."""
    store = _condemned()
    name = hashlib.sha256(data).hexdigest()
    store.objects[key_of(name)] = data
    if data.startswith(b"nightshift condemned 1\n"):
        index = Index((name,) * SHARDS, (max(1, (len(data) - 23) // 22),) * SHARDS)
        objects = list(hashes_in(read_shard(store, index, data[23] if len(data) > 23 else 0)))
        assert objects
    else:
        objects = list(read_list(store, name))
        assert len(condemned_among(store, name, DigestSet(hash_.digest for hash_ in objects))) <= len(objects)


def journals() -> list[bytes]:
    with tempfile.TemporaryDirectory() as place:
        with UploadJournal(Path(place), about=["x"], generation=3, now=NOW) as journal:
            for number in range(40):
                journal.note(hash_bytes(b"%d" % number, suffix="P" if number % 5 == 0 else "").key)
        return [journal.path.read_bytes()]


def sum_records(data: bytes) -> bytes:
    head, end, records = data.partition(b"\n")
    made = b""
    for start in range(0, len(records), RECORD_BYTES):
        record = records[start : start + RECORD_BYTES - 4]
        made += record + zlib.crc32(record).to_bytes(4, "big")
    return head + end + made


def read_journal(data: bytes) -> None:
    """Whatever was in it, what is noted after that counts."""
    with tempfile.TemporaryDirectory() as place:
        journal = UploadJournal(Path(place), about=["x"], generation=3, now=NOW)
        journal.close()
        journal.path.write_bytes(data)
        with UploadJournal(Path(place), about=["x"], generation=3, now=NOW) as again:
            DigestSet(again.known)
            again.note(hash_bytes(b"new").key)
        with UploadJournal(Path(place), about=["x"], generation=3, now=NOW) as last:
            assert hash_bytes(b"new").digest in last.known


def build_indices() -> list[bytes]:
    one = {"project": "Gaudi", "platform": "x86_64", "url": "a/Gaudi.tar.zst", "size": 10, "sha256": "0" * 64}
    other = {**one, "project": "LHCb", "dependencies": ["Gaudi"], "priority": 5}
    fields = {"format": 1, "slot": "main", "build_id": "b42", "date": "2026-11-21", "complete": True}
    return [json.dumps({**fields, "artifacts": [one, other]}).encode()]


def read_build_index(data: bytes) -> None:
    index = BuildIndex.parse(data, slot="main", store="s3://builds")
    assert BuildIndex.parse(index.format(), slot="main", store="s3://builds").artifacts == index.artifacts


def read_dirtab(data: bytes) -> None:
    rules = Dirtab.parse(data)
    for path in ("/x", "/software/a/b", "/" + "a" * 40 + "/b", "/é"):
        rules.matches(path)


def read_owner_map(data: bytes) -> None:
    found = IdMap.parse(data.decode("utf-8", "replace"))
    assert IdMap.parse(found.format()) == found


def read_meta_info(data: bytes) -> None:
    found = MetaInfo.parse(data)
    assert MetaInfo.parse(found.format()) == found


def read_hash(data: bytes) -> None:
    found = ObjectHash.parse(data.decode("utf-8", "replace"))
    assert re.fullmatch(r"data/[0-9a-f]{2}/[0-9a-f]{38}(-[a-z0-9]+)?[A-Z]?", found.key)


def read_object(data: bytes) -> None:
    """Stored bytes whose hash is right and whose content is not what the catalog says."""
    store = MemoryStore()
    name = hash_bytes(data)
    store.objects[name.key] = data
    for size in (0, 5000):
        with contextlib.suppress(CvmfsError):
            list(stream(store, name, Compression.ZLIB, size=size))
    load(store, name, limit=10_000)


def read_xattrs(data: bytes) -> None:
    found = unpack_xattrs(data)
    assert unpack_xattrs(pack_xattrs(found)) == found
