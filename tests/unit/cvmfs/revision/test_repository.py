"""Reading a repository gives verified bytes or says what is damaged; test_trust.py has what is trusted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from include.cvmfs.errors import CatalogError, ObjectDamaged, ObjectMissing, ReflogError, TagError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import KEY as REFLOG_KEY, Tag
from include.cvmfs.format.hashes import CATALOG, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import compress
from include.cvmfs.revision.revision import Revision
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import ALL_PATHS, FQRN, SECONDS, MiniRepository, opened, sample
from tests.fakes.refused import refused


def test_entries_are_found_across_catalogs(mini: MiniRepository, store: MemoryStore) -> None:
    tree = opened(store).revision
    assert tree.entry("/sw/app").mountpoint
    assert tree.entry("/sw/app/lib/deep/data").size == 9
    assert tree.lookup("/sw/none") is None
    assert tree.lookup("/none/at/all") is None
    assert tree.lookup("/readme/below") is None
    assert tree.entry("/").is_directory
    assert tree.entry("sw/app/").name == "app"
    assert [entry.name for entry in tree.listing("/sw/app/lib/deep")] == [".cvmfscatalog", "data"]
    assert [entry.name for entry in tree.listing("/")] == ["empty", "readme", "sw"]
    assert tree.catalog_at("/sw/app/lib").path == "/sw/app"
    assert tree.catalog_at("/sw/app/lib/deep").path == "/sw/app/lib/deep"
    deep = tree.nested_at("/sw/app/lib/deep")
    assert deep is not None
    assert deep.hash.suffix == CATALOG
    assert tree.nested_at("/sw/app/lib") is None
    assert tree.nested_at("") is None


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
def test_the_message_says_why_a_path_is_not_read(
    mini: MiniRepository, store: MemoryStore, path: str, words: str
) -> None:
    with pytest.raises(CatalogError, match=words):
        opened(store).revision.read(path)
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
def test_a_subtree_has_the_objects_of_its_files_and_catalogs(
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
def test_damaged_content_is_never_read_whole(mini: MiniRepository, store: MemoryStore, path: str, spoil: str) -> None:
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


@pytest.mark.parametrize(
    ("catalog", "damage"),
    [
        ("/sw/app/lib/deep", "UPDATE properties SET value = '/else' WHERE key = 'root_prefix'"),
        ("/sw/app", "DELETE FROM nested_catalogs"),
    ],
    ids=["of another place", "not registered"],
)
def test_a_nested_catalog_of_another_place_is_refused(
    mini: MiniRepository, store: MemoryStore, catalog: str, damage: str
) -> None:
    mini.damage(catalog, damage).publish()
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


def test_only_the_reflog_that_the_manifest_names_is_read(mini: MiniRepository, store: MemoryStore) -> None:
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
