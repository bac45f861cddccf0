"""Repositories in folders or behind other URLs, and their configuration as another process makes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil

from include.cvmfs.commit.commit import read_head, store_all
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.keys import Signer, generate_repository_key, load_signer, save_signer
from include.gateway.service.config import AcceptedKey, Recipe, RepositoryConfig, ServiceConfig
from include.storage.open import open_store
from include.storage.options import Credentials, StoreOptions
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
    recipe = Recipe(__name__, served.__name__, (folder, dict(stores)))
    return ServiceConfig(Path(folder) / "state.db", repositories, port=0, keys=(ADMIN,), recipe=recipe)


def served_with_keys_here(folder: str, stores: Mapping[str, str], process: int) -> ServiceConfig:
    """The same, but a signing key may only be read in one process."""

    def signer(fqrn: str) -> Signer:
        assert os.getpid() == process, f"the key of {fqrn} is read in another process"
        return load_signer(Path(folder) / "keys", fqrn)

    config = served(folder, stores)
    found = {name: replace(one, signer=partial(signer, name)) for name, one in config.repositories.items()}
    recipe = Recipe(__name__, served_with_keys_here.__name__, (folder, dict(stores), process))
    return replace(config, repositories=found, recipe=recipe)


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
        if child.status() != psutil.STATUS_ZOMBIE and "commits.worker" in " ".join(child.cmdline())
    ]  # fmt: skip
