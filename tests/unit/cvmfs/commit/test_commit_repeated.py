"""Commits that are repeated, stopped or older than what stands: what was done is found again, nothing else is left."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY, NewTag, SwitchStep, commit_change, read_head
from include.cvmfs.commit.create import create_repository
from include.cvmfs.errors import CommitError, TagError
from include.cvmfs.format.hashes import Algorithm
from include.storage.errors import Unavailable
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused
from tests.unit.cvmfs.commit.test_commit import FQRN, MASTER, NOW, SIGNER, Crash, change, commit, opened


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    create_repository(store, FQRN, master=MASTER, signer=SIGNER, now=NOW)
    return store


def crashing_at(step: SwitchStep) -> Callable[[SwitchStep], None]:
    def die(reached: SwitchStep) -> None:
        if reached is step:
            raise Crash

    return die


def test_a_tagged_commit_that_died_after_its_switch_is_found_done_when_it_is_repeated(store: MemoryStore) -> None:
    old, new = change(store, "/a")
    with pytest.raises(Crash):
        commit(store, old, new, "/a", tag=NewTag("v1"), on_step=crashing_at(SwitchStep.SWITCHED))
    assert commit(store, old, new, "/a", tag=NewTag("v1")).manifest.revision == 1
    commit(store, *change(store, "/b"), "/b")
    assert commit(store, old, new, "/a", tag=NewTag("v1")).manifest.revision == 2, "others may have gone on since"
    tag = opened(store).history().tag("v1")
    assert tag is not None
    assert tag.revision == 1


def test_a_tag_that_names_a_revision_without_the_change_is_a_conflict(store: MemoryStore) -> None:
    commit(store, *change(store, "/b"), "/b", tag=NewTag("v1"))
    old, new = change(store, "/a")
    commit(store, old, new, "/a")
    with refused(TagError, name="v1"):
        commit(store, old, new, "/a", tag=NewTag("v1"))
    assert opened(store).manifest.revision == 2


def test_a_commit_that_is_stopped_before_its_switch_leaves_manifest_and_reflog_as_they_were(store: MemoryStore) -> None:
    before = {key: store.objects[key] for key in (MANIFEST_KEY, REFLOG_KEY)}

    def expired() -> None:
        raise CommitError("/a")

    with pytest.raises(CommitError):
        commit(store, *change(store, "/a"), "/a", before_switch=expired)
    assert {key: store.objects[key] for key in before} == before
    assert check(opened(store)).ok


def test_a_reflog_that_another_writer_took_further_is_not_put_back(store: MemoryStore) -> None:
    rival = change(store, "/b")

    def expired() -> None:
        commit(store, *rival, "/b")
        raise CommitError("/a")

    with pytest.raises(CommitError):
        commit(store, *change(store, "/a"), "/a", before_switch=expired)
    assert opened(store).manifest.revision == 1
    assert check(opened(store)).ok


def test_a_reflog_stays_ahead_when_the_switch_may_have_happened(store: MemoryStore) -> None:
    def unclear(verb: str, key: str) -> None:
        if (verb, key) == ("replace", MANIFEST_KEY):
            raise Unavailable("no answer", key=key, cause="timeout")

    old, new = change(store, "/a")
    before = store.objects[REFLOG_KEY]
    store.before = unclear
    with pytest.raises(Unavailable):
        commit(store, old, new, "/a")
    store.before = lambda verb, key: None
    assert store.objects[REFLOG_KEY] != before
    commit(store, old, new, "/a")
    assert check(opened(store)).ok


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_repository_of_any_hash_algorithm_takes_commits_and_passes_its_check(algorithm: Algorithm) -> None:
    store = MemoryStore()
    create_repository(store, FQRN, master=MASTER, signer=SIGNER, now=NOW, algorithm=algorithm)
    old, new = change(store, "/a")
    with pytest.raises(Crash):
        commit(store, old, new, "/a", on_step=crashing_at(SwitchStep.REFLOG_WRITTEN))
    commit(store, old, new, "/a", tag=NewTag("v1"))
    commit(store, *change(store, "/b"), "/b")
    repository = opened(store)
    assert (repository.manifest.revision, repository.manifest.root.algorithm) == (2, algorithm)
    assert check(repository).problems == ()


def test_clocks_that_go_backwards_make_no_revision_older_than_the_one_before(store: MemoryStore) -> None:
    times = []
    for number, hours in enumerate((5, -48, 0, -1)):
        old, new = change(store, f"/d{number}")
        now = int((NOW + timedelta(hours=hours)).timestamp())
        commit_change(store, fqrn=FQRN, signer=SIGNER, lease_path="", old_root=old, new_root=new, now=now)
        times.append(read_head(store, FQRN).manifest.timestamp)
    assert times == [int((NOW + timedelta(hours=5)).timestamp())] * 4
    repository = opened(store)
    assert [tag.timestamp for tag in repository.history().tags()] == times[:2]
    assert check(repository).ok
