"""A moved tree is the same tree at another place; its catalogs are rewritten, and no data object is touched."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.group import rebase
from include.cvmfs.errors import DestinationError
from include.cvmfs.format.catalog import PackedCatalog
from include.cvmfs.format.layout import Layout
from include.cvmfs.revision.revision import Revision
from tests.fakes.local import DIRECTORY, TREES, LocalRepository, make_folder
from tests.fakes.minirepo import sample
from tests.fakes.refused import refused

Facts = dict[str, tuple[Any, ...]]


def below(tree: Revision, top: str) -> Facts:
    """Entries and chunks below a path, relative to it."""
    return {
        path[len(top) :]: (
            entry.changed(name="" if path == top else entry.name, hardlink_group=bool(entry.hardlink_group)),
            [(piece.offset, piece.hash) for piece in tree.chunks(path)],
        )
        for path, entry in tree.walk(top)
    }


@pytest.mark.slow
@settings(max_examples=12)
@given(nodes=TREES, target=st.sampled_from(["/a/there", "/b/c/there", "/nest/there", "/there", "/a/x2"]))
def test_a_move_there_and_back_gives_the_same_tree(nodes: dict[str, dict[str, Any]], target: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        repository = LocalRepository()
        repository.publish(make_folder(Path(temporary) / "tree", nodes), "/a/x")

        def frame(edit: Edit) -> None:
            edit.add("/b", DIRECTORY)
            edit.add("/b/c", DIRECTORY)
            edit.make_nested("/nest", DIRECTORY)

        repository.change(frame)
        before, statistics = below(repository.opened().revision, ""), repository.statistics()
        tree = below(repository.opened().revision, "/a/x")
        objects = {key for key in repository.store.objects if not key.endswith("C")}
        repository.change(lambda edit: edit.move("/a/x", target))
        assert repository.problems() == []
        assert below(repository.opened().revision, target) == tree
        assert repository.opened().revision.lookup("/a/x") is None
        repository.change(lambda edit: edit.move(target, "/a/x"))
        assert repository.problems() == []
        assert below(repository.opened().revision, "") == before
        assert repository.statistics() == statistics
        gone = {key for key in repository.store.objects if key.startswith("data/") and key[-1] not in "CH"} - objects
        assert gone == set()


@pytest.fixture
def repository() -> LocalRepository:
    repository = LocalRepository()
    mini = sample(repository.store)
    mini.publish()
    return repository


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("/sw/app", "/sw/other"), ("/sw/app", "/empty/app"), ("/sw/app/lib", "/sw/lib"),
        ("/sw/app/lib", "/empty/lib"), ("/sw/app/lib/deep", "/sw/app/deep"), ("/sw", "/empty/sw"),
        ("/sw/app/big", "/sw/big"), ("/sw/link", "/sw/app/lib/deep/link"), ("/sw/pipe", "/pipe"),
    ],
)  # fmt: skip
def test_everything_can_be_moved_everywhere(repository: LocalRepository, source: str, target: str) -> None:
    before, tree = below(repository.opened().revision, ""), below(repository.opened().revision, source)
    lease = next(p for p in ("/sw/app", "/sw", "") if source.startswith(f"{p}/") and target.startswith(f"{p}/"))
    repository.change(lambda edit: edit.move(source, target), lease=lease)
    assert repository.problems() == []
    assert below(repository.opened().revision, target) == tree
    repository.change(lambda edit: edit.move(target, source), lease=lease)
    assert repository.problems() == []
    assert below(repository.opened().revision, "") == before


def test_a_name_keeps_its_links_within_its_directory_only(repository: LocalRepository) -> None:
    repository.change(lambda edit: edit.move("/sw/app/one", "/sw/app/three"), lease="/sw/app")
    three, two = (repository.opened().revision.entry(f"/sw/app/{name}") for name in ("three", "two"))
    assert repository.problems() == []
    assert three.hardlink_group == two.hardlink_group != 0
    repository.change(lambda edit: edit.move("/sw/app/three", "/sw/one"))
    opened = repository.opened()
    assert repository.problems() == []
    for path in ("/sw/one", "/sw/app/two"):
        assert (opened.revision.entry(path).linkcount, opened.revision.entry(path).hardlink_group) == (1, 0)
    assert opened.revision.read("/sw/one") == opened.revision.read("/sw/app/two") == b"shared"


def test_what_was_changed_in_the_same_edit_moves_along(repository: LocalRepository) -> None:
    def change(edit: Edit) -> None:
        edit.add("/sw/app/lib/deep/new", DIRECTORY)
        edit.make_nested("/sw/app/fresh", DIRECTORY)
        edit.move("/sw/app", "/empty/app")
        edit.remove("/empty/app/run")
        edit.move("/empty/app/lib/deep", "/deep")

    repository.change(change)
    assert repository.problems() == []
    opened = repository.opened()
    assert opened.revision.entry("/deep/new").is_directory
    assert opened.revision.nested_at("/empty/app/fresh") is not None
    assert opened.revision.lookup("/empty/app/run") is None


@pytest.mark.parametrize(
    ("source", "target", "named"),
    [
        ("", "/sw/x", ""), ("/nowhere", "/x", "/nowhere"), ("/sw", "/sw/app/x", "/sw/app/x"), ("/sw", "/sw", "/sw"),
        ("/readme", "/sw", "/sw"), ("/readme", "/no/where", "/no/where"), ("/readme", "/sw/plain/x", "/sw/plain/x"),
    ],
)  # fmt: skip
def test_what_cannot_be_moved_is_refused(repository: LocalRepository, source: str, target: str, named: str) -> None:
    with refused(DestinationError, path=named):
        repository.change(lambda edit: edit.move(source, target))


def test_a_link_is_made_replaced_and_left_alone(repository: LocalRepository) -> None:
    done: list[bool] = []

    def link(target: str) -> Any:
        return lambda edit: done.append(edit.symlink("/sw/latest", target, now=9, owner=(3, 4)))

    for target in ("a", "b", "b"):
        repository.change(link(target))
    assert done == [True, True, False]
    entry = repository.opened().revision.entry("/sw/latest")
    assert (entry.symlink, entry.mtime, entry.uid, entry.gid) == ("b", 9, 3, 4)
    assert repository.problems() == []
    with refused(DestinationError, path="/sw/app"):
        repository.change(lambda edit: edit.symlink("/sw/app", "x", now=1))


# -- a tree at a second place


@settings(max_examples=8)
@given(nodes=TREES, target=st.sampled_from(["/a/there", "/b/there", "/there"]))
def test_a_second_place_has_the_same_tree(nodes: dict[str, dict[str, Any]], target: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        repository = LocalRepository()
        repository.publish(make_folder(Path(temporary) / "tree", nodes), "/a/x")
        repository.change(lambda edit: edit.add("/b", DIRECTORY))
        tree, opened = below(repository.opened().revision, "/a/x"), repository.opened()
        there = opened.revision.nested_at("/a/x")
        assert there is not None
        objects = {key for key in repository.store.objects if key.startswith("data/") and key[-1] not in "CHXM"}
        written: list[PackedCatalog] = []
        made = rebase(opened.catalogs, there, target, written.append, layout=Layout.MTIME_NS)
        again = rebase(opened.catalogs, there, target, lambda _: None, layout=Layout.MTIME_NS)
        assert again == made, "the same tree at the same place has the same hash"
        assert made.catalogs == len(written)

        def hang(edit: Edit) -> None:
            edit.bring([(one.hash.key, one.data) for one in written])
            edit.hang(made.reference, made.root_entry, made.statistics.total)

        repository.change(hang)
        assert repository.problems() == []
        assert below(repository.opened().revision, target) == below(repository.opened().revision, "/a/x") == tree
        kept = {key for key in repository.store.objects if key.startswith("data/") and key[-1] not in "CHXM"}
        assert kept == objects
