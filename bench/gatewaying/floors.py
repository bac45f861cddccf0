"""What the machine does without a gateway: durable transactions for lease calls, bare writes for revisions."""

from __future__ import annotations

import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.publishing.places import Place

_CATALOG_BYTES, _MANIFEST_BYTES = 6_000, 700


def transactions_per_s(folder: Path, seconds: float) -> float:
    """SQLite transactions of one row, each on disk before the next begins (write-ahead log, synchronous=FULL)."""
    file = folder / "floor.db"
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE lease (epoch INTEGER PRIMARY KEY, digest BLOB, path TEXT)")
    done, started = 0, time.monotonic()
    while time.monotonic() - started < seconds:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO lease (digest, path) VALUES (?, ?)", (os.urandom(32), "/some/path"))
        connection.execute("COMMIT")
        done += 1
    rate = done / (time.monotonic() - started)
    connection.close()
    for path in folder.glob("floor.db*"):
        path.unlink()
    return rate


def switches_per_s(place: Place, reflog_bytes: int, catalogs: int, seconds: float) -> float:
    """Bare revisions: so many small objects put at once, a reflog and a manifest replaced on their versions."""
    store = place.open()
    reflog = store.replace("reflog", os.urandom(reflog_bytes), expected=None)
    manifest = store.replace("manifest", os.urandom(_MANIFEST_BYTES), expected=None)
    data = bytearray(os.urandom(reflog_bytes))
    done, started = 0, time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        while time.monotonic() - started < seconds:
            data[:8] = done.to_bytes(8)
            keys = [f"data/{number:02x}/{done:x}-{number}" for number in range(catalogs)]
            for put in [pool.submit(store.put, key, os.urandom(_CATALOG_BYTES)) for key in keys]:
                put.result()
            reflog = store.replace("reflog", bytes(data), expected=reflog)
            manifest = store.replace("manifest", os.urandom(_MANIFEST_BYTES), expected=manifest)
            done += 1
    return done / (time.monotonic() - started)
