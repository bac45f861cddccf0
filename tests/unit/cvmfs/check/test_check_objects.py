"""The check names data objects that are missing, cut or wrong, with a path that needs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.check.findings import Subject
from include.cvmfs.format.objects import compress
from include.storage.errors import Forbidden, Unavailable, Unsupported
from tests.fakes.checks import checked, key_of, places, set_row
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import MiniRepository, opened


def unlisted(store: MemoryStore) -> None:
    """Only single objects can be asked for, as over HTTP."""

    def refuse(prefix: str = "") -> None:
        raise Unsupported("read-only", key=prefix)

    store.list = refuse  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("listing", [True, False])
def test_missing_objects_are_named_once(mini: MiniRepository, store: MemoryStore, listing: bool) -> None:
    mini.publish()
    chunk = opened(store).revision.chunks("/sw/app/big")[1].hash.key
    for key in (key_of(mini, "/sw/app/one"), key_of(mini, "/sw/app/lib/deep/data"), chunk):
        del store.objects[key]
    if not listing:
        unlisted(store)
    report = checked(mini)
    paths = {path for subject, path in places(report) if subject is Subject.OBJECT}
    assert paths - {"/sw/app/one", "/sw/app/two"} == {"/sw/app/lib/deep/data", "/sw/app/big"}
    assert report.problem_count == 3
    assert any(chunk in problem.what for problem in report.problems)
    assert checked(mini, quick=True).ok
    assert checked(mini, data_objects=False).ok


def test_each_object_is_asked_for_once(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish()
    unlisted(store)
    before = store.counters.heads
    report = checked(mini)
    tags = 1
    assert store.counters.heads - before == report.objects + tags


@pytest.mark.parametrize("listing", [True, False])
def test_a_cut_object_is_found_unread(mini: MiniRepository, store: MemoryStore, listing: bool) -> None:
    mini.publish()
    store.objects[key_of(mini, "/readme")] = b""
    store.objects[key_of(mini, "/sw/plain")] = b"stored as"
    if not listing:
        unlisted(store)
    assert places(checked(mini)) == {(Subject.OBJECT, "/readme"), (Subject.OBJECT, "/sw/plain")}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1] + b"?",
        lambda data: data + b"?",
        lambda data: b"",
        lambda data: compress(b"other content"),
    ],
)
def test_wrong_bytes_are_found(mini: MiniRepository, store: MemoryStore, spoil: Callable[[bytes], bytes]) -> None:
    mini.publish()
    key = key_of(mini, "/readme")
    store.objects[key] = spoil(store.objects[key])
    assert places(checked(mini, contents=True)) == {(Subject.OBJECT, "/readme")}


def test_a_size_that_is_not_that_of_the_content_is_found_when_contents_are_read(mini: MiniRepository) -> None:
    size = "UPDATE statistics SET value = value + 1 WHERE counter = 'self_file_size'"
    mini.damage("", *set_row("/readme", "size = 7")).damage("", size).publish()
    assert checked(mini).ok
    assert places(checked(mini, contents=True)) == {(Subject.OBJECT, "/readme")}


def test_an_external_file_needs_no_object(store: MemoryStore) -> None:
    mini = MiniRepository(store)
    name = mini.file("/far", b"elsewhere", external=True)
    mini.build().publish()
    del store.objects[name.key]
    report = checked(mini)
    assert report.ok
    assert report.objects == 0


def test_an_object_that_may_not_be_read_is_a_problem(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish()
    unlisted(store)
    secret = key_of(mini, "/readme")

    def refuse(verb: str, key: str) -> None:
        if key == secret:
            raise Forbidden("no", key=key)

    store.before = refuse
    assert places(checked(mini)) == {(Subject.OBJECT, "/readme")}
    assert places(checked(mini, contents=True)) == {(Subject.OBJECT, "/readme")}


def test_a_store_that_no_longer_answers_is_an_error_and_no_verdict(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish()
    repository = opened(store)

    def fail(verb: str, key: str) -> None:
        raise Unavailable("gone", key=key, cause="connection")

    store.before = fail
    with pytest.raises(Unavailable):
        check(repository)
