"""Everything that reads what others wrote: valid examples of it, ways to damage them, and what a reader may raise.

A reader does with what it was given all that its users do. It ends, or raises an error of its own subject; whatever
else it raises, a crash, a stop for memory or an endless loop, is a fault of ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import json
import lzma
import re
import stat
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import zstandard

from include.cvmfs import manifest as manifests
from include.cvmfs import whitelist as whitelists
from include.cvmfs.catalog import Catalog
from include.cvmfs.catalogs import CatalogCache
from include.cvmfs.changeset import Changeset, objects_of
from include.cvmfs.check import check
from include.cvmfs.compression import Compression, compress
from include.cvmfs.condemned import condemned_among, format_list, key_of, read_list
from include.cvmfs.content_index import ContentIndex
from include.cvmfs.counters import Counts, Statistics
from include.cvmfs.diff import diff
from include.cvmfs.digests import DigestSet
from include.cvmfs.dirent import Dirent
from include.cvmfs.dirtab import Dirtab
from include.cvmfs.edit import Edit
from include.cvmfs.errors import CvmfsError
from include.cvmfs.generation import KEY, STATUS_KEY, Generation, Past, Phase, look, require_unmoved
from include.cvmfs.get import get
from include.cvmfs.hashes import CATALOG, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.history import History, Tag
from include.cvmfs.keys import (
    GatewayKey,
    fingerprint,
    load_gateway_key,
    load_private_key,
    parse_certificate,
    parse_public_keys,
    public_key_of,
)
from include.cvmfs.merge import merge
from include.cvmfs.metainfo import MetaInfo, skeleton
from include.cvmfs.objects import load, stream
from include.cvmfs.owners import IdMap
from include.cvmfs.prepare import PrepareOptions, prepare
from include.cvmfs.reflog import Reflog, RefType
from include.cvmfs.repository import Repository
from include.cvmfs.sent import RECORD_BYTES, SentJournal
from include.cvmfs.signing import Scheme, sign_letter
from include.cvmfs.source import SourceLimits, TreeSource
from include.cvmfs.spool import Specials
from include.cvmfs.tarball import TarSource
from include.cvmfs.trust import Trusted
from include.cvmfs.whitelist import Whitelist
from include.cvmfs.xattrs import pack_xattrs, unpack_xattrs
from include.cvmfs.ziparchive import ZipSource
from include.nightlies.errors import NightlyError
from include.nightlies.index import BuildIndex
from tests.fakes.archives import BLOCK, archive, file, folder, hardlink, symlink
from tests.fakes.archives import Member as TarMember
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, SECONDS, MiniRepository, master_key, public_key, sample, signer
from tests.fakes.zips import ZipMember, owners, times, zip_archive
from tests.fuzz.mutations import Damage, Way, in_bytes, in_json, in_rows

LIMITS = SourceLimits(members=1000, bytes=1 << 24, ratio=100, ratio_from=1 << 20)
_PAST = datetime(2026, 2, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Reader:
    """``ways``: how its examples are damaged; ``errors``: what it may raise."""

    examples: Callable[[], Sequence[bytes]]
    read: Callable[[bytes], object]
    ways: Sequence[Way] = (in_bytes,)
    errors: tuple[type[Exception], ...] = (CvmfsError,)


def attempt(name: str, example: int, way: int, damage: Damage) -> bool:
    """Let a reader read a damaged example; whether it refused. Raises what it must not raise."""
    reader = READERS[name]
    examples = reader.examples()
    damaged = reader.ways[way % len(reader.ways)](examples[example % len(examples)], damage, examples)
    try:
        reader.read(damaged)
    except reader.errors:
        return True
    return False


def then(way: Way, seal: Callable[[bytes], bytes]) -> Way:
    """The damage, and after it sums and signatures made right again, so that what lies behind them is reached."""
    return lambda data, damage, others: seal(way(data, damage, others))


# -- a repository


@functools.cache
def whole() -> MiniRepository:
    """A repository as it should be."""
    mini = sample(MemoryStore())
    mini.publish([Tag("one", hash_bytes(b"one", suffix=CATALOG), 1, SECONDS, 10)])
    return mini


def a_copy() -> MemoryStore:
    store = MemoryStore()
    store.objects.update(whole().store.objects)  # type: ignore[attr-defined]
    return store


def stored(key: str) -> list[bytes]:
    return [whole().store.get(key)]


def read_catalog(place: str, database: bytes) -> None:
    """A repository with this catalog in one place of it; each use ends on its own."""
    store, manifest = a_copy(), whole().manifest
    assert manifest is not None
    mini = MiniRepository(store)
    mini.databases = {**{path: whole().databases[path] for path in [""] if place}, place: database}
    before, root = manifest.root, mini.store_catalogs().hash
    signed = manifests.SignedManifest(dataclasses.replace(manifest, root=root, root_size=0), b"", root, b"")
    repository = Repository(store, Trusted(signed, verified=True))
    assert check(repository, contents=True).problem_count >= 0
    cache = CatalogCache(store)
    uses: tuple[Callable[[], object], ...] = (
        lambda: _look_at(Catalog.load(database)),
        lambda: list(repository.walk()),
        lambda: [repository.read(path) for path, entry in repository.walk() if entry.is_regular],
        lambda: list(repository.objects_below()),
        lambda: list(diff(repository.at(before), repository)),
        lambda: _write_to_disk(repository),
        lambda: _edited(cache, root),
        lambda: Edit(cache, root).move("/sw", "/moved"),
        lambda: Edit(cache, root).remove("/sw"),
        lambda: merge(cache, base=before, new=root, current=before, lease_path="").finish(SECONDS),
        lambda: merge(cache, base=root, new=before, current=root, lease_path="/sw").finish(SECONDS),
    )
    faults = []
    for use in uses:
        try:
            use()
        except CvmfsError as fault:
            faults.append(fault)
    if faults:
        raise faults[0]


def _look_at(catalog: Catalog) -> None:
    assert catalog.revision + catalog.last_modified + catalog.ttl is not None
    assert catalog.previous_revision is None or catalog.previous_revision.digest
    assert catalog.root_entry is not None
    catalog.nested()
    catalog.bind_mountpoints()
    list(catalog.identities())
    list(catalog.object_hashes())
    catalog.make_writable()
    catalog.next_hardlink_group()
    for child in catalog.listing(catalog.path):
        catalog.chunks(f"{catalog.path}/{child.name}", child)
    for child in catalog.listing(catalog.path):
        catalog.remove_tree(f"{catalog.path}/{child.name}")
    catalog.to_bytes()
    catalog.move_to("/else/where")


def _write_to_disk(repository: Repository) -> None:
    with tempfile.TemporaryDirectory(prefix="nightshift-fuzz-") as top:
        target = Path(top) / "a/b/c/d/e/f/g/target"
        target.parent.mkdir(parents=True)
        try:
            get(repository, "", target)
        finally:
            around = [path for path in Path(top).rglob("*") if target not in (path, *path.parents)]
            assert set(around) <= set(target.parents), around


def _edited(cache: CatalogCache, root: ObjectHash) -> None:
    edit = Edit(cache, root)
    edit.add("/new", Dirent("", stat.S_IFDIR | 0o755, linkcount=2))
    edit.make_nested("/sw/new", Dirent("", stat.S_IFDIR | 0o755, linkcount=2))
    edit.remove("/readme")
    edit.symlink("/sw/app/link", "x", now=SECONDS)
    edit.finish(SECONDS)


def histories() -> list[bytes]:
    history = History.create(FQRN)
    history.rotate_trunk(_tag(1))
    for number in range(20):
        history.add(dataclasses.replace(_tag(number), name=f"tag-{number}"))
    history.rotate_trunk(_tag(30), hash_bytes(b"before"))
    return [history.to_bytes()]


def _tag(number: int) -> Tag:
    return Tag("", hash_bytes(b"%d" % number, suffix=CATALOG), number, SECONDS + number, 4096, "a description")


def read_history(data: bytes) -> None:
    history = History.load(data)
    assert history.fqrn is not None
    assert history.previous_revision is None or history.previous_revision.digest
    history.tags()
    history.branches()
    history.problems()
    history.rotate_trunk(_tag(500), hash_bytes(b"x"))
    history.add(dataclasses.replace(_tag(501), name="new"))
    history.move(dataclasses.replace(_tag(502), name="tag-3"))
    history.remove("tag-2")
    history.pack()


def reflogs() -> list[bytes]:
    reflog = Reflog.create(FQRN)
    for number, kind in enumerate([*RefType] * 5):
        reflog.add(hash_bytes(b"%d" % number), kind, SECONDS + number)
    return [reflog.to_bytes()]


def read_reflog(data: bytes) -> None:
    reflog = Reflog.load(data)
    assert reflog.fqrn is not None
    reflog.refs()
    reflog.refs(RefType.CATALOG, before=SECONDS + 3)
    reflog.contains(hash_bytes(b"1"))
    reflog.add(hash_bytes(b"x"), RefType.META, SECONDS)
    reflog.remove(hash_bytes(b"1"))
    assert len(reflog) >= 0
    reflog.hash()


# -- signed letters and keys


def _lines(data: bytes) -> bytes:
    return data.partition(b"--\n")[0]


def _sum_again(data: bytes) -> bytes:
    letter, _, rest = data.partition(b"--\n")
    return letter + b"--\n" + str(hash_bytes(letter)).encode() + b"\n" + rest.partition(b"\n")[2]


def _sign_manifest(data: bytes) -> bytes:
    return sign_letter(_lines(data), signer().private_key, Scheme.SHA1_DIGEST_INFO)


def _sign_whitelist(data: bytes) -> bytes:
    return sign_letter(_lines(data), master_key(), Scheme.NO_DIGEST_INFO)


def read_manifest(data: bytes) -> None:
    store = a_copy()
    store.objects[manifests.KEY] = data
    repository = Repository.open(store, fqrn=FQRN, public_keys=[public_key()], now=NOW)
    assert repository.verified
    repository.tags()
    repository.meta()
    check(repository, quick=True, now=NOW)


def read_whitelist(data: bytes) -> None:
    store = a_copy()
    store.objects[whitelists.KEY] = data
    Repository.open(store, fqrn=FQRN, public_keys=[public_key()], now=NOW)
    Whitelist.parse(data).whitelist.letter()


def read_certificate(data: bytes) -> None:
    certificate = parse_certificate(data)
    fingerprint(certificate, Algorithm.SHAKE128)
    public_key_of(certificate)


def private_keys() -> list[bytes]:
    from include.cvmfs.keys import KeyFile, save_master

    with tempfile.TemporaryDirectory() as place:
        save_master(Path(place), FQRN, master_key())
        return [KeyFile.MASTER.path(Path(place), FQRN).read_bytes()]


def read_private_key(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "key"
        path.write_bytes(data)
        load_private_key(path)


def read_gateway_key(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "key"
        path.write_bytes(data)
        key: GatewayKey = load_gateway_key(path)
        assert GatewayKey.parse(key.format()) == key


# -- archives


def tars() -> list[bytes]:
    pax = b"".join(
        b"%d %s" % (len(text) + 3, text)
        for text in (b"mtime=1.5\n", b"SCHILY.xattr.user.a=b\n", b"uid=70000\n", b"path=d/long\n")
    )
    members = [
        folder("d/"), file("d/f", b"content" * 100, mode=0o640), symlink("l", "../x"), hardlink("d/g", "d/f"),
        TarMember(b"PaxHeaders/y", pax, type=b"x"), file("short", b"long"),
        TarMember(b"././@LongLink", b"n" * 200 + b"\0", type=b"L"),
        file("n" * 100, b"1"), TarMember(b"pipe", type=b"6"), TarMember(b"device", type=b"3", device=(1, 3)),
    ]  # fmt: skip
    return [archive(members), archive([TarMember(b"PaxHeaders/z", b"19 comment=nothing\n", type=b"g"), *members[:2]])]


def _sum_headers(data: bytes) -> bytes:
    held = bytearray(data)
    for start in range(0, len(held) - BLOCK + 1, BLOCK):
        header = held[start : start + BLOCK]
        if header[257:262] == b"ustar":
            header[148:156] = b" " * 8
            held[start + 148 : start + 156] = b"%06o\0 " % (sum(header) & 0o777777)
    return bytes(held)


def _packed(data: bytes, damage: Damage, others: Sequence[bytes]) -> bytes:
    """The archive in one of its packings, and damage to that."""
    packers: tuple[Callable[[bytes], bytes], ...] = (gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress)
    return in_bytes(packers[damage[0][1] % 3](data), damage, others)


def read_archive(kind: type[TarSource] | type[ZipSource], data: bytes) -> None:
    def source() -> TreeSource:
        pieces = [data[start : start + 700] for start in range(0, len(data), 700)]
        return kind(iter(pieces), "x", limits=LIMITS)

    for entry, opener in source().entries():
        assert entry.path is not None
        if opener is not None:
            opener().read()
    options = PrepareOptions(connections=1, specials=Specials.KEEP, xattrs=("user.",), mtime_ns=True, limits=LIMITS)
    store = MemoryStore()
    changeset = prepare(source(), store=store, repository=FQRN, destination="/x", now=NOW, options=options)
    objects_of(changeset, CatalogCache(store))


ZIP_MEMBERS = (
    ZipMember(b"d/", mode=0o040750),
    ZipMember(b"d/f", b"content" * 50, mode=0o100640, extra=times(7) + owners(5, 6)),
    ZipMember(b"l", b"../x", mode=stat.S_IFLNK | 0o777),
    ZipMember(b"s", b"stored", method=0),
    ZipMember(b"wide", b"wide", wide=True),
    ZipMember(b"empty"),
)


def zips() -> list[bytes]:
    return [zip_archive(ZIP_MEMBERS, comment=b"c"), zip_archive(ZIP_MEMBERS, wide=True), zip_archive([])]


def _zip_fields(data: bytes, damage: Damage, others: Sequence[bytes]) -> bytes:
    """An archive in itself right, of members with odd fields."""
    members = list(ZIP_MEMBERS)
    fields = (
        "name", "mode", "method", "flags", "host", "extra", "date", "time", "size", "crc", "offset", "packed",
        "local_name",
    )  # fmt: skip
    words = (
        b"", b"..", b"/a", b"d", b"d/f", b"d/f/x", b"l/x", b"\xff", b"a\\b", b"\0", b"x" * 300,
        b"\x75\x78\x0b\0\1\4", b"\1\0\x18\0",
    )  # fmt: skip
    for kind, place, value in damage:
        at, field = place % len(members), fields[kind % len(fields)]
        if field in {"name", "extra", "packed", "local_name"}:
            odd: object = words[value % len(words)]
        else:
            odd = value % (1 << (32 if field in {"size", "crc", "offset"} else 8 if field == "host" else 16))
        members[at] = dataclasses.replace(members[at], **{field: odd})
    return zip_archive(members)


# -- documents


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


def generations() -> list[bytes]:
    past = (Past(3, "a" * 64, NOW - timedelta(hours=3)), Past(4, None, NOW))
    return [
        Generation(5, Phase.SWEEPING, NOW, "b" * 64, past).format(),
        Generation(5, Phase.IDLE, NOW, None, past).format(),
    ]


def read_generation(data: bytes) -> None:
    store = MemoryStore()
    store.objects[KEY] = data
    seen = look(store)
    assert seen.generation is not None
    assert Generation.parse(seen.generation.format()) == seen.generation
    for began in (0, 3, 5, 9):
        seen.lists_since(began)
    require_unmoved(store, seen.token, fqrn=FQRN)


def read_status(data: bytes) -> None:
    store = MemoryStore()
    store.objects[STATUS_KEY] = data
    assert look(store).completed >= 0


def condemned_lists() -> list[bytes]:
    kinds = [(one, letter) for one in Algorithm for letter in ("", "C", "P")] * 3
    names = [ObjectHash(hashlib.sha1(b"%d" % number).digest(), *kind) for number, kind in enumerate(kinds)]
    return [format_list(names), format_list([])]


def read_condemned(data: bytes) -> None:
    store = MemoryStore()
    name = hashlib.sha256(data).hexdigest()
    store.objects[key_of(name)] = data
    found = list(read_list(store, name))
    assert len(condemned_among(store, name, DigestSet(one.digest for one in found))) <= len(found)


def journals() -> list[bytes]:
    with tempfile.TemporaryDirectory() as place:
        with SentJournal(Path(place), about=["x"], generation=3, now=NOW) as journal:
            for number in range(40):
                journal.note(hash_bytes(b"%d" % number, suffix="P" if number % 5 == 0 else "").key)
        return [journal.path.read_bytes()]


def _sum_records(data: bytes) -> bytes:
    head, end, records = data.partition(b"\n")
    made = b""
    for start in range(0, len(records), RECORD_BYTES):
        record = records[start : start + RECORD_BYTES - 4]
        made += record + zlib.crc32(record).to_bytes(4, "big")
    return head + end + made


def read_journal(data: bytes) -> None:
    """Whatever was in it, what is noted after that counts."""
    with tempfile.TemporaryDirectory() as place:
        journal = SentJournal(Path(place), about=["x"], generation=3, now=NOW)
        journal.close()
        journal.path.write_bytes(data)
        with SentJournal(Path(place), about=["x"], generation=3, now=NOW) as again:
            DigestSet(again.known)
            again.note(hash_bytes(b"new").key)
        with SentJournal(Path(place), about=["x"], generation=3, now=NOW) as last:
            assert hash_bytes(b"new").digest in last.known


def indices() -> list[bytes]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "index.db"
        index = ContentIndex(path, algorithm=Algorithm.SHA1, compression=Compression.ZLIB)
        for number in range(50):
            index.remember(index.key(b"%d" % number), hashlib.sha1(b"%d" % number).digest())
        index.close()
        return [path.read_bytes()]


def read_index(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "index.db"
        path.write_bytes(data)
        index = ContentIndex(path, algorithm=Algorithm.SHA1, compression=Compression.ZLIB)
        wanted = {index.key(b"%d" % number): hashlib.sha1(b"%d" % number).digest() for number in range(60)}
        assert index.find([*wanted]).items() <= wanted.items()
        for number in range(60, 70):
            index.remember(index.key(b"%d" % number), hashlib.sha1(b"%d" % number).digest())
        index.close()


def build_indices() -> list[bytes]:
    one = {"project": "Gaudi", "platform": "x86_64", "url": "a/Gaudi.tar.zst", "size": 10, "sha256": "0" * 64}
    other = {**one, "project": "LHCb", "dependencies": ["Gaudi"], "priority": 5}
    fields = {"format": 1, "slot": "main", "build_id": "b42", "date": "2026-11-21", "complete": True}
    return [json.dumps({**fields, "artifacts": [one, other]}).encode()]


def read_build_index(data: bytes) -> None:
    index = BuildIndex.parse(data, slot="main", stores=["s3://builds"])
    assert BuildIndex.parse(index.format(), slot="main", stores=["s3://builds"]).artifacts == index.artifacts


# -- small things


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


def once(make: Callable[[], Sequence[bytes]]) -> Callable[[], Sequence[bytes]]:
    return functools.cache(make)


def _catalog(place: str) -> Reader:
    return Reader(lambda: [whole().databases[place]], functools.partial(read_catalog, place), (in_rows, in_bytes))


READERS: dict[str, Reader] = {
    "manifest": Reader(
        once(lambda: stored(manifests.KEY)), read_manifest,
        (in_bytes, then(in_bytes, _sum_again), then(in_bytes, _sign_manifest)),
    ),
    "whitelist": Reader(
        once(lambda: stored(whitelists.KEY)), read_whitelist,
        (in_bytes, then(in_bytes, _sum_again), then(in_bytes, _sign_whitelist)),
    ),
    "certificate": Reader(once(lambda: [signer().certificate_pem]), read_certificate),
    "public key": Reader(once(lambda: [public_key(), public_key() * 2]), parse_public_keys),
    "private key": Reader(once(private_keys), read_private_key),
    "gateway key": Reader(lambda: [b"plain_text key1 s3cr3t\n"], read_gateway_key),
    "root catalog": _catalog(""),
    "nested catalog": _catalog("/sw/app"),
    "history": Reader(once(histories), read_history, (in_rows, in_bytes)),
    "reflog": Reader(once(reflogs), read_reflog, (in_rows, in_bytes)),
    "tar": Reader(
        once(tars), functools.partial(read_archive, TarSource), (in_bytes, then(in_bytes, _sum_headers), _packed)
    ),
    "zip": Reader(once(zips), functools.partial(read_archive, ZipSource), (in_bytes, _zip_fields)),
    "changeset": Reader(once(changesets), read_changeset, (in_json, in_bytes)),
    "generation": Reader(once(generations), read_generation, (in_json, in_bytes)),
    "stock status": Reader(lambda: [b'{"last_gc": "Sat Nov 21 04:00:00 UTC 2026"}'], read_status, (in_json, in_bytes)),
    "condemned list": Reader(once(condemned_lists), read_condemned),
    "sent journal": Reader(once(journals), read_journal, (in_bytes, then(in_bytes, _sum_records), in_json), errors=()),
    "content index": Reader(once(indices), read_index, (in_rows, in_bytes), errors=()),
    "build index": Reader(once(build_indices), read_build_index, (in_json, in_bytes), errors=(NightlyError,)),
    "meta info": Reader(lambda: [skeleton()], read_meta_info, (in_json, in_bytes)),
    "dirtab": Reader(lambda: [b"# rules\n/software/*/*\n! */b?\n/a\\*\n"], read_dirtab),
    "owner map": Reader(lambda: [b"# map\n1 2\n70000 3\n* 0\n"], read_owner_map),
    "object name": Reader(lambda: [b"a" * 40 + b"-shake128C", b"0123456789abcdef0123456789abcdef01234567"], read_hash),
    "object": Reader(once(lambda: [compress(bytes(range(250)) * 20), compress(b"")]), read_object),
    "attributes": Reader(once(lambda: [pack_xattrs({b"user.a": b"b", b"user.c": bytes(200)}) or b""]), read_xattrs),
}  # fmt: skip
