"""Damage inside a catalog: by name, the statement that does it and what a check must find."""

from __future__ import annotations

from include.cvmfs.check.findings import Subject
from include.cvmfs.format.hashes import path_hash

HERE = "md5path_1 = ? AND md5path_2 = ?"
COPY = "1, hash, size, mode, mtime, flags, name, '', 0, 0, NULL"
STRAY = COPY.replace("name", "'stray'")


def set_row(path: str, assignment: str, *values: object) -> tuple[str, ...]:
    return (f"UPDATE catalog SET {assignment} WHERE {HERE}", *values, *path_hash(path))  # type: ignore[return-value]


# One statement on one catalog: mount path, statement with values, and what must be found at least.
CATALOG_DAMAGE: dict[str, tuple[str, tuple[object, ...], set[tuple[Subject, str]]]] = {
    "root prefix of another place": (
        "/sw/app",
        ("UPDATE properties SET value = '/sw/other' WHERE key = 'root_prefix'",),
        {(Subject.CATALOG, "/sw/app")},
    ),
    "schema of another time": (
        "/sw/app",
        ("UPDATE properties SET value = '2.4' WHERE key = 'schema'",),
        {(Subject.CATALOG, "/sw/app")},
    ),
    "newer schema": (
        "/sw/app",
        ("UPDATE properties SET value = '2.6' WHERE key = 'schema'",),
        {(Subject.CATALOG, "/sw/app")},
    ),
    "table gone": ("/sw/app", ("DROP TABLE chunks",), {(Subject.CATALOG, "/sw/app")}),
    "no root entry": (
        "/sw/app/lib/deep",
        (f"DELETE FROM catalog WHERE {HERE}", *path_hash("/sw/app/lib/deep")),
        {(Subject.CATALOG, "/sw/app/lib/deep")},
    ),
    "root entry is a file": (
        "/sw/app/lib/deep",
        set_row("/sw/app/lib/deep", "mode = ?, flags = 4", 0o100755),
        {(Subject.CATALOG, "/sw/app/lib/deep")},
    ),
    "root entry without the flag": ("/sw/app", set_row("/sw/app", "flags = 1"), {(Subject.TRANSITION, "/sw/app")}),
    "repository root with the flag": ("", set_row("", "flags = 33"), {(Subject.TRANSITION, "")}),
    "root entry below another parent": (
        "/sw/app",
        set_row("/sw/app", "parent_1 = 0, parent_2 = 0"),
        {(Subject.ENTRY, "/sw/app")},
    ),
    "mountpoint of another mode": ("", set_row("/sw/app", "mode = ?", 0o40700), {(Subject.TRANSITION, "/sw/app")}),
    "mountpoint of another mtime": ("", set_row("/sw/app", "mtime = 1"), {(Subject.TRANSITION, "/sw/app")}),
    "mountpoint of another size": ("", set_row("/sw/app", "size = 1"), {(Subject.TRANSITION, "/sw/app")}),
    "mountpoint of another link count": ("", set_row("/sw/app", "hardlinks = 7"), {(Subject.TRANSITION, "/sw/app")}),
    "mountpoint without attributes": (
        "",
        set_row("/sw/app", "xattr = NULL"),
        {(Subject.TRANSITION, "/sw/app"), (Subject.COUNTERS, "")},
    ),
    "entries below a mountpoint": (
        "",
        (
            f"INSERT INTO catalog SELECT 1, 2, ?, ?, {STRAY} FROM catalog WHERE {HERE}",
            *path_hash("/sw/app"),
            *path_hash("/readme"),
        ),
        {(Subject.TRANSITION, "/sw/app")},
    ),
    "both nested and bind": (
        "",
        set_row("/sw/app", "flags = flags | ?", 0x4000),
        {(Subject.TRANSITION, "/sw/app"), (Subject.NESTED, "/sw/app")},
    ),
    "empty name": ("", set_row("/readme", "name = ''"), {(Subject.ENTRY, "/")}),
    "name with a slash": ("", set_row("/readme", "name = 'a/b'"), {(Subject.ENTRY, "/a/b")}),
    "name NULL": ("", set_row("/readme", "name = NULL"), {(Subject.ENTRY, "/None")}),
    "name of another path": ("", set_row("/readme", "name = 'other'"), {(Subject.ENTRY, "/other")}),
    "symlink NULL": ("", set_row("/readme", "symlink = NULL"), {(Subject.ENTRY, "/readme")}),
    "hash of 19 bytes": ("", set_row("/readme", "hash = ?", bytes(19)), {(Subject.ENTRY, "/readme")}),
    "unknown compression": ("", set_row("/readme", "flags = ?", 4 | 5 << 11), {(Subject.ENTRY, "/readme")}),
    "flags of another type": ("", set_row("/readme", "flags = 1"), {(Subject.ENTRY, "/readme")}),
    "size beyond all numbers": ("", set_row("/readme", "size = 1e300"), {(Subject.ENTRY, "/readme")}),
    "negative size": ("", set_row("/readme", "size = -6"), {(Subject.ENTRY, "/readme")}),
    "link count 0": ("", set_row("/readme", "hardlinks = 0"), {(Subject.ENTRY, "/readme")}),
    "file without hash": ("", set_row("/readme", "hash = NULL"), {(Subject.ENTRY, "/readme")}),
    "symlink with a hash": ("", set_row("/sw/link", "hash = ?", bytes(20)), {(Subject.ENTRY, "/sw/link")}),
    "directory with a hash": ("", set_row("/empty", "hash = ?", bytes(20)), {(Subject.ENTRY, "/empty")}),
    "fifo with a hash": ("", set_row("/sw/pipe", "hash = ?", bytes(20)), {(Subject.ENTRY, "/sw/pipe")}),
    "fifo with a target": ("", set_row("/sw/pipe", "symlink = 'x'"), {(Subject.ENTRY, "/sw/pipe")}),
    "external directory": ("", set_row("/empty", "flags = flags | 128"), {(Subject.ENTRY, "/empty")}),
    "direct-I/O symlink": ("", set_row("/sw/link", "flags = flags | 65536"), {(Subject.ENTRY, "/sw/link")}),
    "directory in a hard-link group": (
        "",
        set_row("/empty", "hardlinks = ?", 3 << 32 | 2),
        {(Subject.ENTRY, "/empty")},
    ),
    "directory's link count": ("", set_row("/empty", "hardlinks = 3"), {(Subject.LINKCOUNT, "/empty")}),
    "root's link count": ("", set_row("", "hardlinks = 3"), {(Subject.LINKCOUNT, "")}),
    "two links without a group": ("", set_row("/readme", "hardlinks = 2"), {(Subject.HARDLINK, "/readme")}),
    "hard links that differ": ("/sw/app", set_row("/sw/app/two", "mtime = 1"), {(Subject.HARDLINK, "/sw/app/two")}),
    "hard-link group with a member too few": (
        "/sw/app",
        ("UPDATE catalog SET hardlinks = ? WHERE hardlinks >> 32 = 1", 1 << 32 | 3),
        {(Subject.HARDLINK, "/sw/app/one")},
    ),
    "chunked without chunks": (
        "/sw/app",
        ("DELETE FROM chunks",),
        {(Subject.CHUNKS, "/sw/app/big"), (Subject.COUNTERS, "/sw/app")},
    ),
    "a gap between chunks": (
        "/sw/app",
        ("UPDATE chunks SET offset = 1001 WHERE offset = 1000",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "chunks that overlap": (
        "/sw/app",
        ("UPDATE chunks SET offset = 999 WHERE offset = 1000",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "chunks that begin late": (
        "/sw/app",
        ("UPDATE chunks SET offset = 1 WHERE offset = 0",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "a chunk too few": (
        "/sw/app",
        ("DELETE FROM chunks WHERE offset = 1500",),
        {(Subject.CHUNKS, "/sw/app/big"), (Subject.COUNTERS, "/sw/app")},
    ),
    "chunks shorter than the file": (
        "/sw/app",
        ("UPDATE chunks SET size = 699 WHERE offset = 1500",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "chunk with a short hash": (
        "/sw/app",
        ("UPDATE chunks SET hash = x'00' WHERE offset = 0",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "chunk rows of nobody": ("", ("INSERT INTO chunks VALUES (1, 2, 0, 5, zeroblob(20))",), {(Subject.ROWS, "")}),
    "dangling row": ("", set_row("/readme", "parent_1 = 5"), {(Subject.ROWS, ""), (Subject.COUNTERS, "")}),
    "abandoned marker": (
        "/sw/app",
        (
            f"INSERT INTO catalog SELECT ?, ?, ?, ?, {COPY} FROM catalog WHERE {HERE}",
            *path_hash("/sw/app/lib/.cvmfscatalog"),
            *path_hash("/sw/app/lib"),
            *path_hash("/sw/app/.cvmfscatalog"),
        ),
        {(Subject.MARKER, "/sw/app/lib/.cvmfscatalog"), (Subject.COUNTERS, "/sw/app")},
    ),
    "no marker": (
        "/sw/app",
        (f"DELETE FROM catalog WHERE {HERE}", *path_hash("/sw/app/.cvmfscatalog")),
        {(Subject.MARKER, "/sw/app"), (Subject.COUNTERS, "/sw/app")},
    ),
    "marker is a symlink": (
        "/sw/app",
        set_row("/sw/app/.cvmfscatalog", "mode = ?, flags = 12, hash = NULL, symlink = 'x'", 0o120777),
        {(Subject.MARKER, "/sw/app/.cvmfscatalog")},
    ),
    "mountpoint that is not registered": (
        "/sw/app",
        ("DELETE FROM nested_catalogs",),
        {(Subject.NESTED, "/sw/app/lib/deep"), (Subject.COUNTERS, "/sw/app")},
    ),
    "registered without a mountpoint": (
        "/sw/app",
        set_row("/sw/app/lib/deep", "flags = 1"),
        {(Subject.NESTED, "/sw/app/lib/deep")},
    ),
    "registered in a catalog beside it": (
        "/sw/app/lib/deep",
        ("INSERT INTO nested_catalogs VALUES ('/empty', ?, 0)", "ab" * 20),
        {(Subject.NESTED, "/empty")},
    ),
    "nested hash unreadable": (
        "/sw/app/lib/deep",
        ("INSERT INTO nested_catalogs VALUES ('/sw/app/lib/deep/x', 'no hash', 0)",),
        {(Subject.NESTED, "/sw/app/lib/deep/x")},
    ),
    "bind mountpoint without a directory": (
        "",
        ("INSERT INTO bind_mountpoints VALUES ('/bound', ?, 0)", "ab" * 20),
        {(Subject.NESTED, "/bound")},
    ),
    "bind mountpoint that is not registered": (
        "",
        set_row("/empty", "flags = flags | ?", 0x4000),
        {(Subject.NESTED, "/empty")},
    ),
    "both nested and bind registered": (
        "",
        ("INSERT INTO bind_mountpoints VALUES ('/sw/app', ?, 0)", "ab" * 20),
        {(Subject.NESTED, "/sw/app")},
    ),
    "counter missing": (
        "/sw/app",
        ("DELETE FROM statistics WHERE counter = 'self_xattr'",),
        {(Subject.COUNTERS, "/sw/app")},
    ),
    "statistics are a view": ("", ("CREATE VIEW v AS SELECT 1",), {(Subject.CATALOG, "")}),
}
