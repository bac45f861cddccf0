"""Keys: named as the stock tools name them, readable by their owner only, never overwritten, named when they fail."""

from __future__ import annotations

import base64
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, strategies as st

from include.cvmfs.errors import FormatError, KeyFileError
from include.cvmfs.format.hashes import Algorithm, hash_bytes
from include.cvmfs.format.keys import (
    Fingerprint,
    GatewayKey,
    KeyFile,
    Signer,
    fingerprint,
    format_public_key,
    generate_master,
    generate_repository_key,
    load_gateway_key,
    load_master,
    load_private_key,
    load_signer,
    parse_certificate,
    parse_public_keys,
    public_key_of,
    save_gateway_key,
    save_master,
    save_signer,
)
from tests.fakes.refused import refused

FQRN = "nightlies.example.org"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
MASTER = generate_master()
SIGNER = generate_repository_key(FQRN, NOW)
PUBLIC_PEM = format_public_key(MASTER.public_key())
WORDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=40)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_have_the_names_of_the_stock_tools_and_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    save_master(tmp_path, FQRN, MASTER)
    save_signer(tmp_path, FQRN, SIGNER)
    save_gateway_key(tmp_path, FQRN, GatewayKey("key1", "s3cr3t"))
    endings = ("crt", "gw", "key", "masterkey", "pub")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{FQRN}.{ending}" for ending in endings]
    assert (tmp_path / f"{FQRN}.gw").read_text() == "plain_text key1 s3cr3t\n"
    modes = {kind: mode(kind.path(tmp_path, FQRN)) for kind in KeyFile}
    secret = {KeyFile.MASTER, KeyFile.REPOSITORY, KeyFile.GATEWAY}
    assert modes == {kind: 0o600 if kind in secret else 0o644 for kind in KeyFile}


def test_keys_read_back_as_what_was_written(tmp_path: Path) -> None:
    save_master(tmp_path, FQRN, MASTER)
    save_signer(tmp_path, FQRN, SIGNER)
    assert load_master(tmp_path, FQRN).private_numbers() == MASTER.private_numbers()
    loaded = load_signer(tmp_path, FQRN)
    assert loaded.certificate_pem == SIGNER.certificate_pem
    assert loaded.private_key.private_numbers() == SIGNER.private_key.private_numbers()
    public = parse_public_keys((tmp_path / f"{FQRN}.pub").read_bytes())
    assert [key.public_numbers() for key in public] == [MASTER.public_key().public_numbers()]


@pytest.mark.parametrize("kind", [KeyFile.MASTER, KeyFile.PUBLIC])
def test_nothing_is_overwritten_and_no_half_pair_is_left(tmp_path: Path, kind: KeyFile) -> None:
    present = kind.path(tmp_path, FQRN)
    present.write_text("mine")
    with refused(KeyFileError, path=str(present)):
        save_master(tmp_path, FQRN, MASTER)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_certificates_are_what_the_stock_tools_make() -> None:
    certificate = SIGNER.certificate
    assert certificate.subject.rfc4514_string() == f"CN={FQRN} CernVM-FS Release Managers"
    assert certificate.issuer == certificate.subject
    assert 0 < certificate.serial_number < 2**64
    assert certificate.not_valid_before_utc == NOW
    assert certificate.not_valid_after_utc == NOW + timedelta(days=365)
    assert certificate.signature_hash_algorithm is not None
    assert certificate.signature_hash_algorithm.name == "sha256"
    assert public_key_of(certificate).key_size == 2048


def test_a_long_repository_name_still_gets_a_certificate() -> None:
    long = f"{'a' * 80}.example.org"
    assert generate_repository_key(long, NOW).certificate.subject.rfc4514_string() == f"CN={long[:64]}"


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_fingerprint_is_the_hash_of_the_certificates_der_form(algorithm: Algorithm) -> None:
    der = SIGNER.certificate.public_bytes(serialization.Encoding.DER)
    found = fingerprint(SIGNER.certificate_pem, algorithm)
    assert found.hash == hash_bytes(der, algorithm)
    text = str(found)
    assert text == text.upper()
    assert text[:59].count(":") == 19
    assert text[59:] == algorithm.value.upper()
    assert Fingerprint.parse(text) == found


@given(WORDS, WORDS)
def test_gateway_keys_read_back_as_what_was_written(key_id: str, secret: str) -> None:
    key = GatewayKey(key_id, secret)
    assert GatewayKey.parse(key.format()) == key


@pytest.mark.parametrize("text", ["", "plain_text", "plain_text id", "file id secret", "plain_text id secret more"])
def test_other_gateway_keys_are_refused_without_telling_the_secret(text: str) -> None:
    with refused(FormatError, what="gateway key") as caught:
        GatewayKey.parse(text.replace("secret", "hunter2"))
    assert "hunter2" not in str(caught.value)


def test_gateway_keys_that_would_not_read_back_are_not_written() -> None:
    for key in (GatewayKey("a b", "c"), GatewayKey("a", ""), GatewayKey("a", "b\n")):
        with pytest.raises(FormatError):
            key.format()


def test_secrets_are_not_shown() -> None:
    assert "hunter2" not in repr(GatewayKey("id", "hunter2"))
    assert repr(SIGNER) == "Signer()"


PKCS8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
LOCKED = MASTER.private_bytes(*PKCS8, serialization.BestAvailableEncryption(b"pw"))
CURVE = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nonsense", "not a private key .*; restore it"),
        (PUBLIC_PEM, "not a private key .*; restore it"),
        (b"", "not a private key .*; restore it"),
        (LOCKED, "is protected by a password; store it without one"),
        (CURVE.private_bytes(*PKCS8, serialization.NoEncryption()), "not an RSA key"),
    ],
    ids=["nonsense", "public", "empty", "locked", "curve"],
)
def test_the_message_says_why_a_file_is_no_private_key(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.masterkey"
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=f"^{re.escape(str(path))}: {words}"):
        load_private_key(path)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with refused(KeyFileError, path=str(KeyFile.MASTER.path(tmp_path, "x.org"))):
        load_master(tmp_path, "x.org")


def test_other_kinds_of_public_keys_are_refused() -> None:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    with refused(FormatError, what="public key"):
        parse_public_keys(CURVE.public_key().public_bytes(serialization.Encoding.PEM, form))


def test_a_certificate_of_another_key_and_damaged_files_are_named(tmp_path: Path) -> None:
    for number, certificate in enumerate((SIGNER.certificate_pem, b"nonsense")):
        folder = tmp_path / str(number)
        save_signer(folder, FQRN, Signer(MASTER, certificate))
        with refused(KeyFileError, path=str(KeyFile.CERTIFICATE.path(folder, FQRN))):
            load_signer(folder, FQRN)
    path = tmp_path / f"{FQRN}.gw"
    for content in (b"nonsense", b"\xff\xfe"):
        path.write_bytes(content)
        with refused(KeyFileError, path=str(path)):
            load_gateway_key(path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with refused(KeyFileError, path=str(KeyFile.MASTER.path(blocked / "keys", FQRN))):
        save_master(blocked / "keys", FQRN, MASTER)


def test_a_certificate_of_an_unknown_version_is_our_own_error() -> None:
    der = base64.b64decode(b"".join(SIGNER.certificate_pem.splitlines()[1:-1]))
    version = bytes.fromhex("a003020102")  # [0] INTEGER 2: X.509 version 3
    assert version in der
    text = base64.encodebytes(der.replace(version, bytes.fromhex("a00302010a"), 1))
    with refused(FormatError, what="certificate"):
        parse_certificate(b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n")
