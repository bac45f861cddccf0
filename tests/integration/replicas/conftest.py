"""A repository, replicas of it behind HTTP servers, and a site that has them in its configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.commit.commit import NewTag, read_head
from include.cvmfs.commit.create import create_repository
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.file import FileStore
from tests.fakes.commits import commit_change
from tests.fakes.replica import Replica, replica
from tests.fakes.site import FQRN, MASTER, PUBLIC_KEY, SIGNER


@dataclass
class Copies:
    """`one` and `two` are the replicas s1 and s2."""

    folder: Path
    one: Replica
    two: Replica
    site: Site

    @property
    def stratum0(self) -> Path:
        return self.folder / "cvmfs" / FQRN

    def publish(self, tag: str) -> int:
        """A new revision at stratum 0."""
        store = FileStore(self.stratum0)
        head = read_head(store, FQRN).manifest
        commit_change(
            store, fqrn=FQRN, signer=SIGNER, lease_path="", old_root=head.root, new_root=head.root,
            now=head.timestamp + 1, tag=NewTag(tag, ""),
        )  # fmt: skip
        return read_head(store, FQRN).manifest.revision


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    store = FileStore(tmp_path / "cvmfs" / FQRN)
    create_repository(store, FQRN, master=MASTER, signer=SIGNER, now=datetime.now(UTC))
    (tmp_path / "repository.pub").write_bytes(PUBLIC_KEY)
    with ExitStack() as open_ones:
        one, two = (open_ones.enter_context(replica(tmp_path / name)) for name in ("one", "two"))
        for each in (one, two):
            each.take(tmp_path / "cvmfs" / FQRN)
        site = Site(load(site_file(tmp_path, s1=one.url, s2=two.url), environ={}), EnvSecrets({}))
        yield Copies(tmp_path, one, two, site)
        site.ledger.dispose()


def site_file(folder: Path, **urls: str) -> Path:
    file = folder / "site.yaml"
    repository = {
        "store": "cvmfs", "public_url": f"file://{folder}/cvmfs/{FQRN}", "public_key": f"{folder}/repository.pub",
        "gateway": "gateway", "replicas": [{"name": name, "url": url} for name, url in urls.items()],
    }  # fmt: skip
    settings = {
        "ledger": f"sqlite:///{folder}/ledger.db", "paths": {"var": f"{folder}/var"},
        "stores": {"cvmfs": {"url": f"file://{folder}/cvmfs"}}, "repositories": {FQRN: repository},
    }  # fmt: skip
    file.write_text(json.dumps(settings))
    return file
