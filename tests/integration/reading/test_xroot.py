"""A file of a genuine XRootD server is read by its own protocol, and its faults are those of an HTTP server."""

from __future__ import annotations

import os
import random
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from include.reading.errors import FILE_CHANGED, NO_REPLICA, OUTSIDE, FailureKind, ReplicaFailure
from include.reading.ranges import RangeBuffers
from include.reading.replica import ReadingCounts
from include.reading.source import DistantFile, Patience, ReplicaAddress
from include.reading.strategies import ApplicationReads, LazyDownload, ReadingStrategy, StorageReads, WholeFile
from include.reading.xroot import XrootReplica
from tests.fakes.distant import DistantFault, DistantServer
from tests.fakes.refused import refused
from tests.servers.xrootd import XrootdServer

pytestmark = pytest.mark.server("xrootd")
SIZE = 12_000_000
CONTENT = random.Random(1).randbytes(SIZE)
CLUSTERS = [[(cluster * 2_000_000 + place * 60_000, 20_000) for place in range(6)] for cluster in range(6)]
STRATEGIES: dict[str, Callable[[DistantFile], ReadingStrategy]] = {
    "storage": StorageReads, "application": ApplicationReads, "whole": WholeFile,
    "lazy": lambda file: LazyDownload(file, segment=5_000_000, streams=3),
}  # fmt: skip


@pytest.fixture
def server(need: Callable[[str], str]) -> Iterator[XrootdServer]:
    with XrootdServer(need("xrootd"), "127.0.0.1") as running:
        running.put("flux.root", CONTENT)
        yield running


@pytest.fixture
def path(server: XrootdServer) -> Path:
    """The file on the server's disk."""
    return server.data / "store" / "flux.root"


def address(
    server: XrootdServer, name: str = "flux.root", *, retries: int = 6, timeout_s: float = 30
) -> ReplicaAddress:
    patience = Patience(retries=retries, wait_s=0.02, longest_s=0.2, timeout_s=timeout_s)
    return ReplicaAddress("pisa", f"{server.root_url}/store/{name}", patience)


def replica_of(server: XrootdServer, name: str = "flux.root") -> XrootReplica:
    return XrootReplica(address(server, name).url, "pisa", timeout_s=30, counts=ReadingCounts())


def restart(server: XrootdServer) -> None:
    server.process.stop()
    server.process.start()


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_every_strategy_reads_right_while_the_server_restarts(server: XrootdServer, strategy: str) -> None:
    with DistantFile("flux.root", [address(server)]) as file, STRATEGIES[strategy](file) as reads:
        assert (file.size, file._digest) == (SIZE, f"{zlib.adler32(CONTENT):08x}")
        for number, cluster in enumerate(CLUSTERS):
            if number == 2:
                restart(server)
            assert reads.read_many(cluster) == [CONTENT[offset : offset + length] for offset, length in cluster]
        assert b"".join(file.stream(1_000)) == CONTENT[1_000:]
        with refused(OUTSIDE):
            file.read_many([(SIZE - 5, 10)])
    assert file.counts.received <= 2.1 * SIZE
    assert set(file.counts.failures) == {"pisa cut"}


