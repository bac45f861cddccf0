"""Rows of the catalog table: flags and columns are those of the stock tools, and come back as they went."""

from __future__ import annotations

import stat
from typing import Any

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.errors import FormatError
from include.cvmfs.format.dirent import COLUMNS, Dirent
from include.cvmfs.format.hashes import PARTIAL, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import Compression
from tests.fakes.refused import refused

DIRECTORY, REGULAR, LINK, FIFO = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o600
CONTENT = hash_bytes(b"x")
INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
SIZE = st.integers(min_value=0, max_value=2**63 - 1)
names = st.text(alphabet=st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=80)
permissions = st.integers(min_value=0, max_value=0o7777)
algorithms = st.sampled_from(Algorithm)


def content(algorithm: Algorithm) -> st.SearchStrategy[ObjectHash]:
    return st.builds(ObjectHash, st.binary(min_size=20, max_size=20), st.just(algorithm))


@st.composite
def entries(draw: st.DrawFn) -> Dirent:
    """Any entry that a catalog may hold."""
    kind = draw(st.sampled_from((stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK)))
    common: dict[str, Any] = {
        "name": draw(names),
        "mode": kind | draw(permissions),
        "mtime": draw(INT64),
        "uid": draw(st.integers(min_value=0, max_value=2**32 - 1)),
        "gid": draw(st.integers(min_value=0, max_value=2**32 - 1)),
        "linkcount": draw(st.integers(min_value=1, max_value=2**32 - 1)),
        "hidden": draw(st.booleans()),
        "xattr": draw(st.none() | st.binary(max_size=40)),
        "mtime_ns": draw(st.none() | st.integers(min_value=0, max_value=999_999_999)),
    }
    if kind == stat.S_IFDIR:
        role = draw(st.sampled_from(("plain", "mountpoint", "nested_root", "bind")))
        return Dirent(**common, size=draw(SIZE), **({} if role == "plain" else {role: True}))
    if kind == stat.S_IFLNK:
        target = draw(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80))
        return Dirent(**common, size=len(target.encode()), symlink=target)
    common["hardlink_group"] = draw(st.integers(min_value=0, max_value=2**31 - 1))
    if kind == stat.S_IFREG:
        algorithm, chunked = draw(algorithms), draw(st.booleans())
        digest = draw(st.none() | content(algorithm)) if chunked else draw(content(algorithm))
        flags = {name: draw(st.booleans()) for name in ("external", "direct_io")}
        how = draw(st.sampled_from(Compression))
        return Dirent(
            **common, size=draw(SIZE), hash=digest, chunked=chunked, algorithm=algorithm, compression=how, **flags
        )
    return Dirent(**common, size=draw(SIZE))


@pytest.mark.parametrize(
    ("entry", "flags"),
    [
        (Dirent("d", DIRECTORY), 1),
        (Dirent("d", DIRECTORY, mountpoint=True), 3),
        (Dirent("d", DIRECTORY, nested_root=True), 33),
        (Dirent("d", DIRECTORY, bind=True), 0x4001),
        (Dirent("f", REGULAR, hash=CONTENT), 4),
        (Dirent("f", REGULAR, chunked=True), 68),
        (Dirent("f", REGULAR, hash=CONTENT, compression=Compression.NONE), 2052),
        (Dirent("f", REGULAR, hash=hash_bytes(b"", Algorithm.RMD160), algorithm=Algorithm.RMD160), 0x104),
        (Dirent("f", REGULAR, hash=hash_bytes(b"", Algorithm.SHAKE128), algorithm=Algorithm.SHAKE128), 516),
        (Dirent("f", REGULAR, chunked=True, algorithm=Algorithm.SHAKE128), 0x244),
        (Dirent("f", REGULAR, hash=CONTENT, external=True), 0x84),
        (Dirent("f", REGULAR, hash=CONTENT, direct_io=True), 0x10004),
        (Dirent("f", REGULAR, hash=CONTENT, hidden=True), 0x8004),
        (Dirent("l", LINK, symlink="target"), 12),
        (Dirent("p", FIFO), 20),
        # only regular files have algorithm and compression
        (Dirent("d", DIRECTORY, algorithm=Algorithm.SHAKE128, compression=Compression.NONE), 1),
        (Dirent("l", LINK, symlink="x", algorithm=Algorithm.SHAKE128, compression=Compression.NONE), 12),
        (Dirent("p", FIFO, algorithm=Algorithm.SHAKE128, compression=Compression.NONE), 20),
    ],
)
def test_flags_are_those_of_the_stock_tools(entry: Dirent, flags: int) -> None:
    assert entry.flags == flags


def test_link_count_and_group_share_a_column() -> None:
    row = dict(zip(COLUMNS, Dirent("f", REGULAR, hash=CONTENT, linkcount=2, hardlink_group=5).to_row(), strict=True))
    assert row["hardlinks"] == 21474836482
    assert Dirent("f", REGULAR, hash=CONTENT).to_row()[0] == 1
    row = dict(zip(COLUMNS, Dirent("d", DIRECTORY).to_row(), strict=True))
    assert [name for name, value in row.items() if value is None] == ["hash", "mtimens", "xattr"]


@given(entries())
def test_an_entry_comes_back_from_its_row(entry: Dirent) -> None:
    assert Dirent.from_row(entry.to_row()) == entry


@given(st.binary(min_size=20, max_size=20), algorithms)
def test_a_chunk_has_the_algorithm_of_its_file_and_a_suffix_of_its_own(digest: bytes, algorithm: Algorithm) -> None:
    entry = Dirent("f", REGULAR, chunked=True, algorithm=algorithm)
    assert entry.chunk_hash(digest) == ObjectHash(digest, algorithm, PARTIAL)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("hash", b"short"), ("hash", 2**62), ("hash", "text"), ("flags", 4 | 7 << 8), ("flags", 4 | 7 << 11),
        ("mode", None),
    ],
)  # fmt: skip
def test_values_that_no_catalog_holds_are_refused(column: str, value: object) -> None:
    row = list(Dirent("f", REGULAR, hash=CONTENT).to_row())
    row[COLUMNS.index(column)] = value
    with refused(FormatError, what="catalog row"):
        Dirent.from_row(tuple(row))
