"""The week's reader sees where links lead in each revision, and what the builds there lack."""

from __future__ import annotations

import pytest

from include.cvmfs.errors import CvmfsError
from include.cvmfs.revision.repository import Repository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, MiniRepository, public_key
from tests.week.reader import Led, Reader, Wanted, followed, tree_of
from tests.week.trees import STAMP, Tree, stored_hash

BUILD, BEFORE = "/nightlies/main/b2", "/nightlies/main/b1"
LATEST = "/nightlies/main/latest"
TREES = [Tree("main", "b2", project, "opt") for project in ("Gaudi", "LHCb")]


def reader(store: MemoryStore) -> Reader:
    required = {BUILD: tuple(one.path for one in TREES)}
    stamps = {one.path: frozenset({stored_hash(one.stamp)}) for one in TREES}
    stamps[f"{BEFORE}/LHCb/opt"] = frozenset({stored_hash(b"of the build before")})
    return Reader(store, public_key(), FQRN, (LATEST, "/nightlies/dev/latest"), Wanted(required, stamps), at=NOW)


def repository(store: MemoryStore, trees: list[Tree], *, link: str | None = "b2", revision: int = 1) -> MiniRepository:
    mini = MiniRepository(store)
    mini.directory("/nightlies")
    mini.nested("/nightlies/main")
    for build in (BEFORE, BUILD):
        mini.nested(build)
        for project in ("Gaudi", "LHCb"):
            mini.directory(f"{build}/{project}")
    for one in trees:
        mini.nested(one.path)
        mini.directory(f"{one.path}/share")
        mini.file(f"{one.path}/{STAMP}", one.stamp)
    if link is not None:
        mini.symlink(LATEST, link)
    mini.build().publish(revision=revision)
    return mini


@pytest.mark.parametrize(
    ("trees", "link", "led"),
    [
        (TREES, "b2", Led(BUILD)),
        (TREES[:1], "b2", Led(BUILD, (f"{TREES[1].path} is not there",))),
        (TREES, "b7", Led("/nightlies/main/b7", ("nothing stands there",))),
        (TREES, "b1", Led(BEFORE, ("it is no build of the week",))),
        (TREES, None, None),
    ],
)
def test_a_link_leads_to_a_whole_build_or_what_it_lacks_is_named(trees: list[Tree], link: str | None, led: Led) -> None:
    store = MemoryStore()
    repository(store, trees, link=link)
    assert reader(store).look().links == ({} if led is None else {LATEST: led})


def test_the_tree_is_told_with_the_content_of_all_and_links_are_followed() -> None:
    store = MemoryStore()
    repository(store, TREES)
    found = tree_of(Repository.open(store, public_keys=[public_key()], now=NOW).revision)
    assert (found["/nightlies"], found[LATEST]) == ("directory", "b2")
    assert found[f"{TREES[0].path}/{STAMP}"] == stored_hash(TREES[0].stamp)
    assert followed("/nightlies/dev/b2/Gaudi/opt", "../../b1/Gaudi/opt") == "/nightlies/dev/b1/Gaudi/opt"


def test_a_reserved_place_and_a_foreign_tree_do_not_count() -> None:
    store = MemoryStore()
    mini = MiniRepository(store)
    for path in ("/nightlies", "/nightlies/main", *(f"{BUILD}/{one.project}" for one in TREES)):
        mini.directory(path)
    mini.nested(BUILD)
    mini.nested(TREES[0].path)
    mini.nested(TREES[1].path)
    mini.directory(f"{TREES[1].path}/share")
    mini.file(f"{TREES[1].path}/{STAMP}", TREES[0].stamp)
    mini.symlink(LATEST, "b2")
    mini.build().publish()
    lacking = reader(store).look().links[LATEST].lacking
    assert lacking == (f"{TREES[0].path} holds no tree", f"{TREES[1].path} holds another tree")


def test_what_is_there_by_a_link_is_followed_at_every_revision() -> None:
    store = MemoryStore()
    seen = reader(store)

    def linked(stamp: bytes, revision: int) -> None:
        mini = repository(store, TREES[:1], revision=revision)
        real = f"{BEFORE}/LHCb/opt"
        mini.nested(real)
        mini.directory(f"{real}/share")
        mini.file(f"{real}/{STAMP}", stamp)
        mini.symlink(TREES[1].path, "../../b1/LHCb/opt")
        mini.databases.clear()
        mini.build().publish(revision=revision)

    linked(b"of the build before", 1)
    assert seen.look().links[LATEST].lacking == ()
    linked(b"something else", 2)
    assert seen.look().links[LATEST].lacking == (f"{TREES[1].path} holds another tree",)


def test_looks_at_one_revision_are_one_sample_and_an_older_revision_is_a_fault() -> None:
    store = MemoryStore()
    repository(store, TREES, revision=2)
    seen = reader(store)
    assert seen.look() is seen.look()
    assert [(one.revision, one.looks) for one in seen.samples] == [(2, 2)]
    repository(store, TREES, revision=1)
    with pytest.raises(CvmfsError):
        seen.look()
