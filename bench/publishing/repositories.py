"""Repositories to publish into: an empty one, and one with a past. Both are made once and copied for every round.

The past is made by the library's own parts, so that it is what years of use leave behind: rows in the reflog, tags,
and nested catalogs of builds that stand there.
"""

from __future__ import annotations

import random
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from include.cvmfs.commit.commit import REFLOG_KEY, NewTag, read_head, switch
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Ref, Reflog, RefType
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, SHA1, ObjectHash
from include.cvmfs.format.keys import (
    format_public_key,
    generate_master,
    generate_repository_key,
    load_signer,
    save_signer,
)
from include.storage.open import open_store
from include.storage.store import Store

FQRN = "bench.nightshift.test"
SILENT = "silent.nightshift.test"
PAST, EMPTY = "past", "empty"
TOP = "/nightlies"
_SLOTS = 30
_OLDEST_S = 5 * 86_400  # a whitelist is good for 30 days
_FORM = "3"  # changes when the templates do
_DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, mtime=1_780_000_000, linkcount=2)


@dataclass(frozen=True, slots=True)
class Past:
    """What years of use leave behind. ``share``: of what is measured; a test of the benchmark does with little."""

    share: float = 1.0

    @property
    def reflog_rows(self) -> int:
        return self.of(50_000)

    @property
    def tags(self) -> int:
        return self.of(200)

    @property
    def nested_catalogs(self) -> int:
        return max(self.of(3_000), 3 * _SLOTS + 1)

    def of(self, number: int) -> int:
        return round(self.share * number)

    def __str__(self) -> str:
        return f"{self.reflog_rows} reflog rows, {self.tags} tags, {self.nested_catalogs} nested catalogs"


class Templates:
    """Makes both repositories under ``folder``, or takes those that an earlier run left there."""

    def __init__(self, folder: Path, past: Past) -> None:
        self.folder = folder if past == Past() else folder.with_name(f"{folder.name}-{past.share}")
        self.past = past
        self.keys = self.folder / "keys"
        done = self.folder / "done"
        fresh = done.exists() and done.read_text() == _FORM and time.time() - done.stat().st_mtime < _OLDEST_S
        if not fresh:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.keys.mkdir(parents=True)
            self._make()
            done.write_text(_FORM)

    @property
    def public_key(self) -> Path:
        return self.keys / f"{FQRN}.pub"

    def copy(self, name: str, store: Store) -> None:
        """Put ``past`` or ``empty`` into a store, the manifest last."""
        source = open_store((self.folder / name).as_uri())
        keys = sorted((found.key for found in source.list()), key=lambda key: key.startswith(".cvmfs"))
        with ThreadPoolExecutor(16) as pool:
            for _ in pool.map(lambda key: store.put(key, source.get(key)), keys):
                pass

    def _make(self) -> None:
        master, signer = generate_master(), generate_repository_key(FQRN, datetime.now(UTC))
        save_signer(self.keys, FQRN, signer)
        self.public_key.write_bytes(format_public_key(master.public_key()))
        for name in (EMPTY, PAST):
            store = open_store((self.folder / name).as_uri())
            create_repository(store, FQRN, master=master, signer=signer, now=datetime.now(UTC))
        self._age(store)

    def _age(self, store: Store) -> None:
        signer = load_signer(self.keys, FQRN)
        now = int(time.time())
        reflog = Reflog.load(store.get(REFLOG_KEY))
        draw = random.Random(7)
        missing = self.past.reflog_rows - len(reflog) - _SLOTS - 2
        kinds = (RefType.CATALOG, RefType.CATALOG, RefType.HISTORY)
        hashes = (ObjectHash(draw.randbytes(20), SHA1, kinds[n % 3].suffix) for n in range(missing))
        reflog.add_all([Ref(name, kinds[n % 3], now - missing + n) for n, name in enumerate(hashes)])
        store.put(REFLOG_KEY, reflog.to_bytes())
        tags = [NewTag(f"build-{number:04d}", "a build of the past") for number in range(self.past.tags - 2)]
        builds = (self.past.nested_catalogs - 2 * _SLOTS - 1) // _SLOTS
        for slot in range(_SLOTS):
            head = read_head(store, FQRN)
            edit = Edit(CatalogCache(store), head.manifest.root)
            if not slot:
                edit.make_nested(TOP, _DIRECTORY)
            above = f"{TOP}/slot{slot:02d}"
            edit.make_nested(above, _DIRECTORY)
            edit.make_nested(f"{above}/releases", _DIRECTORY)
            for build in range(builds):
                edit.make_nested(f"{above}/build{build:03d}", _DIRECTORY)
            switch(store, head, edit.finish(now), signer=signer, now=now, tags=tags if not slot else ())


def summary(store: Store) -> str:
    """What a repository's past amounts to, read from the repository itself."""
    head = read_head(store, FQRN)
    catalogs = CatalogCache(store)
    catalog = catalogs.open(head.manifest.root.with_suffix(CATALOG))
    nested = catalog.statistics.total.nested
    reflog = Reflog.load(store.get(REFLOG_KEY))
    return f"revision {head.manifest.revision}, {nested} nested catalogs, {len(reflog)} reflog rows"
