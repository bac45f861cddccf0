"""The difference of two revisions is exact, and costs what changed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from include.cvmfs.errors import CatalogError
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.revision.revision import Difference, DifferingEntry, Revision, diff
from tests.fakes.local import DIRECTORY, TREES, LocalRepository, make_folder
from tests.fakes.minirepo import sample
from tests.fakes.refused import refused

State = dict[str, tuple[Any, ...]]


def state(tree: Revision, path: str = "") -> State:
    """All entries, with what does not follow from others, and the names of hard links instead of their numbers."""
    entries = dict(tree.walk(path))
    groups: dict[tuple[str, int], set[str]] = {}
    for here, entry in entries.items():
        if entry.hardlink_group:
            groups.setdefault((here.rpartition("/")[0], entry.hardlink_group), set()).add(entry.name)
    return {
        here: _facts(here, entry, frozenset(groups.get((here.rpartition("/")[0], entry.hardlink_group), ())))
        for here, entry in entries.items()
    }


def _facts(path: str, entry: Dirent, links: frozenset[str]) -> tuple[Any, ...]:
    plain = entry.changed(hardlink_group=0, linkcount=0, nested_root=False)
    return (plain.changed(size=0) if plain.is_directory else plain), links


def applied(before: State, changes: list[DifferingEntry]) -> State:
    after = dict(before)
    for change in changes:
        if change.kind is Difference.REMOVED:
            del after[change.path]
        else:
            assert change.after is not None
            after[change.path] = _facts(change.path, change.after, change.links)
    return after


@pytest.mark.slow
@settings(max_examples=15)
@given(one=TREES, other=TREES)
def test_the_differences_make_one_revision_the_other(
    one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        repository = LocalRepository()
        repository.publish(make_folder(Path(temporary) / "one", one), "/x", tag="one")
        repository.publish(make_folder(Path(temporary) / "other", other), "/x", tag="other")
        opened = repository.opened()
        a, b = opened.at("one"), opened.at("other")
        assert list(diff(a, a)) == list(diff(b, b)) == []
        assert applied(state(a), list(diff(a, b))) == state(b)
        assert applied(state(b), list(diff(b, a))) == state(a)
        assert list(diff(a, b, "/x")) == [change for change in diff(a, b) if change.path.startswith("/x")]


@pytest.fixture
def repository() -> LocalRepository:
    repository = LocalRepository()
    mini = sample(repository.store)
    mini.publish()
    repository.change(lambda edit: edit.add("/first", DIRECTORY), tag="first")
    return repository


def told(repository: LocalRepository, before: str = "first", after: str = "trunk") -> list[str]:
    opened = repository.opened()
    return [str(change) for change in diff(opened.at(before), opened.at(after))]


def test_each_change_names_its_kind(repository: LocalRepository) -> None:
    readme = repository.opened().revision.entry("/readme")

    def change(edit: Any) -> None:
        edit.remove("/first")
        edit.remove("/readme")
        edit.add("/readme", readme.changed(mtime=5, mode=readme.mode | 0o100))
        edit.remove("/sw/app/one")
        edit.symlink("/sw/link", "elsewhere", now=7)
        edit.make_nested("/sw/new", DIRECTORY)

    repository.change(change)
    assert told(repository) == [
        "- /first",
        "~ /readme (mode, mtime)",
        "- /sw/app/one",
        "~ /sw/app/two (links)",
        "~ /sw/link (size, target, mtime)",
        "+ /sw/new",
        "+ /sw/new/.cvmfscatalog",
    ]


def test_another_kind_of_thing_is_one_change_and_what_was_below_it_goes(repository: LocalRepository) -> None:
    readme = repository.opened().revision.entry("/readme")

    def change(edit: Any) -> None:
        edit.remove("/sw/app/lib")
        edit.add("/sw/app/lib", readme)

    repository.change(change)
    assert told(repository) == [
        "~ /sw/app/lib (type)",
        "- /sw/app/lib/code",
        "- /sw/app/lib/deep",
        "- /sw/app/lib/deep/.cvmfscatalog",
        "- /sw/app/lib/deep/data",
    ]


def test_a_chunked_file_differs_by_its_chunks(repository: LocalRepository) -> None:
    opened = repository.opened()
    entry, chunks = opened.revision.entry("/sw/app/big"), opened.revision.chunks("/sw/app/big")
    other = [chunks[0], chunks[1].__class__(1000, 500, chunks[2].hash), chunks[2]]

    def change(edit: Any) -> None:
        edit.remove("/sw/app/big")
        edit.add("/sw/app/big", entry, other)

    repository.change(change)
    assert told(repository) == ["~ /sw/app/big (content)"]


def test_catalogs_that_both_have_are_not_read(repository: LocalRepository) -> None:
    def build(edit: Any) -> None:
        edit.add("/many", DIRECTORY)
        for number in range(50):
            edit.make_nested(f"/many/n{number:02}", DIRECTORY)

    repository.change(build, tag="many")
    repository.change(lambda edit: edit.add("/many/n07/new", DIRECTORY))
    opened = repository.opened()
    before = repository.store.counters.gets
    assert [str(change) for change in diff(opened.at("many"), opened.at("trunk"))] == ["+ /many/n07/new"]
    assert repository.store.counters.gets - before <= 2 + 4  # the tags twice, two roots, two nested catalogs


def test_trees_at_two_places_are_compared_as_if_they_were_at_one(repository: LocalRepository, tmp_path: Path) -> None:
    for name, more in (("one", {"b": b"2"}), ("other", {"c": b"3"})):
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        for file, data in {"a": name.encode(), "sub/same": b"1", **more}.items():
            (folder / file).write_bytes(data)
            os.utime(folder / file, (0, 0))
        for place in (folder / "sub", folder):
            os.utime(place, (0, 0))
        repository.publish(folder, f"/{name}")
    tree = repository.opened().revision
    changes = [(str(change.kind.value), change.path) for change in diff(tree, tree, "/one", moved="/other")]
    assert changes == [("~", "/one/a"), ("-", "/one/b"), ("+", "/one/c")]
    assert list(diff(tree, tree, "/one", moved="/one")) == []


def test_a_path_that_neither_has_is_refused(repository: LocalRepository) -> None:
    opened = repository.opened()
    with refused(CatalogError, path="/nowhere"):
        list(diff(opened.at("first"), opened.at("trunk-previous"), "/nowhere"))


def test_json_names_both_sides(repository: LocalRepository) -> None:
    repository.change(lambda edit: edit.symlink("/sw/link", "b", now=7))
    opened = repository.opened()
    (change,) = diff(opened.at("first"), opened.at("trunk"))
    document = change.as_dict()
    assert document["kind"] == "changed"
    assert (document["before"]["symlink"], document["after"]["symlink"]) == ("app/run", "b")
