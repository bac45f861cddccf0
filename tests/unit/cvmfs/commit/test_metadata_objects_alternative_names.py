"""A repository with ``A yes`` is read by clients that ask for the alternative names of what its manifest names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY, fence, publish, read_head
from include.cvmfs.commit.metadata_objects import alternative_key
from include.cvmfs.commit.repair import adopt_reflog, repair_reflog
from include.cvmfs.commit.rollback import plan_rollback, rollback
from include.cvmfs.commit.tags import add_tag, remove_tags
from include.cvmfs.errors import ObjectDamaged
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.repository import Repository
from tests.fakes.local import DIRECTORY, LocalRepository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, public_key, signer
from tests.fakes.refused import refused

SIGNED = {"signer": signer(), "now": 2_000_000_000}


@pytest.fixture
def repository() -> LocalRepository:
    """Two tagged revisions, then the flag."""
    repository = LocalRepository()
    for name in ("one", "two"):
        repository.change(lambda edit, name=name: edit.add(f"/{name}", DIRECTORY), tag=name)
    head = read_head(repository.store, FQRN)
    publish(repository.store, head, replace(head.manifest, alt_paths=True), **SIGNED)
    return repository


def read_by_alternative_names(store: MemoryStore) -> Repository:
    """The repository, where each object that the manifest names is found under its alternative name only."""
    manifest = Manifest.parse(store.get(MANIFEST_KEY)).manifest
    seen = MemoryStore()
    seen.objects = dict(store.objects)
    for name in manifest.named:
        del seen.objects[name.key]
    for name in manifest.named:
        seen.objects[name.key] = store.objects[alternative_key(name)]
    return Repository.open(seen, fqrn=FQRN, public_keys=[public_key()], now=NOW)


def commit(repository: LocalRepository) -> None:
    repository.change(lambda edit: edit.add("/three", DIRECTORY), tag="three")


def go_back(repository: LocalRepository) -> None:
    rollback(repository.store, plan_rollback(repository.store, FQRN, "one"), **SIGNED)


def adopt(repository: LocalRepository) -> None:
    before = repository.store.objects[MANIFEST_KEY]
    add_tag(repository.store, FQRN, "lost", None, **SIGNED)
    repository.store.objects[MANIFEST_KEY] = before
    assert adopt_reflog(repository.store, FQRN, **SIGNED)


SWITCHES: dict[str, Callable[[LocalRepository], object]] = {
    "commit": commit,
    "tag": lambda repository: add_tag(repository.store, FQRN, "again", "one", **SIGNED),
    "tag removed": lambda repository: remove_tags(repository.store, FQRN, ["one"], **SIGNED),
    "rollback": go_back,
    "repair": lambda repository: repair_reflog(repository.store, FQRN, **SIGNED),
    "adoption": adopt,
    "fence": lambda repository: fence(repository.store, FQRN, **SIGNED),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_after_every_switch_a_client_reads_by_alternative_names(repository: LocalRepository, switch: str) -> None:
    before = repository.opened().manifest
    SWITCHES[switch](repository)
    seen = read_by_alternative_names(repository.store)
    assert seen.manifest.alt_paths
    assert seen.manifest != before
    assert seen.revision.lookup("/one") is not None
    assert seen.tags()
    assert seen.meta() is not None
    assert repository.problems() == []


def test_alternative_names_are_there_before_the_manifest_that_needs_them(repository: LocalRepository) -> None:
    written: list[str] = []

    def note(verb: str, key: str) -> None:
        if verb in ("put", "replace") and key.startswith(".cvmfs"):
            written.append(key)

    repository.store.before = note
    commit(repository)
    manifest = repository.opened().manifest
    fresh = {alternative_key(manifest.root), alternative_key(manifest.history)}
    assert set(written[:-2]) == fresh  # the certificate's and the meta info's are there
    assert written[-2:] == [REFLOG_KEY, MANIFEST_KEY]


def test_what_cannot_be_copied_is_not_switched_to(repository: LocalRepository) -> None:
    meta = repository.opened().manifest.meta
    repository.store.objects[meta.key] += b"?"
    before = repository.store.objects[MANIFEST_KEY]
    with refused(ObjectDamaged, key=meta.key):
        commit(repository)
    assert repository.store.objects[MANIFEST_KEY] == before


def test_a_repository_without_the_flag_gets_no_alternative_names() -> None:
    repository = LocalRepository()
    commit(repository)
    assert not [key for key in repository.store.objects if key.startswith(".cvmfsalt-")]
