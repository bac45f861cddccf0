"""A look at one server as a client has it: manifest, trust, and one object through its redirections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import requests

from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.objects import Hasher
from include.cvmfs.revision.repository import Repository
from include.errors import NightshiftError
from include.storage.open import StoreOptions, open_store

TIMEOUT_S = 30
REDIRECTIONS = 4
"""So many are followed, as clients do."""
OBJECT_BYTES = 1 << 30
OPTIONS = StoreOptions(timeout_s=TIMEOUT_S, retries=0)


@dataclass(frozen=True, slots=True)
class ServerLook:
    """Answer of a server: its revision, and where the object came from; `fault`: what is wrong with it."""

    url: str
    revision: int = 0
    text: str = ""
    fault: str = ""


def see_server(url: str, fqrn: str, public_keys: Sequence[bytes], now: datetime | None = None) -> ServerLook:
    """Read manifest and one object of a server; what is wrong is returned as its fault."""
    try:
        repository = Repository.open(open_store(url, options=OPTIONS), fqrn=fqrn, public_keys=public_keys, now=now)
        name = _some_object(repository)
    except NightshiftError as error:
        return ServerLook(url, fault=str(error))
    try:
        with requests.Session() as session:
            session.max_redirects = REDIRECTIONS
            session.trust_env = False
            answer = session.get(f"{url}/{name.key}", timeout=TIMEOUT_S, stream=True)
            answer.raise_for_status()
            digest, size = Hasher(name.algorithm), 0
            for block in answer.iter_content(1 << 20):
                digest.update(block)
                size += len(block)
                if size > OBJECT_BYTES:
                    break
    except requests.RequestException as error:
        return ServerLook(url, repository.manifest.revision, fault=f"{name.key} cannot be fetched: {error}")
    if digest.finish() != name.digest:
        return ServerLook(url, repository.manifest.revision, fault=f"{name.key} has other bytes than its hash says")
    steps = [step.headers.get("Location", "") for step in answer.history]
    way = f"redirected to {steps[-1].partition('/cvmfs/')[0]}" if steps else "not redirected"
    return ServerLook(url, repository.manifest.revision, f"{name.key} of {size} bytes is right, {way}")


def _some_object(repository: Repository) -> ObjectHash:
    """A data object, if the repository has one; else its root catalog."""
    first = next((name for name, _ in repository.revision.objects_below() if name.suffix != "C"), None)
    return first or repository.manifest.root
