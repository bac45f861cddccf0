"""Archives for `readers.py`: examples, ways to damage them that reach behind their sums, and preparing them."""

from __future__ import annotations

import dataclasses
import gzip
import lzma
import stat
from collections.abc import Callable, Sequence

import zstandard

from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.layout import Layout
from include.cvmfs.ingest.changeset import objects_of
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.sources.source import SourceLimits, TreeSource
from include.cvmfs.sources.tarball import TarSource
from include.cvmfs.sources.zipmembers import ZipSource
from tests.fakes.archives import BLOCK, Member as TarMember, archive, file, folder, hardlink, symlink
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW
from tests.fakes.zips import ZipMember, owners, times, zip_archive
from tests.fuzz.mutations import Damage, in_bytes

LIMITS = SourceLimits(members=1000, bytes=1 << 24, ratio=100, ratio_from=1 << 20)


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


def sum_headers(data: bytes) -> bytes:
    held = bytearray(data)
    for start in range(0, len(held) - BLOCK + 1, BLOCK):
        header = held[start : start + BLOCK]
        if header[257:262] == b"ustar":
            header[148:156] = b" " * 8
            held[start + 148 : start + 156] = b"%06o\0 " % (sum(header) & 0o777777)
    return bytes(held)


def packed_again(data: bytes, damage: Damage, others: Sequence[bytes]) -> bytes:
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
    options = PrepareOptions(
        connections=1, specials=Specials.KEEP, xattrs=("user.",), layout=Layout.MTIME_NS, mtime_ns=True, limits=LIMITS
    )
    store = MemoryStore()
    changeset = prepare(source(), store=store, fqrn=FQRN, destination="/x", now=NOW, options=options)
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


def zip_fields(data: bytes, damage: Damage, others: Sequence[bytes]) -> bytes:
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
