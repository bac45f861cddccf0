"""The keys that sign for the process which makes revisions: for whom, and with which certificate."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, ObjectHash, hash_bytes
from include.cvmfs.format.keys import Signer, generate_repository_key
from include.cvmfs.format.manifest import Manifest, verify
from include.cvmfs.format.objects import compress
from include.gateway.service.commits.process import Signers
from include.gateway.service.config import ConfigError, RepositoryConfig
from tests.fakes.memorystore import MemoryStore

NAME, OTHER = "a.example.org", "b.example.org"
NOW = datetime(2026, 11, 22, tzinfo=UTC)
KEYS = {name: generate_repository_key(name, NOW) for name in (NAME, OTHER, "new")}


def config(signer: Signer) -> RepositoryConfig:
    return RepositoryConfig(MemoryStore, lambda: signer)


def manifest(signer: Signer, name: str = NAME) -> Manifest:
    certificate = hash_bytes(compress(signer.certificate_pem), suffix=CERTIFICATE)
    root = ObjectHash(bytes(range(20)), suffix=CATALOG)
    return Manifest(root=root, root_size=1, revision=1, fqrn=name, certificate=certificate)


@pytest.fixture
def signers() -> Signers:
    signers = Signers({name: config(KEYS[name]) for name in (NAME, OTHER)})
    for name in (NAME, OTHER):
        assert signers.certificate(name) == (KEYS[name].certificate_pem, None)
    return signers


def test_a_manifest_is_signed_with_the_key_of_its_certificate(signers: Signers) -> None:
    signed = Manifest.parse(signers.sign(NAME, manifest(KEYS[NAME]).letter()))
    verify(signed, KEYS[NAME].certificate_pem, fqrn=NAME)


def test_a_commit_that_has_begun_ends_with_the_certificate_it_began_with(signers: Signers) -> None:
    signers.repositories = {NAME: config(KEYS["new"])}
    assert signers.certificate(NAME) == (KEYS["new"].certificate_pem, None)
    for signer in (KEYS[NAME], KEYS["new"]):
        verify(Manifest.parse(signers.sign(NAME, manifest(signer).letter())), signer.certificate_pem)


@pytest.mark.parametrize(
    "asked",
    [
        (NAME, manifest(KEYS[OTHER], OTHER)),
        (OTHER, manifest(KEYS[NAME])),
        (NAME, manifest(KEYS[OTHER])),
        (NAME, manifest(KEYS["new"])),
        (NAME, replace(manifest(KEYS[NAME]), certificate=None)),
    ],
)
def test_no_other_manifest_is_signed(signers: Signers, asked: tuple[str, Manifest]) -> None:
    repository, draft = asked
    with pytest.raises(ConfigError):
        signers.sign(repository, draft.letter())


def test_nothing_but_a_manifest_is_signed(signers: Signers) -> None:
    with pytest.raises(FormatError):
        signers.sign(NAME, b"20261122000000\nE20271122000000\n")


def test_a_repository_that_is_not_served_has_no_certificate(signers: Signers) -> None:
    signers.repositories = {}
    with pytest.raises(ConfigError):
        signers.certificate(NAME)
