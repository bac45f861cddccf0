"""Failures that are tried again, checksums that differ, and who calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.fts.states import FailureReason, FailureScope
from lab.fts.callers import Caller, Callers, UnknownToken, subject_of
from lab.fts.config import FtsServiceConfig
from lab.fts.copies.copier import CopyOrder, recoverable
from lab.fts.copies.simulated import FAILURES, parsed_fractions
from lab.fts.copies.storages import CopyFault, CopyFolder, digest_of
from lab.fts.copies.webdav import WebdavStorage
from lab.fts.errors import FtsServiceError

_S = FailureScope


@pytest.mark.parametrize(
    ("reason", "again"),
    [
        ("SOURCE [2] Result HTTP 404 : File not found  after 1 attempts", False),
        ("SOURCE [5] Source and user-defined adler32 checksum do not match (1 != 2)", False),
        ("SOURCE [112] Result Could not connect to server  after 1 attempts", True),
        ("SOURCE [113] Domain name resolution failed", True),
        ("DESTINATION [17] Destination file exists and overwrite is not enabled", False),
        ("DESTINATION [1] HTTP 403 : Permission refused", False),
        ("TRANSFER [110] Connection timed out", True),
        ("TRANSFER [28] No space left on device", False),
        ("TRANSFER [5] No performance marker received for 180 seconds", True),
        ("TRANSFER [125] Transfer canceled", False),
        ("a text of another form", True),
    ],
)
def test_failures_are_tried_again_as_by_fts(reason: str, again: bool) -> None:
    assert recoverable(FailureReason.parse(reason)) is again


def test_drawn_failures_have_the_form_of_fts_and_are_chosen_by_their_names() -> None:
    assert all(FailureReason.parse(reason.format()) == reason for reason in FAILURES.values())
    assert parsed_fractions(["network=0.25", "stalled=1"]) == {"network": 0.25, "stalled": 1.0}
    for text in ("weather=0.1", "network", "network=2", "network=-1"):
        with pytest.raises(FtsServiceError):
            parsed_fractions([text])


def test_checksums_are_compared_without_leading_zeros_and_case() -> None:
    order = CopyOrder(1, "s", "d", checksum="ADLER32:00ABCDEF")
    assert order.source_fault("abcdef") is None
    assert order.source_fault("abcdee") is not None
    assert order.destination_fault("00abcdef", None) is None
    without = CopyOrder(1, "s", "d")
    assert without.source_fault("1") is None
    assert without.destination_fault("1", "2") is not None
    assert without.destination_fault("2", "02") is None


def test_digests_are_of_all_pieces() -> None:
    assert digest_of("adler32", [b"Wiki", b"pedia"]) == "11e60398"
    assert digest_of("md5", [b"a", b"b"]) == "187ef4436122d1cc2f40dc2b92f0eba0"
    with pytest.raises(CopyFault):
        digest_of("crc99", [])


def test_no_path_leads_out_of_the_folder_and_no_token_is_sent_in_clear(tmp_path: Path) -> None:
    for path in ("", "/", "../f", "..%2ff", "a/../../f", "%2e%2e/f"):
        with pytest.raises(CopyFault):
            CopyFolder(tmp_path / "folder").size(f"file://localhost/{path}", None)
    with pytest.raises(CopyFault) as refused:
        WebdavStorage(None, 1).size("http://storage.example.org/f", "token")
    assert refused.value.errno == 1


def test_callers_are_known_by_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# comment\n\nfirst alice admin\nsecond bob\n")
    callers = Callers.of(FtsServiceConfig(tmp_path / "state", tokens=tokens, admins=frozenset({"bob"})))
    assert callers.caller("Bearer first", None) == Caller("alice", "oauth2", admin=True)
    assert callers.caller("bearer second", None) == Caller("bob", "oauth2", admin=True)
    assert callers.caller(None, None).method == "unauthenticated"
    for header in ("Bearer third", "Basic first", "Bearer "):
        with pytest.raises(UnknownToken):
            callers.caller(header, "/CN=user")
    tokens.write_text("first alice of wonderland\n")
    with pytest.raises(FtsServiceError):
        Callers.of(FtsServiceConfig(tmp_path / "state", tokens=tokens))


def test_a_proxy_acts_as_the_user_who_made_it() -> None:
    names = [("domainComponent", "ch"), ("commonName", "user"), ("commonName", "12345"), ("commonName", "proxy")]
    assert subject_of({"subject": [[name] for name in names]}) == "/DC=ch/CN=user"
    assert subject_of({"subject": [[("commonName", "67")]]}) == "/CN=67"
