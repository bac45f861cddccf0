"""Repositories in folders or behind other URLs, their configuration as another process makes it, and their gateways."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from include.cvmfs.commit.commit import read_head, store_all
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.keys import Signer, generate_repository_key, load_signer, save_signer
from include.gateway.service.commits.process import CommitterApart
from include.gateway.service.config import AcceptedKey, ReadConfig, RepositoryConfig, ServiceConfig
from include.gateway.service.http.server import serve
from include.storage.kinds import Credentials, StoreOptions
from include.storage.open import open_store
from include.storage.store import Store
from tests.fakes.minirepo import master_key

KEY, ADMIN = AcceptedKey("worker", "not-a-secret"), AcceptedKey("admin", "not-a-secret-either", admin=True)
_DIRECTORY = Dirent("", 0o040755, size=4096, linkcount=2, mtime=1_700_000_000)


def served(folder: str, stores: Mapping[str, str]) -> ServiceConfig:
    """The configuration for repositories by name, with the URL of each store; an S3 store's is that of its server."""
    keys = Path(folder) / "keys"
    repositories = {
        name: RepositoryConfig(partial(opened, url), partial(load_signer, keys, name), (KEY,))
        for name, url in stores.items()
    }
    return ServiceConfig(Path(folder) / "state.db", repositories, port=0, keys=(ADMIN,))


def served_with_keys_here(folder: str, stores: Mapping[str, str], process: int) -> ServiceConfig:
    """The same, but a signing key may only be read in one process."""

    def signer(fqrn: str) -> Signer:
        assert os.getpid() == process, f"the key of {fqrn} is read in another process"
        return load_signer(Path(folder) / "keys", fqrn)

    config = served(folder, stores)
    found = {name: replace(one, signer=partial(signer, name)) for name, one in config.repositories.items()}
    return replace(config, repositories=found)


def served_of_file(folder: str) -> ServiceConfig:
    """The same of the names and URLs in a file of the folder, which a test may change."""
    return served(folder, json.loads((Path(folder) / "stores.json").read_text()))


def one_repository(
    folder: Path,
    fqrn: str,
    store: Store,
    key: AcceptedKey,
    *,
    keys: Path | None = None,
    admins: tuple[AcceptedKey, ...] = (),
    **settings: Any,
) -> ServiceConfig:
    """The configuration for a store; signing keys are in ``keys`` of the folder, unless told otherwise."""
    repository = RepositoryConfig(lambda: store, partial(load_signer, keys or folder / "keys", fqrn), (key,))
    return ServiceConfig(folder / "gateway.db", {fqrn: repository}, port=0, keys=admins, **settings)


class SharedCommitter(CommitterApart):
    """The process that commits, for all gateways of this process, one after the other: a start takes half a second."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._file = Path(self._folder.name) / "read_config"
        self._write(_nothing)
        super().__init__(partial(_of_file, self._file), _nothing())
        atexit.register(super().close)

    def serve(self, read_config: ReadConfig) -> SharedCommitter:
        self._write(read_config)
        super().reconfigure(read_config())
        return self

    def reconfigure(self, config: ServiceConfig) -> None:
        raise AssertionError("a test that reads its configuration again has a process of its own")

    def close(self) -> None:
        self.serve(_nothing)

    def _write(self, read_config: ReadConfig) -> None:
        self._file.write_bytes(pickle.dumps(read_config))


shared_committer = cache(SharedCommitter)


def _of_file(file: Path) -> ServiceConfig:
    config: ServiceConfig = pickle.loads(file.read_bytes())()
    return config


def _nothing() -> ServiceConfig:
    return ServiceConfig(Path("state.db"), {})


@contextmanager
def running_gateway(read_config: ReadConfig) -> Iterator[str]:
    """The real service in a thread, on a free port; its URL."""
    urls: SimpleQueue[str] = SimpleQueue()
    stop = threading.Event()
    committer = shared_committer().serve(read_config)
    thread = threading.Thread(
        target=lambda: serve(read_config, committer=committer, ready=urls.put, stop=stop), daemon=True, name="gateway"
    )
    thread.start()
    try:
        yield urls.get(timeout=120)
    finally:
        stop.set()
        thread.join(20)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def opened(url: str) -> Store:
    if url.startswith("http"):
        options = StoreOptions(endpoint=url, retries=0)
        return open_store("s3://bucket/path", credentials=Credentials("k", "s"), options=options)
    return open_store(url)


def create(folder: Path, fqrn: str) -> str:
    """A new repository in a folder of its own, its keys where ``served`` expects them; the URL of its store."""
    now, url = datetime.now(UTC), (folder / fqrn).as_uri()
    signer = generate_repository_key(fqrn, now)
    save_signer(folder / "keys", fqrn, signer)
    create_repository(open_store(url), fqrn, master=master_key(), signer=signer, now=now)
    return url


def change(store: Store, fqrn: str, path: str, base: ObjectHash | None = None) -> tuple[ObjectHash, ObjectHash]:
    """A publisher's change on the current or another revision, its catalogs stored: (old root, new root)."""
    old = base or read_head(store, fqrn).manifest.root
    edit = Edit(CatalogCache(store), old)
    edit.make_nested(path, _DIRECTORY)
    new = edit.finish(1_700_000_000)
    store_all(store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
    return old, new.hash


def committers(process: int | None = None) -> list[psutil.Process]:
    """The committing processes that a process started, this one unless told otherwise."""
    return [
        child for child in psutil.Process(process).children()
        # a process that ended and was not waited for yet has no command line any more
        if child.status() != psutil.STATUS_ZOMBIE and "commits.process" in " ".join(child.cmdline())
    ]  # fmt: skip
