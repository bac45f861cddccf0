"""Signed letters and keys for `readers.py`: examples, sums and signatures made again, and reading them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from include.cvmfs.check.check import check
from include.cvmfs.format import manifest as manifests, whitelist as whitelists
from include.cvmfs.format.hashes import Algorithm, hash_bytes
from include.cvmfs.format.keys import (
    GatewayKey,
    Scheme,
    fingerprint,
    load_gateway_key,
    load_private_key,
    parse_certificate,
    public_key_of,
    sign_letter,
)
from include.cvmfs.format.whitelist import Whitelist
from include.cvmfs.revision.repository import Repository
from tests.fakes.minirepo import FQRN, NOW, master_key, public_key, signer
from tests.fuzz.databases import a_copy


def _lines(data: bytes) -> bytes:
    return data.partition(b"--\n")[0]


def sum_again(data: bytes) -> bytes:
    letter, _, rest = data.partition(b"--\n")
    return letter + b"--\n" + str(hash_bytes(letter)).encode() + b"\n" + rest.partition(b"\n")[2]


def sign_manifest(data: bytes) -> bytes:
    return sign_letter(_lines(data), signer().private_key, Scheme.SHA1_DIGEST_INFO)


def sign_whitelist(data: bytes) -> bytes:
    return sign_letter(_lines(data), master_key(), Scheme.NO_DIGEST_INFO)


def read_manifest(data: bytes) -> None:
    store = a_copy()
    store.objects[manifests.KEY] = data
    repository = Repository.open(store, fqrn=FQRN, public_keys=[public_key()], now=NOW)
    assert repository.verified
    repository.tags()
    repository.meta()
    check(repository, quick=True, now=NOW)


def read_whitelist(data: bytes) -> None:
    store = a_copy()
    store.objects[whitelists.KEY] = data
    Repository.open(store, fqrn=FQRN, public_keys=[public_key()], now=NOW)
    Whitelist.parse(data).whitelist.letter()


def read_certificate(data: bytes) -> None:
    certificate = parse_certificate(data)
    fingerprint(certificate, Algorithm.SHAKE128)
    public_key_of(certificate)


def private_keys() -> list[bytes]:
    from include.cvmfs.format.keys import KeyFile, save_master

    with tempfile.TemporaryDirectory() as place:
        save_master(Path(place), FQRN, master_key())
        return [KeyFile.MASTER.path(Path(place), FQRN).read_bytes()]


def read_private_key(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "key"
        path.write_bytes(data)
        load_private_key(path)


def read_gateway_key(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "key"
        path.write_bytes(data)
        key: GatewayKey = load_gateway_key(path)
        assert GatewayKey.parse(key.format()) == key
