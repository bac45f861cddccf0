"""Where objects go: a URL with what is needed to open it, as a value that can be handed to another process."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from bench.publishing.repositories import FQRN
from include.storage.kinds import FILE, Fsync, kind_of
from include.storage.open import Credentials, StoreOptions, open_store
from include.storage.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """A store that is not open yet."""

    url: str
    endpoint: str | None = None
    access_key: str = ""
    secret_key: str = dataclasses.field(default="", repr=False)
    connections: int = 64
    fsync: Fsync = "switch"

    @property
    def is_file(self) -> bool:
        return kind_of(self.url) is FILE

    @property
    def credentials(self) -> Credentials | None:
        return Credentials(self.access_key, self.secret_key) if self.access_key else None

    def open(self) -> Store:
        options = StoreOptions(endpoint=self.endpoint, connections=self.connections, fsync=self.fsync)
        return open_store(self.url, credentials=self.credentials, options=options)

    def below(self, name: str) -> Place:
        return dataclasses.replace(self, url=f"{self.url.rstrip('/')}/{name}")

    def repository(self, name: str) -> Place:
        """Of a repository in a folder of its own, where a site looks for it: below its name."""
        return self.below(f"{name}/{FQRN}")

    def with_connections(self, count: int) -> Place:
        return dataclasses.replace(self, connections=count)

    def with_fsync(self, fsync: Fsync) -> Place:
        return dataclasses.replace(self, fsync=fsync)

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
