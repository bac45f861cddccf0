"""Damage to valid examples, told as a list of small numbers, so that a test can draw it, shrink it and repeat it.

The same list means something else for each kind of file: bytes changed, cells of a database, values of a JSON document.
"""

from __future__ import annotations

import copy
import json
import random
import sqlite3
import struct
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

Damage = Sequence[tuple[int, int, int]]
"""Steps: which change, where, and with what; any numbers will do."""
Way = Callable[[bytes, Damage, Sequence[bytes]], bytes]
"""Damages an example; the last argument are other examples to splice from."""

MOST_STEPS = 6
LARGEST = 1 << 32
DAMAGE = st.lists(
    st.tuples(st.integers(0, 31), st.integers(0, LARGEST), st.integers(0, LARGEST)), min_size=1, max_size=MOST_STEPS
)

_NUMBERS = (
    0, 1, -1, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, -(1 << 63),
)  # fmt: skip
_WORDS = (
    b"", b"\0", b"/", b"..", b"../x", b".", b"a/b", b"\xff\xfe", b"\xed\xa0\x80", b"-1", b"9" * 20, b"NaN", b"1e999",
    b"\n", b"--\n", b"$(X)", b"0" * 40, b"f" * 40 + b"-shake128", b"*", b"x" * 300, b"9" * 5000, b"\\", b"[" * 3000,
    b'"',
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, 0, 1, -1, 2, 255, 0x7FFFFFFF, 1 << 32, 1 << 62, (1 << 63) - 1, -(1 << 63), 0.5, 1e300, float("inf"), "",
    "text", "a/b", "..", "\0", "-1", "NaN", "1e999", "/", "/a/", "9" * 5000, "0" * 40, b"", b"\0", b"\xff\xfe",
    bytes(19), bytes(20), bytes(21), b"\x01\xff", b"\x01\x01\x03\x03abc", 0o120777, 0o100644, 0o040755, 3, 33, 68, 132,
    1 << 14, "x" * 70_000,
)  # fmt: skip
_JSON: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1 << 31, 1 << 63, -(1 << 64), 10**400, 0.5, 1e308, float("nan"), float("inf"), "",
    "..", "\0", "\ud800", "/", "9" * 5000, "2026-01-01", "2026-01-01T00:00:00+00:00", "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59", "f" * 64, [], {}, [[]], {"": None}, [None] * 50, "x" * 5000,
)  # fmt: skip


def drawn(source: random.Random) -> Damage:
    """Damage by chance, for long runs."""
    steps = source.randint(1, MOST_STEPS)
    return [(source.randint(0, 31), source.randint(0, LARGEST), source.randint(0, LARGEST)) for _ in range(steps)]


