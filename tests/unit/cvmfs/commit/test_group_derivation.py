"""The base of a change is what its catalogs were derived from, not what the request says."""

from __future__ import annotations

import pytest

from include.cvmfs.commit.group import STEPS, true_base
from include.cvmfs.errors import BaseChanged, ObjectMissing
from include.cvmfs.format.hashes import ObjectHash
from tests.fakes.refused import refused
from tests.unit.cvmfs.commit.test_edit import DIRECTORY, Repository


@pytest.fixture
def repository() -> Repository:
    return Repository()


def after(repository: Repository, root: ObjectHash, name: str) -> ObjectHash:
    edit = repository.edit(root)
    edit.add(name, DIRECTORY)
    return repository.keep(edit)


def base(repository: Repository, told: ObjectHash, new: ObjectHash, *revisions: ObjectHash) -> ObjectHash:
    known = {root.digest for root in revisions}
    return true_base(repository.cache, told=told, new=new, is_revision=lambda root: root.digest in known)


def test_what_was_told_is_the_base_where_the_catalog_agrees(repository: Repository) -> None:
    old = after(repository, repository.root, "/a")
    assert base(repository, old, after(repository, old, "/b")) == old
    assert base(repository, old, old) == old


def test_a_publisher_that_tells_a_later_revision_is_measured_by_the_one_it_worked_on(repository: Repository) -> None:
    mounted = after(repository, repository.root, "/a")
    told = after(repository, mounted, "/of-another")
    new = after(repository, mounted, "/mine")
    assert base(repository, told, new, mounted, told) == mounted


def test_roots_that_never_were_revisions_are_steps_on_the_way(repository: Repository) -> None:
    old = after(repository, repository.root, "/a")
    step = after(repository, old, "/b")
    new = after(repository, step, "/c")
    assert base(repository, old, new, old) == old
    assert base(repository, after(repository, old, "/x"), new, old) == old


def test_a_catalog_without_a_predecessor_leaves_what_was_told(repository: Repository) -> None:
    told = after(repository, repository.root, "/a")
    assert base(repository, told, repository.root) == told


def test_a_change_of_something_that_is_no_revision_is_refused(repository: Repository) -> None:
    told = after(repository, repository.root, "/a")
    catalog = repository.cache.open(after(repository, told, "/b"))
    catalog.set_property("previous_revision", "1" * 40)
    orphan = catalog.pack()
    repository.store.put(orphan.hash.key, orphan.data)
    with refused(BaseChanged, path=""):
        base(repository, told, orphan.hash, told)


def test_an_endless_way_back_ends(repository: Repository) -> None:
    root = repository.root
    for number in range(STEPS + 2):
        root = after(repository, root, f"/d{number}")
    with pytest.raises(BaseChanged):
        base(repository, Repository().root.with_suffix("C"), root)


def test_a_new_root_that_is_not_stored_is_missing(repository: Repository) -> None:
    with pytest.raises(ObjectMissing):
        base(repository, repository.root, ObjectHash.parse("2" * 40))
