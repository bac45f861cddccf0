"""Failures of XRootD's client are kinds of failures; the package may be missing, and repeats nothing by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from include.reading import xroot
from include.reading.errors import FailureKind, ReplicaFailure
from include.reading.replica import ReadingCounts
from tests.fakes.refused import refused

URL = "root://se.example.org//store/a.root"


@pytest.mark.parametrize(
    ("code", "number", "kind"),
    [
        (108, 111, FailureKind.UNREACHABLE), (101, 0, FailureKind.UNREACHABLE), (206, 0, FailureKind.SILENT),
        (103, 0, FailureKind.SILENT), (104, 0, FailureKind.CUT), (109, 0, FailureKind.CUT),
        (110, 0, FailureKind.DISTRUSTED), (204, 0, FailureKind.REFUSED), (306, 0, FailureKind.WRONG),
        (400, 3011, FailureKind.MISSING), (400, 3010, FailureKind.REFUSED), (400, 3024, FailureKind.BUSY),
        (400, 3004, FailureKind.CUT), (400, 3016, FailureKind.WRONG), (400, 9999, FailureKind.WRONG),
    ],
)  # fmt: skip
def test_each_status_has_a_kind(code: int, number: int, kind: FailureKind) -> None:
    failure = xroot._failure(code, number)
    assert failure.kind is kind
    assert failure.why


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 50)), max_size=20), st.integers(1, 20))
def test_chunks_cover_their_ranges_and_none_is_too_long(ranges: list[tuple[int, int]], most: int) -> None:
    chunks = list(xroot._chunks(ranges, most))
    assert all(0 < length <= most for _, length in chunks)
    places = [place for offset, length in chunks for place in range(offset, offset + length)]
    assert places == [place for offset, length in ranges for place in range(offset, offset + length)]


def test_a_variable_of_the_environment_wins() -> None:
    script = (
        "from include.reading.xroot import _client; client = _client();"
        "print(client.EnvGetInt('RedirectLimit'), client.EnvGetInt('StreamErrorWindow'))"
    )
    command = [sys.executable, "-c", script]
    printed = subprocess.run(command, env={"XRD_REDIRECTLIMIT": "9"}, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["9", "0"]


def test_a_package_that_cannot_be_loaded_is_a_failure_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    xroot._client.cache_clear()
    monkeypatch.setitem(sys.modules, "XRootD.client", None)
    with refused(ReplicaFailure, kind=FailureKind.WRONG, why=xroot.MISSING):
        xroot.XrootReplica(URL, "pisa", timeout_s=1, counts=ReadingCounts()).open()