@pytest.mark.parametrize("ranges", [[(0, 10)], [(0, 10), (1_000_000, 10)]])
def test_a_request_for_a_file_that_another_request_has_ended_is_made_again(
    server: XrootdServer, ranges: list[tuple[int, int]]
) -> None:
    def ended(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(ok=False, code=3, errno=0)

    with DistantFile("flux.root", [address(server)]) as file:
        file._replica._file = SimpleNamespace(stat=ended, read=ended, vector_read=ended, close=ended)
        assert file.read_many(ranges) == [CONTENT[offset : offset + length] for offset, length in ranges]
    assert file.counts.failures == {"pisa cut": 1}


def test_a_vector_read_stays_within_the_bounds_of_servers(server: XrootdServer) -> None:
    replica = replica_of(server)
    replica.open()
    for ranges in ([(place * 5_000, 100) for place in range(1_500)], [(0, 5_000_000), (6_000_000, 5_000_000)]):
        buffers = RangeBuffers(ranges)
        while missing := buffers.missing():
            before = replica._counts.requests
            replica.fill(buffers, missing)
            assert replica._counts.requests == before + 1 or len(missing) == 1
        assert [buffers.take(asked) for asked in ranges] == [
            CONTENT[offset : offset + length] for offset, length in ranges
        ]
    replica.close()


def test_a_missing_file_a_folder_and_an_empty_file(server: XrootdServer) -> None:
    with refused(ReplicaFailure, kind=FailureKind.MISSING) as error:
        replica_of(server, "none.root").open()
    assert error.value.why == "XRootD error 3011"
    with refused(ReplicaFailure, kind=FailureKind.WRONG):
        replica_of(server, "").open()
    server.put("empty.root", b"")
    with DistantFile("empty.root", [address(server, "empty.root")]) as file:
        assert (file.size, list(file.stream()), file.read(0, 10)) == (0, [], b"")


@pytest.mark.parametrize("change", ["another size", "another content", "rewritten"])
def test_a_file_that_is_another_one_after_a_restart_is_refused(server: XrootdServer, path: Path, change: str) -> None:
    with DistantFile("flux.root", [address(server)]) as file:
        assert file.read(0, 100) == CONTENT[:100]
        server.process.stop()
        path.write_bytes({"another size": CONTENT[:-1], "another content": bytes(SIZE), "rewritten": CONTENT}[change])
        os.utime(path, (1, 1))
        server.process.start()
        if change == "rewritten":  # at another time, but the checksum shows that it is the same
            assert file.read(200, 100) == CONTENT[200:300]
            return
        with refused(FILE_CHANGED):
            file.read(200, 100)


@pytest.mark.parametrize("ranges", [[(0, 10)], [(0, 10), (1_000_000, 10)]])
def test_a_file_that_changes_while_it_is_open_is_refused(
    server: XrootdServer, path: Path, ranges: list[tuple[int, int]]
) -> None:
    with DistantFile("flux.root", [address(server)]) as file:
        with path.open("r+b") as writer:
            writer.truncate(SIZE - 1)
        with refused(FILE_CHANGED):
            file.read_many(ranges)


def test_a_silent_server_is_left_for_the_next_replica(server: XrootdServer) -> None:
    with DistantServer(CONTENT).serving() as other:
        addresses = [address(server, retries=0, timeout_s=3), ReplicaAddress("bari", other.url)]
        with DistantFile("flux.root", addresses) as file:
            server.process.send(signal.SIGSTOP)
            os.waitid(os.P_PID, server.process.pid, os.WSTOPPED | os.WNOWAIT)
            assert file.read_many([(0, 10), (100_000, 10)]) == [CONTENT[:10], CONTENT[100_000:100_010]]
        server.process.send(signal.SIGCONT)
    assert (file.counts.sites, file.counts.failures) == (["pisa", "bari"], {"pisa silent": 1})


def test_xroot_goes_on_where_http_failed(server: XrootdServer) -> None:
    with DistantServer(CONTENT, DistantFault.GONE).serving() as first:
        addresses = [ReplicaAddress("bari", first.url.replace("http:", "dav:")), address(server)]
        with DistantFile("flux.root", addresses) as file, StorageReads(file) as reads:
            for cluster in CLUSTERS:
                assert reads.read_many(cluster) == [CONTENT[offset : offset + length] for offset, length in cluster]
    assert (file.counts.sites, file.counts.failures) == (["bari", "pisa"], {"bari missing": 1})


def test_a_server_that_is_stopped_cannot_be_reached(server: XrootdServer) -> None:
    with DistantFile("flux.root", [address(server, retries=1)]) as file:
        server.process.stop()
        with refused(NO_REPLICA) as error:
            file.read(0, 10)
    assert "pisa: cannot connect" in str(error.value)
    assert "127.0.0.1" not in str(error.value)
    assert set(file.counts.failures) == {"pisa cut", "pisa unreachable"}
