"""Small builds: tarballs made in memory and the index that lists them, right or wrong as a test wants them."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from include.nightlies.rules.publication import Phase, Publication, State
from include.storage.store import Store
from tests.fakes.archives import Member, archive, file, folder


def tree(files: Mapping[str, bytes]) -> bytes:
    """A tarball (.gz) with these files and the folders above them."""
    folders = sorted({"/".join(name.split("/")[:depth]) for name in files for depth in range(1, name.count("/") + 1)})
    members = [folder(name) for name in folders] + [file(name, data) for name, data in files.items()]
    return packed(members)


def packed(members: Iterable[Member]) -> bytes:
    """Any members as a .tar.gz, the same bytes every time."""
    return gzip.compress(archive(members), mtime=0)


@dataclass
class Build:
    """A build of a slot. `change` overwrites fields of an artifact's index entry; `index` the whole document's."""

    date: str
    slot: str = "main"
    build_id: str = ""
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)
    index: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.build_id = self.build_id or f"b{self.date.replace('-', '')}"

    def add(self, project: str, platform: str, data: bytes, **change: Any) -> Build:
        """An artifact whose entry says what its tarball is, but for `change`."""
        url = f"{self.build_id}/{project}-{platform}.tar.gz"
        self.data[url] = data
        self.artifacts[f"{project}/{platform}"] = {
            "project": project,
            "platform": platform,
            "url": f"{self.slot}/{self.date}/{url}",
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "dependencies": [],
            "priority": 0,
            **change,
        }
        return self

    def lose(self, project: str, platform: str) -> Build:
        """The tarball is not uploaded."""
        del self.data[f"{self.build_id}/{project}-{platform}.tar.gz"]
        return self

    def destination(self, project: str, platform: str) -> str:
        """Where the slot's default rule puts it."""
        return f"/nightlies/{self.slot}/{self.build_id}/{project}/{platform}"

    def document(self) -> bytes:
        return json.dumps(
            {
                "format": 1,
                "slot": self.slot,
                "build_id": self.build_id,
                "date": self.date,
                "complete": True,
                "artifacts": list(self.artifacts.values()),
                **self.index,
            }
        ).encode()

    def store_in(self, store: Store) -> None:
        for url, data in self.data.items():
            store.put(f"{self.slot}/{self.date}/{url}", data)
        store.put(f"{self.slot}/{self.date}/index.json", self.document())


def publication(state: State, **fields: Any) -> Publication:
    """A publication of the artifact `A/x` in this state, as the ledger has it."""
    values: dict[str, Any] = dict.fromkeys(Publication.__dataclass_fields__)
    own = {"state": state, "phase": Phase.PUBLISH, "reason": "why", "destination": "/d", "seconds": {}, "id": 1}
    return Publication(**{**values, **own, "project": "A", "platform": "x", **fields})
