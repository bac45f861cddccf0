"""Lists of condemned objects: in shards, read in part, verified before anything of them is used."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.coordination import condemned
from include.cvmfs.coordination.condemned import (
    SHARDS,
    condemned_among,
    hashes_in,
    key_of,
    read_index,
    read_list,
    read_shard,
    records_of,
    store_list,
    store_shards,
)
from include.cvmfs.errors import FormatError, ObjectDamaged, ObjectMissing
from include.cvmfs.format.hashes import Algorithm, DigestSet, ObjectHash, identity
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused

HASHES = st.builds(
    ObjectHash, st.binary(min_size=20, max_size=20), st.sampled_from(Algorithm), st.sampled_from(["", "P", "C"])
)
SHARD_HEAD, INDEX_HEAD = b"nightshift condemned 1\n", b"nightshift condemned 2\n"


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what another test read."""
    monkeypatch.setattr(condemned, "_cache", condemned._Cache(condemned.CACHE_BYTES))


def in_order(hashes: list[ObjectHash]) -> list[ObjectHash]:
    return sorted(set(hashes), key=lambda one: records_of([one]))


def object_of(first: int, number: int = 0) -> ObjectHash:
    return ObjectHash(bytes([first]) + number.to_bytes(19))


def put(store: MemoryStore, data: bytes) -> str:
    name = hashlib.sha256(data).hexdigest()
    store.objects[key_of(name)] = data
    return name


def index_of(**shards: bytes) -> bytes:
    """An index that gives shard ``s<number>`` such an entry."""
    return INDEX_HEAD + b"".join(shards.get(f"s{number}", bytes(40)) for number in range(SHARDS))


@given(st.lists(HASHES, max_size=30))
def test_a_list_is_read_as_it_was_written(hashes: list[ObjectHash]) -> None:
    store = MemoryStore()
    name = store_list(store, hashes)
    assert list(read_list(store, name)) == in_order(hashes)
    index = read_index(store, name)
    assert index.total == len(set(hashes))
    for number in range(SHARDS):
        mine = [one for one in in_order(hashes) if one.digest[0] == number]
        assert list(hashes_in(read_shard(store, index, number))) == mine
        assert index.counts[number] == len(mine)
    wanted = {identity(one) for one in hashes[::2]}
    assert condemned_among(store, name, DigestSet(wanted)) == wanted
    assert condemned_among(store, name, wanted, range(128, SHARDS)) == {one for one in wanted if one[0] >= 128}


@given(st.lists(HASHES, max_size=30).flatmap(lambda some: st.tuples(st.just(some), st.permutations(some))))
def test_equal_lists_have_one_name_whatever_their_order(lists: tuple[list[ObjectHash], list[ObjectHash]]) -> None:
    one, other = lists
    assert store_list(MemoryStore(), one) == store_list(MemoryStore(), [*other, *other])


def test_the_form_is_that_of_the_document() -> None:
    """docs/formats.md, collection generation."""
    store = MemoryStore()
    one, two = object_of(3), ObjectHash(b"\3" + b"x" * 19, Algorithm.RMD160, "C")
    name = store_list(store, [two, one])
    shard = SHARD_HEAD + one.digest + b"\0\0" + two.digest + b"C\1"
    digest = hashlib.sha256(shard).digest()
    assert store.objects == {
        f".nightshift/condemned/{digest.hex()}": shard,
        f".nightshift/condemned/{name}": index_of(s3=digest + (2).to_bytes(8)),
    }


def test_the_index_is_stored_after_every_shard() -> None:
    written: list[str] = []
    store = MemoryStore(lambda verb, key: written.append(key) if verb == "put" else None)
    name = store_shards(store, ((number, records_of([object_of(number)])) for number in range(SHARDS)))
    assert len(written) == SHARDS + 1
    assert written[-1] == key_of(name)


def test_shards_out_of_order_or_with_records_of_others_are_not_stored() -> None:
    store = MemoryStore()
    for shards in (
        [(2, records_of([object_of(2)])), (1, records_of([object_of(1)]))],
        [(1, records_of([object_of(2)]))],
        [(1, b""), (1, records_of([object_of(1)]))],
        [(256, b"")],
    ):
        with refused(ValueError):
            store_shards(store, shards)
    assert not any(data.startswith(INDEX_HEAD) for data in store.objects.values())


