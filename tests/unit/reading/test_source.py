"""The scheme of a URL decides how it is read; a replica that this installation cannot read is left out."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from include.federation.records import results_of_readings
from include.reading.errors import NO_REPLICA
from include.reading.source import DistantFile, Patience, ReplicaAddress, unreadable
from include.reading.xroot import MISSING
from lab.ports import free_port
from tests.fakes.distant import DistantServer
from tests.fakes.refused import refused

URL = "root://se.example.org//store/a.root"


@pytest.mark.parametrize(
    ("url", "readable"),
    [
        (URL, True), (URL.replace("root:", "xroot:"), True), ("davs://a/b", True), ("DAV://a/b", True),
        ("http://a/b", True), ("s3://a/b", False), ("/store/a.root", False), ("", False),
    ],
)  # fmt: skip
def test_a_url_is_readable_by_its_scheme(url: str, readable: bool) -> None:
    assert (unreadable(url) is None) == readable


def test_without_the_package_another_replica_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "XRootD", None)
    messages: list[str] = []
    with DistantServer(b"content").serving() as server:
        places = [ReplicaAddress("pisa", URL), ReplicaAddress("bari", server.url)]
        with DistantFile("a.root", places, say=messages.append) as file:
            assert file.read(0, 7) == b"content"
    assert messages == [f"a.root: pisa: {MISSING}"]
    assert file.counts.failures == {}, "it is no failure of the site"
    with refused(NO_REPLICA) as error:
        DistantFile("a.root", places[:1])
    assert "nightshift[xroot]" in str(error.value)


def test_the_line_of_a_file_counts_for_the_sites(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "include.reading")
    silent = ReplicaAddress("pisa", f"http://127.0.0.1:{free_port()}/a", Patience(retries=0))
    with DistantServer(b"content").serving() as server:
        with DistantFile("a.root", [silent, ReplicaAddress("bari", server.url)]) as file:
            file.read(0, 7)
        with refused(NO_REPLICA):
            DistantFile("a.root", [silent])
        with refused(NO_REPLICA):
            DistantFile("b.root", [silent, replace(silent, site="lyon"), replace(silent, site="bari")])
    results, damaged = results_of_readings((record.message for record in caplog.records), ["bari", "lyon", "pisa"])
    assert damaged == 0
    assert {(result.site, result.kind, result.good, result.failed, result.bytes) for result in results} == {
        ("pisa", "unreachable", 0, 3, 0), ("lyon", "unreachable", 0, 1, 0), ("bari", "unreachable", 0, 1, 0),
        ("bari", "", 1, 0, 8),
    }  # fmt: skip
