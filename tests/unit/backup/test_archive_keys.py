"""Keys are opened by what they were encrypted to and by nothing else, and only as they were written."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from include.backup.archive import PASSPHRASE, Opener, SealTo, fault_of, key_files, seal, unseal
from include.backup.errors import BACKUP_DAMAGED, KEYS_LOCKED
from tests.fakes.refused import refused

FILES = {"r.example.org.key": b"secret\n", "r.example.org.pub": b"public\n", "gateway-admin.gw": b"plain_text a b\n"}
WORDS = "correct horse battery"


@cache
def recipient(bits: int = 3072) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def private(key: rsa.RSAPrivateKey, password: bytes | None = None) -> bytes:
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def public(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def test_a_passphrase_opens_keys_and_another_one_does_not() -> None:
    sealed = seal(FILES, SealTo(passphrase=WORDS))
    assert unseal("b", sealed, Opener(passphrase=WORDS)) == FILES
    assert b"secret" not in sealed
    for opener in (Opener(passphrase="another passphrase"), Opener(), Opener(private_key=private(recipient()))):
        with refused(KEYS_LOCKED, name="b"):
            unseal("b", sealed, opener)


def test_a_private_key_opens_what_was_encrypted_to_its_public_key() -> None:
    sealed = seal(FILES, SealTo(public_key=public(recipient())))
    assert unseal("b", sealed, Opener(private_key=private(recipient()))) == FILES
    locked = private(recipient(), b"its own")
    assert unseal("b", sealed, Opener(private_key=locked, key_passphrase="its own")) == FILES
    other = private(rsa.generate_private_key(public_exponent=65537, key_size=3072))
    for opener in (
        Opener(private_key=other), Opener(private_key=locked), Opener(private_key=b"no key"), Opener(passphrase=WORDS),
    ):  # fmt: skip
        with refused(KEYS_LOCKED):
            unseal("b", sealed, opener)


def test_keys_are_not_encrypted_to_what_protects_nothing() -> None:
    assert fault_of(SealTo(passphrase=WORDS)) is None
    assert fault_of(SealTo(public_key=public(recipient()))) is None
    assert fault_of(SealTo(passphrase="short"))
    assert fault_of(SealTo(public_key=public(recipient(1024))))
    assert fault_of(SealTo(public_key=public(ec.generate_private_key(ec.SECP256R1()))))
    assert fault_of(SealTo(public_key=b"-----BEGIN"))


@pytest.mark.parametrize(
    "change",
    [
        {"n": 1 << 30},  # would take 1 TiB of memory
        {"n": "131072"},
        {"to": "everyone"},
        {"sealed": "?"},
        {"nonce": None},
    ],
)
def test_a_changed_head_is_refused_before_anything_is_derived(change: dict[str, object]) -> None:
    sealed = json.loads(seal(FILES, SealTo(passphrase=WORDS)))
    with refused(BACKUP_DAMAGED):
        unseal("b", json.dumps(sealed | change).encode(), Opener(passphrase=WORDS))


def test_changed_keys_are_refused() -> None:
    fields = json.loads(seal(FILES, SealTo(passphrase=WORDS)))
    bits = bytearray(base64.b64decode(fields["sealed"]))
    bits[7] ^= 1
    changed = json.dumps({**fields, "sealed": base64.b64encode(bits).decode()})
    with refused(KEYS_LOCKED):
        unseal("b", changed.encode(), Opener(passphrase=WORDS))
    for data in (b"", b"[]", b"{}", b"\xff", b"null"):
        with refused(BACKUP_DAMAGED):
            unseal("b", data, Opener(passphrase=WORDS))


@pytest.mark.parametrize("name", ["../site.key", "a/b.key", ".key", "authorized_keys", "x.sh", "a\n.key"])
def test_a_name_that_is_no_key_file_is_refused(name: str) -> None:
    with refused(BACKUP_DAMAGED):
        unseal("b", seal({name: b"x"}, SealTo(passphrase=WORDS)), Opener(passphrase=WORDS))


def test_master_keys_are_taken_only_when_they_are_asked_for(tmp_path: Path) -> None:
    for name in (*FILES, "r.example.org.masterkey", "notes.txt"):
        (tmp_path / name).write_text(name)
    assert sorted(key_files(tmp_path, master=False)) == sorted(FILES)
    assert sorted(key_files(tmp_path, master=True)) == sorted([*FILES, "r.example.org.masterkey"])
    assert key_files(tmp_path / "missing", master=False) == {}
    assert PASSPHRASE not in repr(SealTo(passphrase=PASSPHRASE)).replace("passphrase=", "")