def test_only_shards_are_read_that_the_objects_could_be_in_and_each_once() -> None:
    reads: list[str] = []
    store = MemoryStore()
    name = store_list(store, [object_of(first, number) for first in range(20) for number in range(3)])
    store.before = lambda verb, key: reads.append(key)
    assert condemned_among(store, name, DigestSet([identity(object_of(7, 2)), identity(object_of(99))])) == {
        identity(object_of(7, 2))
    }
    assert len(reads) == 2, "the index and one shard"
    assert condemned_among(store, name, [identity(object_of(7, 1))]) == {identity(object_of(7, 1))}
    assert len(reads) == 2, "both are kept"
    assert condemned_among(store, name, [identity(object_of(8))], range(9, SHARDS)) == frozenset()
    assert len(reads) == 2, "that shard does not count"


def test_what_is_kept_of_shards_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condemned, "_cache", cache := condemned._Cache(20_000))
    store = MemoryStore()
    name = store_list(store, [object_of(first, number) for first in range(9) for number in range(100)])
    assert len(list(read_list(store, name))) == 900
    assert 10_000 < cache._bytes <= 20_000
    assert len(list(read_list(store, name))) == 900


def test_a_list_that_is_absent_cut_or_changed_is_not_believed() -> None:
    store = MemoryStore()
    name = store_list(store, [ObjectHash(bytes(20)), ObjectHash(bytes(19) + b"x")])
    for key, sound in list(store.objects.items()):
        cut = [sound[:-1], sound[:-22], b"", sound[:5], sound[1:]]
        for damaged in (*cut, sound[:-1] + b"\1", sound + b"\0" * 22, sound + sound):
            store.objects[key] = damaged
            with pytest.raises((ObjectDamaged, FormatError)):
                condemned_among(store, name, [bytes(20)])
            with pytest.raises((ObjectDamaged, FormatError)):
                list(read_list(store, name))
        del store.objects[key]
        with pytest.raises(ObjectMissing):
            list(read_list(store, name))
        store.objects[key] = sound
        condemned._cache = condemned._Cache(0)
    assert condemned_among(store, name, [bytes(20)]) == {bytes(20)}


def test_a_list_of_a_commit_before_0_2_0_is_refused_with_the_cure() -> None:
    store, data = MemoryStore(), condemned._HEAD + ONE
    name = hashlib.sha256(data).hexdigest()
    store.put(condemned.key_of(name), data)
    what = "is a list of a commit before Nightshift 0.2.0; end that collection with that commit first"
    with refused(FormatError, detail=f"{condemned.key_of(name)} {what}"):
        read_index(store, name)


ONE, TWO = records_of([object_of(1, 1)]), records_of([object_of(1, 2)])


@pytest.mark.parametrize(
    "records",
    [
        TWO + ONE, ONE + ONE, ONE[:-1] + b"\3", ONE[:-2] + b"c\0", ONE[:-2] + b"\xff\0", records_of([object_of(2)]),
        ONE + records_of([object_of(2)]), ONE + b"\1",
    ],
    ids=["order", "twice", "algorithm", "suffix", "no letter", "another shard", "partly another", "cut"],
)  # fmt: skip
def test_a_shard_that_its_collector_did_not_write_is_refused(records: bytes) -> None:
    """Its hash is right: it was written so."""
    store = MemoryStore()
    shard = put(store, SHARD_HEAD + records)
    count = max(1, len(records) // 22)
    name = put(store, index_of(s1=bytes.fromhex(shard) + count.to_bytes(8)))
    with pytest.raises(FormatError):
        condemned_among(store, name, [object_of(1, 1).digest])


@pytest.mark.parametrize("count", [0, 2, 1 << 25, (1 << 64) - 1])
def test_an_index_that_counts_wrong_is_refused(count: int) -> None:
    store = MemoryStore()
    shard = put(store, SHARD_HEAD + ONE)
    name = put(store, index_of(s1=bytes.fromhex(shard) + count.to_bytes(8)))
    with pytest.raises(FormatError):
        read_shard(store, read_index(store, name), 1)


def test_a_shard_of_another_number_is_refused_also_when_it_is_kept() -> None:
    store = MemoryStore()
    entry = bytes.fromhex(put(store, SHARD_HEAD + ONE)) + (1).to_bytes(8)
    assert list(read_list(store, put(store, index_of(s1=entry)))) == [object_of(1, 1)]
    with pytest.raises(FormatError):
        list(read_list(store, put(store, index_of(s2=entry))))
