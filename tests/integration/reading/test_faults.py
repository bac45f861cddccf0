"""Every strategy against every fault of a server: the right bytes, the next replica, or an error that names it."""

from __future__ import annotations

import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import pytest

from include.reading.errors import FILE_CHANGED, NO_REPLICA, ReadingError
from include.reading.source import DistantFile, Patience, ReplicaAddress
from include.reading.strategies import (
    ApplicationReads,
    LazyDownload,
    ReadableFile,
    ReadingStrategy,
    StorageReads,
    WholeFile,
)
from tests.fakes.distant import MIDDLE, DistantFault as Fault, DistantServer

SIZE = 600_000
CONTENT = random.Random(1).randbytes(SIZE)
CLUSTERS = [[(cluster * 100_000 + place * 16_000, 2_000) for place in range(6)] for cluster in range(6)]
QUICK = Patience(retries=2, wait_s=0.01, longest_s=0.05, timeout_s=0.3)
STRATEGIES: dict[str, Callable[[DistantFile], ReadingStrategy]] = {
    "storage": StorageReads,
    "application": lambda file: ApplicationReads(file, ahead=1),
    "lazy": lambda file: LazyDownload(file, segment=150_000, streams=2),
    "whole": WholeFile,
}
ALONE: dict[Fault, object] = {
    Fault.HANGS: NO_REPLICA, Fault.CUTS_AT_ONCE: NO_REPLICA, Fault.LOOPS: NO_REPLICA, Fault.HTML: NO_REPLICA,
    Fault.TOO_MUCH: NO_REPLICA, Fault.CHANGES: FILE_CHANGED, Fault.OTHER_TOTAL: FILE_CHANGED, Fault.GONE: NO_REPLICA,
    Fault.REFUSES: NO_REPLICA, Fault.ENCODES: NO_REPLICA, Fault.IGNORES_RANGES: NO_REPLICA,
}  # fmt: skip
"""Errors where there is no other replica; of all other faults the reader has to make the best."""
SINGLE: dict[Fault, object] = {Fault.LONG_LENGTH: NO_REPLICA}
"""Errors of strategies that ask for one range at once."""
MULTIPART: dict[Fault, object] = {Fault.NO_PLACE: NO_REPLICA, Fault.ENDLESS_LINE: NO_REPLICA}
"""Errors of strategies that ask for several ranges at once."""
NOT_OF_WHOLE = {Fault.CHANGES, Fault.OTHER_TOTAL, Fault.GONE, Fault.REFUSES, Fault.IGNORES_RANGES}
"""Faults that do not happen to a strategy with one request."""


UNREAD = {Fault.IGNORES_RANGES: 3 * SIZE, Fault.ONE_RANGE: SIZE, Fault.TOO_MUCH: SIZE, Fault.LONG_LENGTH: SIZE}
"""Bytes that these servers wrote into their sockets, which hold all of this file, and that the reader closed unread."""


@pytest.fixture
def servers() -> Iterator[Callable[..., DistantServer]]:
    with ExitStack() as stack:
        yield lambda fault=Fault.NONE, content=CONTENT, **more: stack.enter_context(
            DistantServer(content, fault, **more).serving()
        )


def read_all(strategy: str, *places: DistantServer, **known: object) -> DistantFile:
    """Read all clusters, and compare every byte."""
    addresses = [ReplicaAddress(f"site{number}", place.url, QUICK) for number, place in enumerate(places)]
    with DistantFile("flux.root", addresses, **known) as file:  # type: ignore[arg-type]
        assert file.size == SIZE
        with STRATEGIES[strategy](file) as reads:
            reads.expect(CLUSTERS)
            for cluster in CLUSTERS:
                parts = reads.read_many(cluster)
                assert parts == [CONTENT[offset : offset + length] for offset, length in cluster]
    return file


def expected(strategy: str, fault: Fault) -> object:
    if strategy == "whole" and fault in NOT_OF_WHOLE:
        return None
    return ALONE.get(fault) or (MULTIPART if strategy == "application" else SINGLE).get(fault)


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
def test_alone_a_server_is_read_right_or_named(
    strategy: str, fault: Fault, servers: Callable[..., DistantServer]
) -> None:
    server, error = servers(fault), expected(strategy, fault)
    if error is None:
        file = read_all(strategy, server)
        assert server.sent <= 1.1 * SIZE + UNREAD.get(fault, 0)
        assert file.counts.sites == ["site0"]
        return
    with pytest.raises(ReadingError) as caught:
        read_all(strategy, server)
    assert caught.value.code == error.code  # type: ignore[attr-defined]
    assert "site0" in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
def test_the_next_replica_goes_on_where_its_checksum_is_the_same(
    strategy: str, fault: Fault, servers: Callable[..., DistantServer]
) -> None:
    first, second = servers(fault), servers()
    if expected(strategy, fault) is FILE_CHANGED:
        with pytest.raises(ReadingError) as caught:
            read_all(strategy, first, second)
        assert (caught.value.code, second.asked) == (FILE_CHANGED.code, 0)
        return
    file = read_all(strategy, first, second)
    failed = expected(strategy, fault) is NO_REPLICA
    assert (file.counts.sites[-1], second.asked > 0) == (("site1", True) if failed else ("site0", False))
    assert first.sent + second.sent <= 1.1 * SIZE + UNREAD.get(fault, 0)


@pytest.mark.parametrize("strategy", ["storage", "application", "lazy"])
def test_two_contents_are_never_mixed(strategy: str, servers: Callable[..., DistantServer]) -> None:
    for other in (servers(content=bytes(SIZE)), servers(content=CONTENT, digest=False), servers(content=CONTENT[:-1])):
        first = servers(Fault.GONE)
        with pytest.raises(ReadingError) as caught:
            read_all(strategy, first, other)
        assert caught.value.code == NO_REPLICA.code
        assert "site1" in str(caught.value)


