"""Nothing is signed on top of a manifest without a trusted signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.cvmfs.commit.commit import MANIFEST_KEY, fence, read_head
from include.cvmfs.commit.create import WHITELIST_KEY, create_repository
from include.cvmfs.commit.metadata_objects import store_compressed
from include.cvmfs.errors import SignatureError
from include.cvmfs.format.hashes import CERTIFICATE
from include.cvmfs.format.keys import Signer, fingerprint, format_public_key, generate_master, generate_repository_key
from include.cvmfs.format.manifest import Manifest, sign
from include.cvmfs.format.whitelist import Whitelist
from include.cvmfs.format.whitelist import sign as sign_whitelist
from include.cvmfs.revision.repository import ManifestVerifier
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused

FQRN = "r.example.org"
NOW = datetime.now(UTC)
MASTER, OTHER_MASTER = generate_master(), generate_master()
OURS, OTHERS = (generate_repository_key(FQRN, NOW) for _ in range(2))
PUBLIC = format_public_key(MASTER.public_key())


def repository(signer: Signer = OURS) -> MemoryStore:
    store = MemoryStore()
    create_repository(store, FQRN, master=MASTER, signer=signer, now=NOW)
    return store


def signed_by(store: MemoryStore, signer: Signer, **changes: object) -> None:
    """Sign the manifest of the store by another key."""
    manifest = Manifest.parse(store.objects[MANIFEST_KEY]).manifest
    certificate = store_compressed(store, signer.certificate_pem, manifest.root, CERTIFICATE).hash
    changed = replace(manifest, certificate=certificate, **changes)  # type: ignore[arg-type]
    store.objects[MANIFEST_KEY] = sign(changed, signer.private_key)


def masters(*pems: bytes) -> ManifestVerifier:
    def keys() -> Sequence[bytes]:
        return pems

    return ManifestVerifier(OURS, keys)


def test_our_own_manifest_costs_no_request_beyond_its_own() -> None:
    store = repository()
    before = store.counters.gets
    assert read_head(store, FQRN, ManifestVerifier(OURS)).manifest.revision == 0
    assert store.counters.gets == before + 1


FORGED: dict[str, Callable[[bytes], bytes]] = {
    "a changed line": lambda data: data.replace(b"\nS0\n", b"\nS7\n"),
    "our certificate, another signature": lambda data: sign(
        replace(Manifest.parse(data).manifest, revision=9), OTHERS.private_key
    ),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_manifest_without_our_signature_is_refused(forge: Callable[[bytes], bytes]) -> None:
    store = repository()
    store.objects[MANIFEST_KEY] = forge(store.objects[MANIFEST_KEY])
    with refused(SignatureError, what="manifest"):
        read_head(store, FQRN, ManifestVerifier(OURS))


def test_a_foreign_manifest_is_refused() -> None:
    store = repository()
    signed_by(store, OTHERS, revision=9)
    with refused(SignatureError, what="manifest"):
        read_head(store, FQRN, ManifestVerifier(OURS))
    with refused(SignatureError, what="manifest"):
        read_head(store, FQRN, masters(PUBLIC))
    with pytest.raises(SignatureError):
        fence(store, FQRN, signer=OURS, now=int(NOW.timestamp()))


def test_a_replaced_key_is_believed_when_the_masters_whitelist_lists_it() -> None:
    store = repository(OTHERS)
    voucher = masters(PUBLIC)
    assert read_head(store, FQRN, voucher).manifest.revision == 0
    before = store.counters.gets
    read_head(store, FQRN, voucher)
    assert store.counters.gets == before + 1, "a certificate is looked into once"
    with pytest.raises(SignatureError):
        read_head(store, FQRN, masters(format_public_key(OTHER_MASTER.public_key())))


def test_a_whitelist_that_ran_out_vouches_for_no_key() -> None:
    store = repository(OTHERS)
    listed = (fingerprint(OTHERS.certificate_pem),)
    past = Whitelist(FQRN, NOW - timedelta(days=60), NOW - timedelta(days=30), listed)
    store.objects[WHITELIST_KEY] = sign_whitelist(past, MASTER)
    with refused(SignatureError, what="manifest"):
        read_head(store, FQRN, masters(PUBLIC))


def test_a_fence_makes_no_revision_and_stops_earlier_readers() -> None:
    store = repository()
    before = read_head(store, FQRN)
    after = fence(store, FQRN, signer=OURS, now=int(NOW.timestamp()))
    assert after.version != before.version
    assert (after.manifest.revision, after.manifest.root) == (before.manifest.revision, before.manifest.root)
    assert after.manifest.timestamp > before.manifest.timestamp
    assert read_head(store, FQRN, ManifestVerifier(OURS)) == after
