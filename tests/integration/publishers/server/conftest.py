"""A node behind each kind of gateway, and trees that are packed for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import Base
from include.cvmfs.sources.artifact import open_artifact
from include.publishers.server import maintenance
from include.site.site import Site
from tests.fakes.builds import tree
from tests.fakes.node import PublisherNode
from tests.fakes.site import FQRN

Pack = Callable[..., Changeset]


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def node(
    tmp_path: Path, request: pytest.FixtureRequest, need: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[PublisherNode]:
    """A node behind a stock gateway, or behind what the test's parameter says."""
    need("sshd")
    monkeypatch.setattr(maintenance, "_PAUSE_S", 0.05)
    made = PublisherNode(tmp_path, getattr(request, "param", "stock"))
    made.start()
    yield made
    made.stop()


def packed(site: Site, destination: str, files: Mapping[str, bytes] | bytes) -> Changeset:
    """A changeset of these files, or of an archive, for a destination, derived from the current revision."""
    head = site.head(FQRN)
    packing = site.packing(FQRN, head)
    assert packing is not None
    data = files if isinstance(files, bytes) else tree(files)
    return packing.pack(
        open_artifact(iter([data]), "artifact"),
        destination=destination,
        now=now(),
        base=Base(head.manifest.root, head.manifest.revision),
    )
