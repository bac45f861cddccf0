"""Objects of a revision are chosen by paths, by a dirtab, or all."""

from __future__ import annotations

import pytest

from include.aliencache.contents import CacheContents, Wanted, take_contents
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.objects import Compression
from include.cvmfs.sources.dirtab import Dirtab
from tests.fakes.minirepo import MiniRepository, opened


def chosen(mini: MiniRepository, wanted: Wanted) -> tuple[CacheContents, int]:
    repository, contents = opened(mini.store), CacheContents()
    root = NestedRef("", repository.manifest.root, repository.manifest.root_size)
    entries = take_contents(contents, root, wanted, lambda one: repository.catalogs.open_nested(one.path, one.hash))
    return contents, entries


def names(mini: MiniRepository, *paths: str) -> set[bytes]:
    found = set()
    for path in paths:
        entry = mini.entries[path]
        found |= {chunk.hash.digest for chunk in mini.pieces.get(path, ())} or {entry.hash.digest}  # type: ignore[union-attr]
    return found


FILES = ("/readme", "/sw/plain", "/sw/app/.cvmfscatalog", "/sw/app/run", "/sw/app/one", "/sw/app/big",
         "/sw/app/lib/code", "/sw/app/lib/deep/data")  # fmt: skip


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(["/"]), Wanted(["/sw", "/"])])
def test_everything_is_taken_once(mini: MiniRepository, wanted: Wanted) -> None:
    contents, _ = chosen(mini, wanted)
    assert {one.name.digest for one in contents} == names(mini, *FILES)
    assert contents.objects == len(list(contents)) == len(names(mini, *FILES))
    assert contents.bytes == sum(one.size or 0 for one in contents)
    assert [one.reference.path for one in contents.catalogs] == ["", "/sw/app", "/sw/app/lib/deep"]
    assert all(one.whole for one in contents.catalogs)
    forms = {one.name.digest: one.compression for one in contents}
    assert forms[next(iter(names(mini, "/sw/plain")))] is Compression.NONE


def test_a_path_has_its_objects_and_the_catalogs_above(mini: MiniRepository) -> None:
    contents, entries = chosen(mini, Wanted(["/sw/app/lib"]))
    wanted = names(mini, "/sw/app/lib/code", "/sw/app/lib/deep/data", "/sw/app/lib/deep/.cvmfscatalog")
    assert {one.name.digest for one in contents} == wanted
    assert [(one.reference.path, one.whole) for one in contents.catalogs] == [
        ("", False), ("/sw/app", False), ("/sw/app/lib/deep", True)
    ]  # fmt: skip
    assert entries


def test_a_dirtab_chooses_and_leaves_out(mini: MiniRepository) -> None:
    contents, _ = chosen(mini, Wanted(dirtab=Dirtab.parse("/sw/*\n! /sw/app/lib\n")))
    wanted = names(mini, "/sw/plain", "/sw/app/.cvmfscatalog", "/sw/app/run", "/sw/app/one", "/sw/app/big")
    assert {one.name.digest for one in contents} == wanted
    assert not any(one.whole for one in contents.catalogs)


def test_catalogs_alone(mini: MiniRepository) -> None:
    contents, _ = chosen(mini, Wanted(catalogs_only=True))
    assert (contents.objects, len(contents.catalogs)) == (0, 3)


def test_what_is_not_there_is_not_chosen(mini: MiniRepository) -> None:
    assert chosen(mini, Wanted(["/sw/absent"]))[1] == 0
