"""The whitelist is signed as the stock tools expect, ends on the hour, and says what to do when it does not hold."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from shutil import which

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.errors import CvmfsError, FormatError, SignatureError, WhitelistError, WhitelistExpired
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.cvmfs.format.keys import (
    Fingerprint,
    fingerprint,
    format_public_key,
    generate_master,
    generate_repository_key,
)
from include.cvmfs.format.whitelist import Whitelist, lists, sign, verify
from tests.fakes.refused import refused

FQRN = "nightlies.example.org"
NOW = datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC)
MASTER, OTHER_MASTER = generate_master(), generate_master()
PUBLIC = [OTHER_MASTER.public_key(), MASTER.public_key()]
SIGNER = generate_repository_key(FQRN, NOW)
STRANGER = generate_repository_key(FQRN, NOW)
WHITELIST = Whitelist(FQRN, NOW, NOW + timedelta(days=30), (fingerprint(SIGNER.certificate_pem),))
SIGNED = sign(WHITELIST, MASTER)

COMMENTS = st.from_regex(r"([A-Za-z0-9ü#][A-Za-z0-9 #.]{0,20})?[A-Za-z0-9]|", fullmatch=True)
FINGERPRINTS = st.builds(
    Fingerprint, st.builds(ObjectHash, st.binary(min_size=20, max_size=20), st.sampled_from(Algorithm)), COMMENTS
)
TIMES = st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(microsecond=0))
WHITELISTS = st.builds(
    Whitelist,
    st.from_regex(r"[a-z0-9.-]{1,60}", fullmatch=True),
    TIMES,
    TIMES,
    st.lists(FINGERPRINTS, min_size=1, max_size=4).map(tuple),
)


def test_lines_are_those_of_the_stock_tools() -> None:
    listed = Fingerprint(ObjectHash(bytes(range(20)), Algorithm.SHAKE128), "release managers")
    whitelist = Whitelist(FQRN, NOW, NOW + timedelta(days=30), (listed,))
    assert whitelist.letter().decode().splitlines() == [
        "20261121030405",
        "E20261221030405",
        f"N{FQRN}",
        "00:01:02:03:04:05:06:07:08:09:0A:0B:0C:0D:0E:0F:10:11:12:13-SHAKE128 # release managers",
    ]


@given(WHITELISTS)
def test_a_letter_reads_back_as_what_was_written(whitelist: Whitelist) -> None:
    assert Whitelist.from_letter(whitelist.letter()) == whitelist


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_signed_file_verifies_with_any_of_the_master_keys(algorithm: Algorithm) -> None:
    whitelist = Whitelist(FQRN, NOW, NOW + timedelta(days=1), (fingerprint(SIGNER.certificate, algorithm),))
    signed = Whitelist.parse(sign(whitelist, MASTER, algorithm))
    assert signed.hash.algorithm is algorithm
    verify(signed, PUBLIC, fqrn=FQRN, now=NOW, certificate=SIGNER.certificate_pem)


def test_the_signature_is_the_padded_hash_text_itself() -> None:
    signed = Whitelist.parse(SIGNED)
    numbers = MASTER.public_key().public_numbers()
    opened = pow(int.from_bytes(signed.signature), numbers.e, numbers.n).to_bytes(256)
    assert opened == b"\x00\x01" + b"\xff" * (256 - 3 - 40) + b"\x00" + str(signed.hash).encode()


def test_it_is_in_force_until_the_hour_begins_in_which_it_expires() -> None:
    signed = Whitelist.parse(SIGNED)
    last = datetime(2026, 12, 21, 2, 59, 59, tzinfo=UTC)
    verify(signed, PUBLIC, fqrn=FQRN, now=last, certificate=SIGNER.certificate_pem)
    with refused(WhitelistExpired, fqrn=FQRN, expires=datetime(2026, 12, 21, 3, tzinfo=UTC)):
        verify(signed, PUBLIC, fqrn=FQRN, now=last + timedelta(seconds=1), certificate=SIGNER.certificate_pem)
    zone = timezone(timedelta(hours=5, minutes=30))  # the hour is that of UTC wherever the clock hangs
    verify(signed, PUBLIC, fqrn=FQRN, now=datetime(2026, 12, 21, 8, 29, tzinfo=zone))
    with pytest.raises(WhitelistExpired):
        verify(signed, PUBLIC, fqrn=FQRN, now=datetime(2026, 12, 21, 8, 30, tzinfo=zone))


def test_a_time_without_zone_is_a_mistake_of_the_caller() -> None:
    with refused(ValueError):
        verify(Whitelist.parse(SIGNED), PUBLIC, fqrn=FQRN, now=datetime(2026, 11, 21))  # noqa: DTZ001
    with refused(ValueError):
        Whitelist(FQRN, datetime(2026, 1, 1), NOW, WHITELIST.fingerprints).letter()  # noqa: DTZ001


def test_one_of_several_fingerprints_is_enough() -> None:
    several = (fingerprint(STRANGER.certificate, Algorithm.SHAKE128), *WHITELIST.fingerprints)
    whitelist = Whitelist(FQRN, NOW, NOW + timedelta(days=1), several)
    assert lists(whitelist, SIGNER.certificate)
    assert lists(whitelist, STRANGER.certificate_pem)
    assert not lists(WHITELIST, STRANGER.certificate_pem)
    with refused(WhitelistError, fqrn=FQRN):
        verify(Whitelist.parse(SIGNED), PUBLIC, fqrn=FQRN, now=NOW, certificate=STRANGER.certificate_pem)
    with refused(WhitelistError, fqrn="other.example.org"):
        verify(Whitelist.parse(SIGNED), PUBLIC, fqrn="other.example.org", now=NOW)


@pytest.mark.parametrize("keys", [[], [OTHER_MASTER.public_key()]])
def test_without_the_right_master_key_nothing_is_trusted(keys: list[object]) -> None:
    with refused(SignatureError, what="whitelist"):
        verify(Whitelist.parse(SIGNED), keys, fqrn=FQRN, now=NOW)  # type: ignore[arg-type]


def test_fingerprints_are_read_in_any_case_and_up_to_blank_tab_or_hash() -> None:
    digest = bytes(range(20))
    plain = digest.hex(":")
    for line in (plain, plain.upper(), digest.hex(), f"{plain}\tx", f"{plain} # x", f"{plain}#x"):
        assert Fingerprint.parse(line).hash == ObjectHash(digest)
    assert Fingerprint.parse(f"{plain.upper()}-RMD160").hash == ObjectHash(digest, Algorithm.RMD160)


def test_lines_that_are_comments_only_are_passed_over() -> None:
    lines = WHITELIST.letter().splitlines(keepends=True)
    assert Whitelist.from_letter(b"".join([*lines[:3], b"# who may sign\n", *lines[3:]])) == WHITELIST


@pytest.mark.parametrize("option", [b"Vpkcs7\n", b"Wcachain\n"])
def test_other_ways_of_verification_are_not_silently_left_out(option: bytes) -> None:
    lines = WHITELIST.letter().splitlines(keepends=True)
    with refused(FormatError, what="whitelist"):
        Whitelist.from_letter(b"".join([*lines[:3], option, *lines[3:]]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"20261121030405\n", b"2026112103040\n"), (b"20261121030405\n", b"20261321030405\n"), (b"E2026", b"F2026"),
        (b"E2026", b"E 026"), (b"Nnight", b"night"), (b"Nnightlies.example.org\n", b"N\n"),
    ],
)  # fmt: skip
def test_lines_of_the_wrong_form_are_refused(old: bytes, new: bytes) -> None:
    with refused(FormatError, what="whitelist"):
        Whitelist.from_letter(WHITELIST.letter().replace(old, new))


@pytest.mark.parametrize(
    "whitelist",
    [
        Whitelist(FQRN, NOW, NOW, ()),
        Whitelist("a\nb", NOW, NOW, WHITELIST.fingerprints),
        Whitelist(FQRN, NOW, NOW, (Fingerprint(ObjectHash(bytes(20)), "two\nlines"),)),
    ],
)
def test_what_lines_cannot_hold_is_not_written(whitelist: Whitelist) -> None:
    with pytest.raises(FormatError):
        whitelist.letter()


def test_renewing_keeps_name_and_certificates() -> None:
    later = NOW + timedelta(days=90)
    renewed = WHITELIST.renewed(later)
    assert (renewed.fqrn, renewed.fingerprints) == (FQRN, WHITELIST.fingerprints)
    verify(Whitelist.parse(sign(renewed, MASTER)), PUBLIC, fqrn=FQRN, now=later + timedelta(days=29))


@given(st.integers(0, len(SIGNED) - 1), st.integers(0, 7))
def test_a_truncated_whitelist_and_one_with_a_flipped_bit_are_refused(place: int, bit: int) -> None:
    flipped = SIGNED[:place] + bytes([SIGNED[place] ^ 1 << bit]) + SIGNED[place + 1 :]
    for damaged in (SIGNED[:place], flipped):
        with pytest.raises(CvmfsError):
            verify(Whitelist.parse(damaged), PUBLIC, fqrn=FQRN, now=NOW)


@pytest.mark.skipif(which("openssl") is None, reason="needs the openssl command")
def test_openssl_opens_the_signature_without_a_digest(tmp_path: Path) -> None:
    signed = Whitelist.parse(SIGNED)
    (tmp_path / "key").write_bytes(format_public_key(MASTER.public_key()))
    (tmp_path / "signature").write_bytes(signed.signature)
    command = ["openssl", "pkeyutl", "-verifyrecover", "-pubin", "-inkey", "key", "-in", "signature"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout == str(signed.hash).encode()
