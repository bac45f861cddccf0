"""A repository with two replicas, served over HTTP from folders, and a site that has them in its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from include.cvmfs.commit.commit import NewTag
from tests.fakes.commits import commit_change
from tests.fakes.replica import Replica, replica
from tests.site import FQRN, SIGNER, Deployment


@dataclass
class Copies(Deployment):
    """`one` and `two` are the replicas s1 and s2."""

    one: Replica = field(init=False)
    two: Replica = field(init=False)

    @property
    def stratum0(self) -> Path:
        return self.folder / "cvmfs" / FQRN

    def publish(self, tag: str) -> int:
        """A new revision at stratum 0."""
        head = self.head().manifest
        commit_change(
            self.store, fqrn=FQRN, signer=SIGNER, lease_path="", old_root=head.root, new_root=head.root,
            now=head.timestamp + 1, tag=NewTag(tag, ""),
        )  # fmt: skip
        return self.head().manifest.revision


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    copies = Copies(tmp_path).with_repository()
    with ExitStack() as replicas:
        copies.one, copies.two = (replicas.enter_context(replica(tmp_path / name)) for name in ("one", "two"))
        for each in (copies.one, copies.two):
            each.take(copies.stratum0)
        urls = {"s1": copies.one.url, "s2": copies.two.url}
        yield copies.with_options(replicas=[{"name": name, "url": url} for name, url in urls.items()])
        copies.close()