def in_bytes(data: bytes, damage: Damage, others: Sequence[bytes]) -> bytes:
    """Bits and bytes changed, taken out, doubled, cut off, or taken from another example."""
    held = bytearray(data)
    for kind, place, value in damage:
        at = place % (len(held) + 1)
        length = value % 64 if value % 3 else value % (len(held) + 1)
        word = _WORDS[value % len(_WORDS)]
        match kind % 10:
            case 0 | 1 if held:
                held[place % len(held)] ^= 1 << value % 8
            case 2 if held:
                held[place % len(held)] = value % 256
            case 3:
                del held[at : at + length]
            case 4:
                del held[at:]
            case 5:
                held[at:at] = held[at : at + length]
            case 6:
                held[at : at + len(word)] = word
            case 7:
                held[at:at] = word
            case 8:
                number = _NUMBERS[value % len(_NUMBERS)]
                form = ("<q", ">q", "<i", ">i", "<H", ">H")[value // 16 % 6]
                width = struct.calcsize(form)
                packed = (number % (1 << 8 * width)).to_bytes(width, "little" if form[0] == "<" else "big")
                held[at : at + width] = packed
            case 9 if others:
                other = others[value % len(others)]
                start = value // 7 % (len(other) + 1)
                held[at : at + length] = other[start : start + length]
    return bytes(held)


def in_rows(data: bytes, damage: Damage, others: Sequence[bytes]) -> bytes:
    """Cells and rows of a database, then its schema: damage by anyone with a program that writes such files."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        db.deserialize(data)
        for kind, place, value in damage:
            try:
                _change_database(db, kind, place, value)
            except (sqlite3.Error, OverflowError, ZeroDivisionError):
                continue  # nothing is there any more that could be changed
        return db.serialize()
    finally:
        db.close()


def _change_database(db: sqlite3.Connection, kind: int, place: int, value: int) -> None:
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    table = tables[place % len(tables)]
    columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
    column = columns[value // 64 % len(columns)]
    (rows,) = db.execute(f'SELECT count(*) FROM "{table}"').fetchone()
    rowid = f'(SELECT rowid FROM "{table}" LIMIT 1 OFFSET {place // 64 % max(1, rows)})'
    odd = _VALUES[value % len(_VALUES)]
    match kind % 16:
        case 0 | 1 | 2 | 3 | 4 | 5:
            db.execute(f'UPDATE OR REPLACE "{table}" SET "{column}" = ? WHERE rowid = {rowid}', (odd,))
        case 6:
            text = "CAST(x'ffc0' AS TEXT)"
            db.execute(f'UPDATE OR REPLACE "{table}" SET "{column}" = {text} WHERE rowid = {rowid}')
        case 7:
            other = columns[value % len(columns)]
            db.execute(f'UPDATE OR REPLACE "{table}" SET "{column}" = "{other}" WHERE rowid = {rowid}')
        case 8:
            names = ", ".join(f'"{name}"' for name in columns)
            chosen = ", ".join("?1" if name == column else f'"{name}"' for name in columns)
            row = f'SELECT {chosen} FROM "{table}" WHERE rowid = {rowid}'
            db.execute(f'INSERT OR REPLACE INTO "{table}" ({names}) {row}', (odd,))
        case 9:
            db.execute(f'DELETE FROM "{table}" WHERE rowid = {rowid}')
        case 10:
            db.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?', (odd,))
        case 11 if {"parent_1", "md5path_1"} <= set(columns):
            # a directory that is its own parent, or that of the row before
            pair = f'SELECT md5path_1, md5path_2 FROM "{table}" LIMIT 1 OFFSET {value % max(1, rows)}'
            one, two = db.execute(pair).fetchone()
            db.execute(f'UPDATE "{table}" SET parent_1 = ?, parent_2 = ? WHERE rowid = {rowid}', (one, two))
            if value % 2:
                own = "md5path_1 = parent_1, md5path_2 = parent_2"
                db.execute(f'UPDATE OR REPLACE "{table}" SET {own} WHERE rowid = {rowid}')
        case 12:
            db.execute(f'DROP TABLE "{table}"')
        case 13:
            db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}_"')
        case 14:
            made = (
                "CREATE VIEW v AS SELECT 1",
                f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN SELECT 1; END',
                "CREATE TABLE more (a)",
                f'CREATE INDEX i ON "{table}" ("{column}")',
                "CREATE TABLE loop (a AS (b), b)",
            )
            db.execute(made[value % len(made)])
        case 15:
            db.execute("PRAGMA writable_schema = ON")
            changes = (
                "UPDATE sqlite_master SET rootpage = 1",
                f"UPDATE sqlite_master SET rootpage = {value % 1000} WHERE name = '{table}'",
                f"UPDATE sqlite_master SET sql = 'CREATE VIEW \"{table}\" AS SELECT 1 AS name' WHERE name = '{table}'",
                f"UPDATE sqlite_master SET type = 'view' WHERE name = '{table}'",
                "DELETE FROM sqlite_master WHERE type = 'index'",
                f"UPDATE sqlite_master SET sql = replace(sql, 'INTEGER', 'TEXT') WHERE name = '{table}'",
            )
            db.execute(changes[value % len(changes)])


def in_json(data: bytes, damage: Damage, others: Sequence[bytes]) -> bytes:
    """Values of a document exchanged, taken out and added; the document may be the first line of a file."""
    try:
        document, end, rest = json.loads(data), b"", b""
    except ValueError:
        head, end, rest = data.partition(b"\n")
        document = json.loads(head)
    for kind, place, value in damage:
        holders = list(_holders(document))
        if not holders:
            document = copy.deepcopy(_JSON[value % len(_JSON)])
            continue
        holder, key = holders[place % len(holders)]
        match kind % 8:
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[f"{key}x"] = holder.pop(key)
            case 2:
                other, name = holders[value % len(holders)]
                if isinstance(other[name], (str, int, float, bool, type(None))):
                    holder[key] = other[name]
            case 3 if value % 8 == 0:
                document = [document]
            case _:
                holder[key] = copy.deepcopy(_JSON[value % len(_JSON)])
    return json.dumps(document).encode() + end + rest


def _holders(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        one = pending.pop()
        pairs = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, value in pairs:
            found.append((one, key))
            pending.append(value)
    return found
