"""Opening a repository believes nothing unsigned, and reading one gives verified bytes or says what is damaged."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from include.cvmfs.errors import (
    CatalogError,
    CvmfsError,
    FormatError,
    ObjectDamaged,
    ObjectMissing,
    ReflogError,
    RepositoryError,
    SignatureError,
    TagError,
    WhitelistError,
    WhitelistExpired,
)
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.compression import compress
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.history import Tag
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key
from include.cvmfs.format.reflog import KEY as REFLOG_KEY
from include.cvmfs.format.whitelist import KEY as WHITELIST_KEY
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.cvmfs.revision.trust import OpenFailure, failure_of
from include.storage.errors import NotFound, StoreError, Unavailable
from include.storage.file import FileStore
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, SECONDS, MiniRepository, public_key, sample
from tests.fakes.refused import refused

MANIFEST_KEY = ".cvmfspublished"
ALL_PATHS = [
    "", "/empty", "/readme", "/sw", "/sw/app", "/sw/app/.cvmfscatalog", "/sw/app/big", "/sw/app/lib",
    "/sw/app/lib/code", "/sw/app/lib/deep", "/sw/app/lib/deep/.cvmfscatalog", "/sw/app/lib/deep/data", "/sw/app/one",
    "/sw/app/run", "/sw/app/two", "/sw/link", "/sw/pipe", "/sw/plain",
]  # fmt: skip


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def mini(store: MemoryStore) -> MiniRepository:
    built = sample(store)
    built.publish()
    return built


def opened(store: MemoryStore, **options: object) -> Repository:
    return Repository.open(store, **{"fqrn": FQRN, "public_keys": [public_key()], "now": NOW, **options})


# -- opening


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


def gone(key: str) -> Callable[[MiniRepository, MemoryStore], None]:
    return lambda mini, store: store.objects.pop(key) and None


def other_fields(**fields: object) -> Callable[[MiniRepository, MemoryStore], None]:
    return lambda mini, store: mini.write_manifest(replace(mini.manifest, **fields)) and None


def of_other_root(mini: MiniRepository, store: MemoryStore) -> None:
    other_fields(root_path_md5="0" * 32)(mini, store)


def later_revision(mini: MiniRepository, store: MemoryStore) -> None:
    store.objects[MANIFEST_KEY] = store.objects[MANIFEST_KEY].replace(b"\nS1\n", b"\nS2\n")


def certificate_of_somebody(mini: MiniRepository, store: MemoryStore) -> None:
    somebody = generate_repository_key(FQRN, NOW)
    mini.write_manifest(replace(mini.manifest, certificate=mini.keep(somebody.certificate_pem, CERTIFICATE)))


def signed_by_somebody_with_their_certificate(mini: MiniRepository, store: MemoryStore) -> None:
    from include.cvmfs.format.manifest import sign

    somebody = generate_repository_key(FQRN, NOW)
    draft = replace(mini.manifest, certificate=mini.keep(somebody.certificate_pem, CERTIFICATE))
    store.put(MANIFEST_KEY, sign(draft, somebody.private_key))


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
    "certificate of another key": (certificate_of_somebody, SignatureError, OpenFailure.BAD_SIGNATURE),
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
        signed_by_somebody_with_their_certificate, WhitelistError, OpenFailure.INVALID_CERTIFICATE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DISTRUST)
def test_what_is_not_vouched_for_is_refused_with_the_class_of_the_stock_client(
    mini: MiniRepository, store: MemoryStore, case: str
) -> None:
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


def test_another_name_than_expected_is_refused_and_without_expectation_taken_over(mini: MiniRepository) -> None:
    store = mini.store
    assert isinstance(store, MemoryStore)
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


# -- reading


def test_entries_are_found_across_catalogs(mini: MiniRepository, store: MemoryStore) -> None:
    repository = opened(store)
    assert repository.revision.entry("/sw/app").mountpoint
    assert repository.revision.entry("/sw/app/lib/deep/data").size == 9
    assert repository.revision.lookup("/sw/none") is None
    assert repository.revision.lookup("/none/at/all") is None
    assert repository.revision.lookup("/readme/below") is None
    assert repository.revision.entry("/").is_directory
    assert repository.revision.entry("sw/app/").name == "app"
    assert [entry.name for entry in repository.revision.listing("/sw/app/lib/deep")] == [".cvmfscatalog", "data"]
    assert [entry.name for entry in repository.revision.listing("/")] == ["empty", "readme", "sw"]
    assert repository.revision.catalog_at("/sw/app/lib").path == "/sw/app"
    assert repository.revision.catalog_at("/sw/app/lib/deep").path == "/sw/app/lib/deep"
    deep = repository.revision.nested_at("/sw/app/lib/deep")
    assert deep is not None
    assert deep.hash.suffix == CATALOG
    assert repository.revision.nested_at("/sw/app/lib") is None
    assert repository.revision.nested_at("") is None


@pytest.mark.parametrize("algorithm", Algorithm)
def test_files_are_read_back_whatever_they_are_stored_as(store: MemoryStore, algorithm: Algorithm) -> None:
    sample(store, algorithm).publish()
    repository = opened(store)
    assert repository.revision.read("/readme") == b"hello\n"
    assert repository.revision.read("/sw/plain") == b"stored as it is"
    assert repository.revision.read("/sw/app/big") == b"a" * 1000 + b"b" * 500 + b"c" * 700
    assert repository.revision.read("/sw/app/.cvmfscatalog") == b""
    assert b"".join(repository.revision.stream("/sw/app/big", block=64)) == repository.revision.read("/sw/app/big")
    assert max(map(len, repository.revision.stream("/sw/app/big", block=64))) <= 64


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/sw/link", "symlink to app/run"),
        ("/sw", "not a regular file"),
        ("/none", "no such file"),
        ("/sw/../x", "not a path"),
    ],
)
def test_the_message_says_why_it_cannot_be_read(
    mini: MiniRepository, store: MemoryStore, path: str, words: str
) -> None:
    with pytest.raises(CatalogError, match=words):
        opened(store).revision.read(path)


def test_a_file_is_not_listed(mini: MiniRepository, store: MemoryStore) -> None:
    with refused(CatalogError, path="/readme"):
        opened(store).revision.listing("/readme")


def test_an_external_file_is_refused(store: MemoryStore) -> None:
    mini = MiniRepository(store)
    mini.file("/far", b"elsewhere", external=True)
    mini.build().publish()
    with refused(CatalogError, path="/far"):
        opened(store).revision.read("/far")
    assert [name.suffix for name, _ in opened(store).revision.objects_below()] == [CATALOG]


def test_a_walk_may_start_anywhere_and_gives_parents_first(mini: MiniRepository, store: MemoryStore) -> None:
    repository = opened(store)
    assert [path for path, _ in repository.revision.walk("/sw/app/lib")] == [
        path for path in ALL_PATHS if "/lib" in path
    ]
    assert [path for path, _ in repository.revision.walk("/readme")] == ["/readme"]


def test_the_catalogs_below_a_place_are_listed(mini: MiniRepository, store: MemoryStore) -> None:
    repository = opened(store)
    deep = "/sw/app/lib/deep"
    expected = {"": ["", "/sw/app", deep], "/sw": ["/sw/app", deep], "/sw/app/lib": [deep], deep: [deep], "/empty": []}
    for path, catalogs in expected.items():
        assert [reference.path for reference in repository.revision.catalogs_below(path)] == catalogs


@pytest.mark.parametrize("path", ["", "/sw", "/sw/app", "/sw/app/lib", "/sw/app/lib/deep", "/sw/app/big", "/empty"])
def test_the_objects_of_a_subtree_are_all_that_its_files_and_catalogs_need(
    mini: MiniRepository, store: MemoryStore, path: str
) -> None:
    repository = opened(store)
    needed: dict[ObjectHash, int] = {}
    for here, entry in repository.revision.walk(path):
        if entry.hash:
            needed[entry.hash] = entry.size
        needed |= {chunk.hash: chunk.size for chunk in repository.revision.chunks(here)}
    for reference in repository.revision.catalogs_below(path):
        needed[reference.hash] = reference.size or repository.manifest.root_size
    assert dict(repository.revision.objects_below(path)) == needed
    assert all(name.key in store.objects for name in needed)


def test_catalogs_are_fetched_once(mini: MiniRepository, store: MemoryStore) -> None:
    repository = opened(store)
    list(repository.revision.walk())
    before = store.counters.gets
    list(repository.revision.walk())
    assert repository.revision.lookup("/sw/app/lib/deep/data")
    assert store.counters.gets == before


def test_a_small_memory_is_enough(mini: MiniRepository, store: MemoryStore) -> None:
    manifest = mini.manifest
    assert manifest is not None
    tree = Revision(CatalogCache(store, budget=1), manifest.root, budget=1)
    assert [path for path, _ in tree.walk()] == ALL_PATHS
    assert [path for path in ALL_PATHS * 2 if tree.lookup(path) is None] == []


def test_several_threads_may_read_at_once(mini: MiniRepository, store: MemoryStore) -> None:
    repository = opened(store)
    with ThreadPoolExecutor(8) as pool:
        for walked in pool.map(lambda _: [path for path, _ in repository.revision.walk()], range(32)):
            assert walked == ALL_PATHS
        for content in pool.map(repository.revision.read, ["/sw/app/lib/deep/data"] * 32):
            assert content == b"deep data"


# -- damage


@pytest.mark.parametrize("path", ["/readme", "/sw/plain", "/sw/app/big"])
@pytest.mark.parametrize("spoil", ["changed", "longer", "cut", "empty", "gone"])
def test_damaged_content_is_never_handed_out_whole(
    mini: MiniRepository, store: MemoryStore, path: str, spoil: str
) -> None:
    repository = opened(store)
    name = repository.revision.entry(path).hash or repository.revision.chunks(path)[-1].hash
    data = store.objects.pop(name.key)
    changes = {"changed": data[:-1] + b"?", "longer": data + b"?", "cut": data[:-1], "empty": b""}
    if spoil in changes:
        store.objects[name.key] = changes[spoil]
    with pytest.raises(ObjectMissing if spoil == "gone" else ObjectDamaged) as damage:
        repository.revision.read(path)
    assert damage.value.key == name.key
    assert path in str(damage.value)


def test_content_that_swells_beyond_its_size_is_stopped(store: MemoryStore) -> None:
    mini = MiniRepository(store)
    bomb = compress(bytes(50_000_000))
    name = hash_bytes(bomb)
    store.put(name.key, bomb)
    mini.file("/bomb", b"small")
    mini.entries["/bomb"] = mini.entries["/bomb"].changed(hash=name)
    mini.build().publish()
    pieces: list[bytes] = []
    with refused(ObjectDamaged, key=name.key):
        pieces += opened(store).revision.stream("/bomb")
    assert pieces == [], "nothing is given out before its end was seen"


def test_a_catalog_that_is_missing_or_damaged_is_named(mini: MiniRepository, store: MemoryStore) -> None:
    deep = opened(store).revision.nested_at("/sw/app/lib/deep")
    assert deep is not None
    data = store.objects.pop(deep.hash.key)
    with refused(ObjectMissing, key=deep.hash.key):
        opened(store).revision.read("/sw/app/lib/deep/data")
    store.objects[deep.hash.key] = data + b"x"
    with refused(ObjectDamaged, key=deep.hash.key):
        list(opened(store).revision.walk())


def test_a_catalog_made_for_another_place_is_refused(mini: MiniRepository, store: MemoryStore) -> None:
    mini.damage("/sw/app/lib/deep", "UPDATE properties SET value = '/else' WHERE key = 'root_prefix'").publish()
    with refused(CatalogError, path="/sw/app/lib/deep"):
        opened(store).revision.read("/sw/app/lib/deep/data")


def test_a_mountpoint_without_a_catalog_is_said_and_not_passed_over(mini: MiniRepository, store: MemoryStore) -> None:
    mini.damage("/sw/app", "DELETE FROM nested_catalogs").publish()
    with refused(CatalogError, path="/sw/app/lib/deep"):
        list(opened(store).revision.walk())


# -- tags, reflog, meta info


def test_another_revision_is_read_by_tag_or_hash(mini: MiniRepository, store: MemoryStore) -> None:
    old = mini.manifest
    assert old is not None
    mini.file("/more", b"more")
    mini.build().publish(tags=[Tag("old", old.root, 1, SECONDS, old.root_size)])
    repository = opened(store)
    assert repository.revision.read("/more") == b"more"
    assert {tag.name for tag in repository.tags()} == {"trunk", "old"}
    for revision in ("old", old.root, str(old.root)):
        assert repository.at(revision).lookup("/more") is None
        assert repository.at(revision).read("/readme") == b"hello\n"
    with refused(TagError, name="none"):
        repository.at("none")


def test_the_reflog_is_read_only_if_it_is_the_one_that_the_manifest_names(
    mini: MiniRepository, store: MemoryStore
) -> None:
    repository = opened(store)
    assert repository.reflog().contains(repository.manifest.root)
    store.objects[REFLOG_KEY] += b"x"
    with refused(ReflogError, fqrn=FQRN):
        repository.reflog()
    del store.objects[REFLOG_KEY]
    with refused(ReflogError, fqrn=FQRN):
        repository.reflog()


def test_meta_info_and_history_may_be_absent(mini: MiniRepository, store: MemoryStore) -> None:
    assert opened(store).meta() is not None
    mini.publish(meta=None, history=None)
    repository = opened(store)
    assert repository.meta() is None
    assert repository.history() is None
    assert repository.tags() == []
    with pytest.raises(NotFound):
        store.get("none")
