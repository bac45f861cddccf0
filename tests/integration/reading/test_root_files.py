"""A genuine ROOT file is read by uproot as it was written, while the connection is cut every 4 MB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import awkward
import numpy as np
import pytest
import uproot

from include.reading.source import DistantFile, Patience, ReplicaAddress
from include.reading.strategies import (
    ApplicationReads,
    LazyDownload,
    ReadableFile,
    ReadingStrategy,
    StorageReads,
    WholeFile,
)
from tests.fakes.cuttinglink import CuttingLink
from tests.fakes.distant import DistantServer
from tests.servers.xrootd import XrootdServer

MB = 1 << 20
EVENTS, BASKET = 640_000, 40_000
PATIENCE = Patience(retries=3, wait_s=0.01, longest_s=0.1, timeout_s=30)
STRATEGIES: dict[str, Callable[[DistantFile], ReadingStrategy]] = {
    "storage": StorageReads, "application": ApplicationReads, "whole": WholeFile,
    "lazy": lambda file: LazyDownload(file, segment=6 * MB, streams=2),
}  # fmt: skip


@pytest.fixture(scope="module")
def events() -> dict[str, awkward.Array]:
    """Branches of numbers, and one of lists."""
    draw = np.random.default_rng(1)
    columns = {name: awkward.Array(draw.random(EVENTS)) for name in ("energy", "time", "phase")}
    hits = draw.integers(0, 5, EVENTS)
    return columns | {"hits": awkward.unflatten(draw.random(hits.sum(), np.float32), hits)}


@pytest.fixture(scope="module")
def content(events: dict[str, awkward.Array], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path: Path = tmp_path_factory.mktemp("root") / "events.root"
    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        tree = file.mktree("events", {name: array.type.content for name, array in events.items()})
        for begin in range(0, EVENTS, BASKET):
            tree.extend({name: array[begin : begin + BASKET] for name, array in events.items()})
    return path.read_bytes()


@pytest.fixture(scope="module", params=["http", pytest.param("xroot", marks=pytest.mark.server("xrootd"))])
def url(request: pytest.FixtureRequest, content: bytes) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "http":
            yield stack.enter_context(DistantServer(content).serving()).url
            return
        need: Callable[[str], str] = request.getfixturevalue("need")
        server = stack.enter_context(XrootdServer(need("xrootd"), "127.0.0.1"))
        server.put("events.root", content)
        yield f"{server.root_url}/store/events.root"


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_uproot_reads_what_was_written_while_connections_are_cut(
    strategy: str, url: str, content: bytes, events: dict[str, awkward.Array]
) -> None:
    assert len(content) > 19 * MB
    with CuttingLink(url, 4 * MB) as link:
        file = DistantFile("events.root", [ReplicaAddress("pisa", link.url, PATIENCE)])
        with ReadableFile(STRATEGIES[strategy](file)) as reader, uproot.open(reader) as root:
            arrays = root["events"].arrays()
        for name, written in events.items():
            assert awkward.array_equal(arrays[name], written), name
    assert link.cuts >= 3
    assert file.counts.failures["pisa cut"] >= 3
    assert link.sent <= 1.1 * len(content)
