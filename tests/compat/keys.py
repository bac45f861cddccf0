"""The keys of the corpus. They protect nothing: they are public, and made only so that signatures can be compared."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from include.cvmfs.format.keys import (
    KeyFile,
    Signer,
    generate_master,
    generate_repository_key,
    load_master,
    load_signer,
)
from include.cvmfs.format.keys import save_master as save_master_key
from include.cvmfs.format.keys import save_signer as save_repository_key
from tests.compat.corpus import keys_folder

FQRN = "compat.example.org"
BUILDER = "builder"
NOW = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)


def record(folder: Path) -> None:
    """Make the keys of a new corpus."""
    save_master_key(folder, FQRN, generate_master())
    save_repository_key(folder, FQRN, generate_repository_key(FQRN, NOW))
    builder = Ed25519PrivateKey.generate()
    private = builder.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = builder.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / f"{BUILDER}.key").write_bytes(private)
    (folder / f"{BUILDER}.pem").write_bytes(public)


@cache
def master() -> RSAPrivateKey:
    return load_master(keys_folder(), FQRN)


@cache
def signer() -> Signer:
    return load_signer(keys_folder(), FQRN)


@cache
def builder() -> Ed25519PrivateKey:
    key = serialization.load_pem_private_key((keys_folder() / f"{BUILDER}.key").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def public_key() -> bytes:
    """The master key's public half, PEM."""
    return KeyFile.PUBLIC.path(keys_folder(), FQRN).read_bytes()