def test_a_checksum_of_the_second_replica_says_nothing_of_the_bytes_of_the_first(
    servers: Callable[..., DistantServer],
) -> None:
    checksum = f"{zlib.adler32(CONTENT):08x}"
    wrong = servers(Fault.GONE, content=bytes(SIZE), digest=False)
    with DistantFile("f", [ReplicaAddress(f"site{n}", place.url, QUICK) for n, place in enumerate((wrong, servers()))],
                     adler32=checksum) as file, StorageReads(file) as reads:  # fmt: skip
        assert reads.read_many(CLUSTERS[0][:MIDDLE]) == [bytes(2_000)] * MIDDLE, "nothing tells that it is wrong"
        with pytest.raises(ReadingError) as caught:
            reads.read_many(CLUSTERS[1])
    assert caught.value.code == NO_REPLICA.code


def test_a_replica_of_another_size_or_checksum_is_not_read(servers: Callable[..., DistantServer]) -> None:
    wrong, right = servers(content=bytes(SIZE)), servers()
    checksum = read_all("storage", right)._digest
    assert read_all("storage", wrong, right, adler32=checksum).counts.sites == ["site1"]
    short = servers(content=CONTENT[:-1])
    assert read_all("whole", short, right, size=SIZE).counts.sites == ["site1"]
    assert wrong.asked == short.asked == 0


def test_requests_are_few_and_what_is_near_is_one_range(servers: Callable[..., DistantServer]) -> None:
    server = servers()
    with DistantFile("f", [ReplicaAddress("s", server.url, QUICK)]) as file, ApplicationReads(file, ahead=2) as reads:
        reads.expect(CLUSTERS)
        for cluster in CLUSTERS:
            reads.read_many(cluster)
    assert server.ranges == [1, 12, 12, 12], "two clusters a request"
    assert server.connections == 1, "each reply is read to its end, which leaves the connection open"
    server = servers()
    read_all("storage", server)
    assert server.ranges == [1] * 37
    assert server.connections == 1
    server = servers()
    with DistantFile("f", [ReplicaAddress("s", server.url, QUICK)]) as file:
        assert file.read_many([(0, 10), (5000, 10), (100_000, 0), (20_000, 5)]) == [
            CONTENT[:10], CONTENT[5000:5010], b"", CONTENT[20_000:20_005]
        ]  # fmt: skip
        assert server.ranges == [1, 2]
        assert file.read(SIZE - 5, 100) == CONTENT[-5:]
        assert b"".join(file.stream(100)) == CONTENT[100:]
        with pytest.raises(ReadingError, match="600000"):
            file.read_many([(SIZE - 5, 10)])


def test_an_empty_file_and_an_empty_list(servers: Callable[..., DistantServer]) -> None:
    server = servers(content=b"")
    with DistantFile("empty", [ReplicaAddress("s", server.url, QUICK)]) as file:
        assert (file.size, list(file.stream()), file.read(0, 10)) == (0, [], b"")
    with pytest.raises(ReadingError) as caught:
        DistantFile("none", [])
    assert caught.value.code == NO_REPLICA.code


def test_a_full_disk_is_said_and_the_file_is_read_directly(
    servers: Callable[..., DistantServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    server, said = servers(), list[str]()
    with DistantFile("flux.root", [ReplicaAddress("s", server.url, QUICK)]) as file:
        reads = LazyDownload(file, segment=150_000, say=said.append)
        monkeypatch.setattr("os.pwrite", full)
        for cluster in CLUSTERS:
            assert reads.read_many(cluster) == [CONTENT[offset : offset + length] for offset, length in cluster]
        reads.close()
    assert len(said) == 1
    assert "full" in said[0]


def test_an_archive_is_read_through_the_file_object_while_connections_are_cut(
    servers: Callable[..., DistantServer],
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(5):
            archive.writestr(f"member{number}", CONTENT[number * 100_000 : (number + 1) * 100_000])
    server = servers(Fault.CUTS, content=packed.getvalue())
    file = DistantFile("a.zip", [ReplicaAddress("s", server.url, QUICK)])
    with ReadableFile(ApplicationReads(file)) as reader, zipfile.ZipFile(reader) as archive:
        assert archive.testzip() is None
        assert archive.read("member4") == CONTENT[400_000:500_000]
        assert fsspec.filesystem("zip", fo=reader).cat_file("member3") == CONTENT[300_000:400_000]
        assert reader.readv([(0, 4), (10, 2)]) == [packed.getvalue()[:4], packed.getvalue()[10:12]]
        assert (reader.seek(-2, io.SEEK_END), reader.read(), reader.read(1)) == (
            reader.size - 2, packed.getvalue()[-2:], b""
        )  # fmt: skip
    assert file.counts.retries > 50


def test_each_file_leaves_a_line_in_the_log(
    servers: Callable[..., DistantServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "include.reading")
    read_all("application", servers(Fault.GONE), servers())
    (line,) = (json.loads(record.message.removeprefix("read ")) for record in caplog.records)
    assert line["sites"] == ["site0", "site1"]
    assert line["failures"] == {"site0 missing": 1}
    assert (line["received"] > 0, line["requests"], line["size"]) == (True, 1 + MIDDLE + 1 + 1 + 3, SIZE)


def test_no_folder_for_the_shadow_file_is_an_error(servers: Callable[..., DistantServer], tmp_path: Path) -> None:
    with (
        DistantFile("f", [ReplicaAddress("s", servers().url, QUICK)]) as file,
        pytest.raises(ReadingError, match="shadow file"),
    ):
        LazyDownload(file, folder=tmp_path / "missing")
