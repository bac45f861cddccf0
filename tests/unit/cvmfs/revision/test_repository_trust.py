"""Opening a repository believes nothing unsigned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.cvmfs.commit.commit import MANIFEST_KEY, fence, read_head
from include.cvmfs.commit.create import WHITELIST_KEY, create_repository
from include.cvmfs.commit.metadata_objects import store_compressed
from include.cvmfs.errors import (
    CvmfsError,
    FormatError,
    ObjectDamaged,
    ObjectMissing,
    RepositoryError,
    SignatureError,
    WhitelistError,
    WhitelistExpired,
)
from include.cvmfs.format.hashes import CERTIFICATE, Algorithm
from include.cvmfs.format.keys import Signer, fingerprint, format_public_key, generate_master, generate_repository_key
from include.cvmfs.format.manifest import Manifest, sign
from include.cvmfs.format.whitelist import Whitelist, sign as sign_whitelist
from include.cvmfs.revision.repository import ManifestVerifier, OpenFailure, Repository, failure_of
from include.storage.errors import StoreError, Unavailable
from include.storage.file import FileStore
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import ALL_PATHS, FQRN, NOW, SECONDS, MiniRepository, opened, public_key, sample
from tests.fakes.refused import refused


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_signed_repository_is_opened_and_verified(store: MemoryStore, algorithm: Algorithm) -> None:
    sample(store, algorithm).publish()
    repository = opened(store)
    assert repository.verified
    assert repository.fqrn == FQRN
    assert repository.manifest.revision == 1
    assert [path for path, _ in repository.revision.walk()] == ALL_PATHS


def test_a_folder_may_be_opened_without_a_key_and_says_that_it_is_not_verified(tmp_path: Path) -> None:
    sample(FileStore(tmp_path)).publish()
    repository = Repository.open(tmp_path.as_uri())
    assert not repository.verified
    assert repository.revision.read("/readme") == b"hello\n"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x", "https://127.0.0.1:1/x", "s3://bucket/x", "HTTP://127.0.0.1:1/x"]
)
def test_what_is_not_local_is_never_opened_without_a_key(url: str) -> None:
    with refused(SignatureError, what="manifest"):
        Repository.open(url)


def test_any_one_of_several_keys_will_do(mini: MiniRepository, store: MemoryStore) -> None:
    other = format_public_key(generate_master().public_key())
    assert opened(store, public_keys=[other, public_key()]).verified
    assert opened(store, public_keys=[other + public_key()]).verified
    with pytest.raises(SignatureError):
        opened(store, public_keys=[other])


def flipped(key: str, place: int) -> Callable[[MiniRepository, MemoryStore], None]:
    def change(mini: MiniRepository, store: MemoryStore) -> None:
        data = bytearray(store.objects[key])
        data[place] ^= 1
        store.objects[key] = bytes(data)

    return change


def gone(key: str) -> Callable[[MiniRepository, MemoryStore], object]:
    return lambda mini, store: store.objects.pop(key)


def other_fields(**fields: object) -> Callable[[MiniRepository, MemoryStore], object]:
    return lambda mini, store: mini.write_manifest(replace(mini.manifest, **fields))


def of_other_root(mini: MiniRepository, store: MemoryStore) -> None:
    other_fields(root_path_md5="0" * 32)(mini, store)


def later_revision(mini: MiniRepository, store: MemoryStore) -> None:
    store.objects[MANIFEST_KEY] = store.objects[MANIFEST_KEY].replace(b"\nS1\n", b"\nS2\n")


def certificate_of_another(mini: MiniRepository, store: MemoryStore) -> None:
    another = generate_repository_key(FQRN, NOW)
    mini.write_manifest(replace(mini.manifest, certificate=mini.keep(another.certificate_pem, CERTIFICATE)))


def signed_by_another_with_their_certificate(mini: MiniRepository, store: MemoryStore) -> None:
    another = generate_repository_key(FQRN, NOW)
    draft = replace(mini.manifest, certificate=mini.keep(another.certificate_pem, CERTIFICATE))
    store.put(MANIFEST_KEY, sign(draft, another.private_key))


def certificate_object(change: Callable[[bytes], bytes | None]) -> Callable[[MiniRepository, MemoryStore], None]:
    def apply(mini: MiniRepository, store: MemoryStore) -> None:
        assert mini.manifest is not None
        assert mini.manifest.certificate is not None
        key = mini.manifest.certificate.key
        changed = change(store.objects.pop(key))
        if changed is not None:
            store.objects[key] = changed

    return apply


DISTRUST = {
    "no manifest": (gone(MANIFEST_KEY), RepositoryError, OpenFailure.DOWNLOAD),
    "empty manifest": (lambda mini, store: store.put(MANIFEST_KEY, b""), FormatError, OpenFailure.INCOMPLETE),
    "not text": (lambda mini, store: store.put(MANIFEST_KEY, bytes(range(256))), FormatError, OpenFailure.INCOMPLETE),
    "cut manifest": (
        lambda mini, store: store.put(MANIFEST_KEY, store.objects[MANIFEST_KEY][:80]),
        FormatError, OpenFailure.INCOMPLETE,
    ),
    "other name": (other_fields(fqrn="other.example.org"), RepositoryError, OpenFailure.NAME_MISMATCH),
    "no name": (other_fields(fqrn=""), RepositoryError, OpenFailure.NAME_MISMATCH),
    "other root path": (of_other_root, FormatError, OpenFailure.ROOT_PATH_MISMATCH),
    "no certificate": (other_fields(certificate=None), RepositoryError, OpenFailure.BAD_CERTIFICATE),
    "certificate missing": (certificate_object(lambda data: None), ObjectMissing, OpenFailure.BAD_CERTIFICATE),
    "certificate damaged": (certificate_object(lambda data: data + b"x"), ObjectDamaged, OpenFailure.BAD_CERTIFICATE),
    "letter changed": (later_revision, SignatureError, OpenFailure.BAD_SIGNATURE),
    "signature changed": (flipped(MANIFEST_KEY, -1), SignatureError, OpenFailure.BAD_SIGNATURE),
    "signature longer": (
        lambda mini, store: store.put(MANIFEST_KEY, store.objects[MANIFEST_KEY] + b"x"),
        SignatureError, OpenFailure.BAD_SIGNATURE,
    ),
    "certificate of another key": (certificate_of_another, SignatureError, OpenFailure.BAD_SIGNATURE),
    "whitelist missing": (gone(WHITELIST_KEY), RepositoryError, OpenFailure.BAD_WHITELIST),
    "whitelist cut": (
        lambda mini, store: store.put(WHITELIST_KEY, store.objects[WHITELIST_KEY][:50]),
        FormatError, OpenFailure.BAD_WHITELIST,
    ),
    "whitelist letter changed": (flipped(WHITELIST_KEY, 3), SignatureError, OpenFailure.BAD_WHITELIST),
    "whitelist signature changed": (flipped(WHITELIST_KEY, -1), SignatureError, OpenFailure.BAD_WHITELIST),
    "whitelist of another": (
        lambda mini, store: mini.write_whitelist("other.example.org"), WhitelistError, OpenFailure.BAD_WHITELIST,
    ),
    "whitelist expired": (
        lambda mini, store: mini.write_whitelist(valid=timedelta(0)), WhitelistExpired, OpenFailure.BAD_WHITELIST,
    ),
    "certificate not listed": (
        signed_by_another_with_their_certificate, WhitelistError, OpenFailure.INVALID_CERTIFICATE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DISTRUST)
def test_distrust_has_the_class_of_the_stock_client(mini: MiniRepository, store: MemoryStore, case: str) -> None:
    change, error, failure = DISTRUST[case]
    change(mini, store)
    with pytest.raises(error) as refused:
        opened(store)
    assert type(refused.value) is error
    assert failure_of(refused.value) is failure


def test_no_changed_byte_of_the_manifest_is_ever_accepted(mini: MiniRepository, store: MemoryStore) -> None:
    data = store.objects[MANIFEST_KEY]
    for place in range(len(data)):
        store.objects[MANIFEST_KEY] = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises((CvmfsError, StoreError)):
            opened(store)


def test_a_name_other_than_expected_is_refused(mini: MiniRepository, store: MemoryStore) -> None:
    assert opened(store, fqrn=None).fqrn == FQRN
    with refused(RepositoryError, fqrn="other.example.org"):
        opened(store, fqrn="other.example.org")


def test_nothing_older_than_what_was_seen_is_accepted(mini: MiniRepository, store: MemoryStore) -> None:
    assert opened(store, min_revision=1, min_timestamp=SECONDS)
    for hint in ({"min_revision": 2}, {"min_timestamp": SECONDS + 1}):
        with pytest.raises(RepositoryError) as refused:
            opened(store, **hint)
        assert failure_of(refused.value) is OpenFailure.OUTDATED


def test_an_unreachable_store_is_a_failed_download(mini: MiniRepository, store: MemoryStore) -> None:
    def fail(verb: str, key: str) -> None:
        raise Unavailable("gone", key=key, cause="connection")

    store.before = fail
    with pytest.raises(Unavailable) as refused:
        opened(store)
    assert failure_of(refused.value) is OpenFailure.DOWNLOAD
    assert str(failure_of(refused.value)) == "1 - failed to download"
    assert failure_of(ValueError()) is OpenFailure.UNKNOWN


# -- nothing is signed on top of a manifest without a trusted signature


TODAY = datetime.now(UTC)
MASTER, OTHER_MASTER = generate_master(), generate_master()
OURS, OTHERS = (generate_repository_key(FQRN, TODAY) for _ in range(2))
PUBLIC = format_public_key(MASTER.public_key())


def repository(signer: Signer = OURS) -> MemoryStore:
    store = MemoryStore()
    create_repository(store, FQRN, master=MASTER, signer=signer, now=TODAY)
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
        fence(store, FQRN, signer=OURS, now=int(TODAY.timestamp()))


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
    past = Whitelist(FQRN, TODAY - timedelta(days=60), TODAY - timedelta(days=30), listed)
    store.objects[WHITELIST_KEY] = sign_whitelist(past, MASTER)
    with refused(SignatureError, what="manifest"):
        read_head(store, FQRN, masters(PUBLIC))


def test_a_fence_makes_no_revision_and_stops_earlier_readers() -> None:
    store = repository()
    before = read_head(store, FQRN)
    after = fence(store, FQRN, signer=OURS, now=int(TODAY.timestamp()))
    assert after.version != before.version
    assert (after.manifest.revision, after.manifest.root) == (before.manifest.revision, before.manifest.root)
    assert after.manifest.timestamp > before.manifest.timestamp
    assert read_head(store, FQRN, ManifestVerifier(OURS)) == after
