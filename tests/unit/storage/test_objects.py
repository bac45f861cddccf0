"""Deleting many keys: an answer for each, no more taken than are worked on, and an end where nothing answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from include.storage.errors import BadKey, BucketMissing, Forbidden, RequestRejected, StoreError, Unavailable
from include.storage.objects import BATCH, BATCHES_AT_ONCE, OUTAGE, Deletion, in_batches
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused

MANY = 2 * BATCH + 1


class Server:
    """Deletes nothing; ``refuse`` says what it raises for a request."""

    def __init__(self, **refusals: StoreError) -> None:
        self.refusals = refusals
        self.requests: list[int] = []

    def delete(self, keys: Sequence[str]) -> None:
        self.requests.append(len(keys))
        if len(keys) > 1 and "many" in self.refusals:
            raise self.refusals["many"]
        for key in keys:
            if key in self.refusals:
                raise self.refusals[key]


def keys(number: int = MANY) -> Iterator[str]:
    return (f"k{n}" for n in range(number))


def lost(key: str = "") -> Unavailable:
    return Unavailable("no answer", key=key, cause="timeout")


@pytest.mark.parametrize("number", [0, 1, 3, 30, 31, 1000])
def test_every_key_is_in_one_batch(number: int) -> None:
    batches = list(in_batches(keys(number), list, size=3, at_once=2))
    assert [key for batch in batches for key in batch] == list(keys(number))
    assert all(len(batch) == 3 for batch in batches[:-1])


def test_no_more_keys_are_taken_than_are_worked_on() -> None:
    taken, ended, most, lock = 0, 0, 0, threading.Lock()

    def counted() -> Iterator[str]:
        nonlocal taken
        for key in keys(2000):
            taken += 1
            yield key

    def job(batch: Sequence[str]) -> None:
        nonlocal ended, most
        with lock:
            most = max(most, taken - ended)
            ended += len(batch)

    assert len(list(in_batches(counted(), job, size=10, at_once=4))) == 200
    assert most <= 10 * (2 * 4 + 3)


def test_what_a_batch_raises_is_raised_and_the_rest_is_not_begun() -> None:
    begun = []

    def job(batch: Sequence[str]) -> None:
        begun.append(batch)
        raise lost(batch[0])

    with refused(Unavailable, key="k0"):
        list(in_batches(keys(1000), job, size=10, at_once=2))
    assert len(begun) <= 6


def test_one_refused_key_of_a_batch_is_found_among_those_that_are_deleted() -> None:
    server = Server(k7=Forbidden("denied", key="k7"))
    deletion = Deletion(server.delete, bulk=True)
    assert {key: type(refusal) for key, refusal in deletion.run(keys()).items()} == {"k7": Forbidden}
    assert deletion.bulk, "requests for many are not what was refused"
    assert sorted(server.requests, reverse=True)[:2] == [BATCH, BATCH]


def test_a_passing_refusal_does_not_end_requests_for_many() -> None:
    server = Server(many=RequestRejected("internal", key=""))
    deletion = Deletion(server.delete, bulk=True)
    assert deletion.run(keys(10)) == {}
    assert deletion.bulk


def test_requests_for_many_end_where_the_same_keys_are_taken_one_by_one() -> None:
    server = Server(many=Forbidden("denied", key=""))
    deletion = Deletion(server.delete, bulk=True)
    assert deletion.run(keys(10)) == {}
    assert not deletion.bulk
    assert deletion.run(keys(10)) == {}
    assert server.requests == [10] + [1] * 20


def test_bad_keys_are_named_and_never_sent() -> None:
    server = Server()
    assert {key: type(why) for key, why in Deletion(server.delete, bulk=True).run(["a", "../b"]).items()} == {
        "../b": BadKey
    }
    assert server.requests == [1]


def test_without_a_bucket_nothing_is_tried_one_by_one() -> None:
    server = Server(many=BucketMissing("gone", key=""))
    assert set(Deletion(server.delete, bulk=True).run(keys(50))) == set(keys(50))
    assert server.requests == [50]


def test_single_requests_end_with_an_outage() -> None:
    server = Server(**{key: lost(key) for key in keys()})
    assert set(Deletion(server.delete, bulk=False).run(keys())) == set(keys())
    assert len(server.requests) < BATCH, "the rest is not tried"


def test_keys_that_never_get_an_answer_end_nothing_among_those_that_do() -> None:
    silent = {f"k{n}" for n in range(0, MANY, MANY // (2 * OUTAGE))}
    server = Server(**{key: lost(key) for key in silent})
    assert set(Deletion(server.delete, bulk=False).run(keys())) == silent
    assert len(server.requests) == MANY


def test_after_a_lost_request_for_many_the_rest_is_not_tried() -> None:
    server = Server(many=lost())
    assert set(Deletion(server.delete, bulk=True).run(keys(20 * BATCH))) == set(keys(20 * BATCH))
    assert len(server.requests) <= BATCHES_AT_ONCE


def test_a_store_without_a_way_of_its_own_deletes_each_and_names_the_others() -> None:
    def before(verb: str, key: str) -> None:
        if (verb, key) == ("delete", "b"):
            raise Forbidden("denied", key=key)

    store = MemoryStore(before)
    store.objects = dict.fromkeys("abc", b"")
    assert {key: type(why) for key, why in store.delete_each(["a", "b", "c", "d"]).items()} == {"b": Forbidden}
    assert set(store.objects) == {"b"}
