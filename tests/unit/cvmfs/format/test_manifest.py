"""The manifest is written as the stock tools write it, and nothing damaged or foreign passes for one."""

from __future__ import annotations

import dataclasses
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from shutil import which

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs.errors import CvmfsError, FormatError, RepositoryError, SignatureError
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.cvmfs.format.keys import format_public_key, generate_repository_key
from include.cvmfs.format.manifest import Manifest, sign, verify
from tests.fakes.refused import refused

FQRN = "nightlies.example.org"
SIGNER = generate_repository_key(FQRN, datetime(2026, 11, 21, tzinfo=UTC))
STRANGER = generate_repository_key(FQRN, datetime(2026, 11, 21, tzinfo=UTC))
ROOT = ObjectHash(bytes(range(20)), suffix="C")
MANIFEST = Manifest(root=ROOT, root_size=28672, revision=7, fqrn=FQRN, timestamp=1700000000, garbage_collectable=True)
SIGNED = sign(MANIFEST, SIGNER.private_key)


def hashes(suffix: str) -> st.SearchStrategy[ObjectHash]:
    digests = st.binary(min_size=20, max_size=20)
    return st.builds(ObjectHash, digests, st.sampled_from(Algorithm), st.just(suffix))


NUMBERS = st.integers(0, 2**62)
MANIFESTS = st.builds(
    Manifest,
    root=hashes("C"),
    root_size=NUMBERS,
    revision=NUMBERS,
    fqrn=st.from_regex(r"[a-z0-9.-]{1,60}", fullmatch=True),
    ttl=NUMBERS,
    garbage_collectable=st.booleans(),
    alt_paths=st.booleans(),
    certificate=st.none() | hashes("X"),
    history=st.none() | hashes("H"),
    timestamp=NUMBERS,
    meta=st.none() | hashes("M"),
    reflog=st.none() | hashes(""),
)


def test_lines_come_in_the_order_of_the_stock_tools() -> None:
    manifest = dataclasses.replace(
        MANIFEST,
        certificate=ObjectHash(b"\x01" * 20, suffix="X"),
        history=ObjectHash(b"\x02" * 20, suffix="H"),
        meta=ObjectHash(b"\x03" * 20, suffix="M"),
        reflog=ObjectHash(b"\x04" * 20),
    )
    assert manifest.letter().decode().splitlines() == [
        "C000102030405060708090a0b0c0d0e0f10111213",
        "B28672",
        "Rd41d8cd98f00b204e9800998ecf8427e",
        "D240",
        "S7",
        "Gyes",
        "Ano",
        f"N{FQRN}",
        f"X{'01' * 20}",
        f"H{'02' * 20}",
        "T1700000000",
        f"M{'03' * 20}",
        f"Y{'04' * 20}",
    ]
    unset = [line[0] for line in dataclasses.replace(MANIFEST, timestamp=0).letter().decode().splitlines()]
    assert unset == list("CBRDSGAN"), "what is not set is not written"


@given(MANIFESTS)
def test_a_letter_reads_back_as_what_was_written(manifest: Manifest) -> None:
    assert Manifest.from_letter(manifest.letter()) == manifest


@settings(max_examples=10)
@given(MANIFESTS)
def test_a_signed_file_reads_back_and_verifies(manifest: Manifest) -> None:
    signed = Manifest.parse(sign(manifest, SIGNER.private_key))
    assert signed.manifest == manifest
    assert signed.hash.algorithm is manifest.root.algorithm
    verify(signed, SIGNER.certificate_pem, fqrn=manifest.fqrn)


def test_unknown_lines_are_passed_over() -> None:
    assert Manifest.from_letter(MANIFEST.letter() + b"Q42\n") == MANIFEST


@pytest.mark.parametrize("letter", list("CRDS"))
def test_a_manifest_needs_its_four_lines(letter: str) -> None:
    lines = [line for line in MANIFEST.letter().splitlines(keepends=True) if line[:1] != letter.encode()]
    with refused(FormatError, what="manifest"):
        Manifest.from_letter(b"".join(lines))


@pytest.mark.parametrize(
    "line",
    ["S-1", "S1.5", "S", "S٣", "Gmaybe", "X123", f"X{'a' * 40}X", f"S{'9' * 20}", "", "B1\nB1", f"R{'d5' * 16}"],
)  # fmt: skip
def test_lines_of_the_wrong_form_are_refused(line: str) -> None:
    kept = [old for old in MANIFEST.letter().splitlines(keepends=True) if not line or old[:1] != line[:1].encode()]
    with pytest.raises(FormatError):
        Manifest.from_letter(b"".join(kept) + f"{line}\n".encode())


def test_a_name_that_would_make_a_line_of_its_own_is_not_written() -> None:
    with refused(FormatError, what="manifest"):
        dataclasses.replace(MANIFEST, fqrn="a.example.org\nS99").letter()


def test_a_changed_line_another_key_and_another_repository_do_not_verify() -> None:
    with refused(SignatureError, what="manifest"):
        verify(Manifest.parse(SIGNED.replace(b"S7\n", b"S8\n")), SIGNER.certificate_pem)
    with refused(SignatureError, what="manifest"):
        verify(Manifest.parse(SIGNED), STRANGER.certificate_pem)
    with refused(RepositoryError, fqrn="other.example.org"):
        verify(Manifest.parse(SIGNED), SIGNER.certificate_pem, fqrn="other.example.org")


@given(cut=st.integers(0, len(SIGNED) - 1))
def test_a_truncated_manifest_is_refused(cut: int) -> None:
    with pytest.raises(CvmfsError):
        verify(Manifest.parse(SIGNED[:cut]), SIGNER.certificate_pem)


@given(st.binary(max_size=200))
def test_trailing_and_arbitrary_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(CvmfsError):
        Manifest.parse(noise)
    if noise:
        with pytest.raises(SignatureError):
            verify(Manifest.parse(SIGNED + noise), SIGNER.certificate_pem)


@pytest.mark.skipif(which("openssl") is None, reason="needs the openssl command")
def test_openssl_takes_the_signature_for_sha1_with_rsa_over_the_hash_text(tmp_path: Path) -> None:
    signed = Manifest.parse(SIGNED)
    (tmp_path / "key").write_bytes(format_public_key(SIGNER.private_key.public_key()))
    (tmp_path / "text").write_bytes(str(signed.hash).encode())
    (tmp_path / "signature").write_bytes(signed.signature)
    command = ["openssl", "dgst", "-sha1", "-verify", "key", "-signature", "signature", "text"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout == b"Verified OK\n"
