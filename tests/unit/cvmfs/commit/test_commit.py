"""The switch is all or nothing, refuses a second writer, and heals what a crash left behind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY, NewTag, SwitchStep, read_head, switch
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.repair import adopt_reflog, repair_metadata, repair_reflog
from include.cvmfs.errors import (
    CommitError,
    HeadDamaged,
    ManifestConflict,
    ObjectDamaged,
    ReflogError,
    RepositoryError,
    TagError,
)
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Reflog
from include.cvmfs.format.hashes import Algorithm, hash_bytes
from include.gateway.service.commits.queue import refusal_of
from include.storage.errors import Unavailable
from tests.fakes.edits import LATER, Crash, change, commit, founded
from tests.fakes.local import DIRECTORY
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, master_key, opened, signer
from tests.fakes.refused import refused


def crashing_at(step: SwitchStep) -> Callable[[SwitchStep], None]:
    def die(reached: SwitchStep) -> None:
        if reached is step:
            raise Crash

    return die


def assert_reflog_matches(store: MemoryStore) -> Reflog:
    manifest = opened(store).manifest
    assert hash_bytes(store.objects[REFLOG_KEY]).digest == manifest.reflog.digest
    reflog = Reflog.load(store.objects[REFLOG_KEY])
    for name in (manifest.root, manifest.certificate, manifest.history, manifest.meta):
        assert reflog.contains(name)
    return reflog


def test_a_new_repository_is_readable_and_is_not_made_twice(store: MemoryStore) -> None:
    repository = opened(store)
    assert repository.manifest.revision == 0
    assert [tag.name for tag in repository.history().tags()] == ["trunk"]
    assert_reflog_matches(store)
    with refused(RepositoryError, fqrn=FQRN):
        create_repository(store, FQRN, master=master_key(), signer=signer(), now=NOW)


def test_a_commit_makes_one_revision_with_tags_and_keeps_the_publishers_root_collectable(store: MemoryStore) -> None:
    old, new = change(store, "/a")
    head = commit(store, old, new, "/a", tag=NewTag("v1", "first"))
    repository = opened(store)
    assert repository.manifest == head.manifest
    assert repository.manifest.revision == 1
    tags = {tag.name: tag.hash.digest for tag in repository.history().tags()}
    assert tags == {"trunk": head.manifest.root.digest, "v1": head.manifest.root.digest, "trunk-previous": old.digest}
    assert assert_reflog_matches(store).contains(new)
    assert repository.revision.lookup("/a").mountpoint


def test_switching_on_a_stale_head_is_refused(store: MemoryStore) -> None:
    stale = read_head(store, FQRN)
    edit = Edit(CatalogCache(store), stale.manifest.root)
    edit.add("/d", DIRECTORY)
    commit(store, *change(store, "/a"), "/a")
    before = dict(store.objects)
    with pytest.raises(ManifestConflict):
        switch(store, stale, edit.finish(1), signer=signer(), now=1)
    assert store.objects[MANIFEST_KEY] == before[MANIFEST_KEY]


@pytest.mark.parametrize("step", list(SwitchStep))
def test_after_a_crash_at_any_step_the_next_commit_works(store: MemoryStore, step: SwitchStep) -> None:
    old, new = change(store, "/a")
    with pytest.raises(Crash):
        commit(store, old, new, "/a", on_step=crashing_at(step))
    after = opened(store)
    assert (after.manifest.revision, after.revision.lookup("/a") is not None) == (
        (1, True) if step is SwitchStep.SWITCHED else (0, False)
    )
    assert commit(store, old, new, "/a").manifest.revision == 1
    assert opened(store).revision.lookup("/a") is not None
    commit(store, *change(store, "/b"), "/b")
    assert_reflog_matches(store)


@pytest.mark.parametrize("harm", ["lost", "garbage", "empty", "of an older revision"])
def test_a_harmed_reflog_is_rebuilt_and_commits_work_again(store: MemoryStore, harm: str) -> None:
    older = store.objects[REFLOG_KEY]
    for path in ("/a", "/b"):
        commit(store, *change(store, path), path, tag=NewTag(f"tag-{path[1:]}"))
    roots = {tag.hash.digest for tag in opened(store).history().tags()}
    if harm == "lost":
        del store.objects[REFLOG_KEY]
    else:
        harmed = {"garbage": b"no reflog", "empty": Reflog.create(FQRN).to_bytes(), "of an older revision": older}
        store.objects[REFLOG_KEY] = harmed[harm]
        if harm != "of an older revision":
            with pytest.raises(ReflogError):
                commit(store, *change(store, "/c"), "/c")
    before = opened(store).manifest
    assert before.revision == 2
    head, added = repair_reflog(store, FQRN, signer=signer(), now=LATER + 60)
    assert added > 0
    assert (head.manifest.root, head.manifest.revision) == (before.root, before.revision)
    assert roots <= {ref.hash.digest for ref in assert_reflog_matches(store).refs()}
    assert commit(store, *change(store, "/c"), "/c").manifest.revision == before.revision + 1


def lossy(store: MemoryStore, suffix: str, keep: int) -> None:
    """Let the store acknowledge objects of a kind, and keep their first bytes only."""
    put = store.put

    def cut(key: str, data: bytes) -> None:
        put(key, data[:keep] if key.startswith("data/") and key.endswith(suffix) else data)

    store.put = cut  # type: ignore[method-assign]


@pytest.mark.parametrize("suffix", ["C", "H", "X"])
@pytest.mark.parametrize("keep", [0, 10])
def test_what_the_store_cut_short_is_not_switched_to(store: MemoryStore, suffix: str, keep: int) -> None:
    old, new = change(store, "/a")
    store.objects[opened(store).manifest.certificate.key] = b""
    before = store.objects[MANIFEST_KEY]
    lossy(store, suffix, keep)
    with pytest.raises(ObjectDamaged) as caught:
        commit(store, old, new, "/a")
    assert caught.value.key.endswith(suffix)
    assert store.objects[MANIFEST_KEY] == before


@pytest.mark.parametrize("length", [0, 10])
def test_a_certificate_that_is_cut_short_is_mended_by_the_next_commit(store: MemoryStore, length: int) -> None:
    key = opened(store).manifest.certificate.key
    whole = store.objects[key]
    store.objects[key] = whole[:length]
    commit(store, *change(store, "/a"), "/a")
    assert store.objects[key] == whole


def test_meta_info_that_is_empty_stops_commits_until_it_is_mended(store: MemoryStore) -> None:
    meta = opened(store).manifest.meta
    store.objects[meta.key] = b""
    with refused(HeadDamaged, fqrn=FQRN):
        commit(store, *change(store, "/a"), "/a")
    assert repair_metadata(store, FQRN, signer=signer(), now=LATER)[1]
    commit(store, *change(store, "/a"), "/a")
    assert opened(store).meta() is not None


@pytest.mark.parametrize("bytes_left", [None, 0, 10])
@pytest.mark.parametrize("name", ["history", "root"])
def test_a_lost_root_or_history_is_a_damaged_head(store: MemoryStore, name: str, bytes_left: int | None) -> None:
    prepared = change(store, "/a")
    named = getattr(opened(store).manifest, name)
    key = named.with_suffix({"history": "H", "root": "C"}[name]).key
    whole = store.objects.pop(key)
    if bytes_left is not None:
        store.objects[key] = whole[:bytes_left]
    with refused(HeadDamaged, fqrn=FQRN) as caught:
        commit(store, *prepared, "/a")
    assert refusal_of(caught.value).reason == "damaged_head"
    assert {"history": "--empty-history", "root": "repo rollback"}[name] in str(caught.value)


@pytest.mark.parametrize("step", [SwitchStep.HEAD_READ, SwitchStep.MERGED, SwitchStep.CATALOGS_STORED])
@pytest.mark.parametrize("name", ["history", "root"])
def test_a_revision_that_was_replaced_and_collected_under_a_commit_is_no_damaged_head(
    store: MemoryStore, name: str, step: SwitchStep
) -> None:
    ours = change(store, "/a")
    commit(store, *change(store, "/b"), "/b")
    others, manifest = change(store, "/c"), opened(store).manifest
    key = {"history": manifest.history.with_suffix("H"), "root": manifest.root.with_suffix("C")}[name].key

    def overtake(at: SwitchStep) -> None:
        if at is step and key in store.objects:
            commit(store, *others, "/c")
            del store.objects[key]

    head = commit(store, *ours, "/a", on_step=overtake)
    assert head.manifest == opened(store).manifest
    assert all(opened(store).revision.lookup(path) for path in ("/a", "/b", "/c"))


def test_a_certificate_with_rotten_bytes_is_mended_by_hand(store: MemoryStore) -> None:
    manifest = opened(store).manifest
    whole = store.objects[manifest.certificate.key]
    store.objects[manifest.certificate.key] = bytes(len(whole))
    head, lost = repair_metadata(store, FQRN, signer=signer(), now=LATER)
    assert (head.manifest.root, head.manifest.revision, lost) == (manifest.root, manifest.revision, False)
    assert store.objects[manifest.certificate.key] == whole
    assert opened(store).meta() is not None


def during(store: MemoryStore, verb: str, key: str, action: Callable[[], object]) -> None:
    """Do something right before the first such request."""

    def before(asked: str, of: str) -> None:
        if (asked, of) == (verb, key):
            store.before = lambda verb, key: None
            action()

    store.before = before


@pytest.mark.parametrize("moment", [("get", REFLOG_KEY), ("replace", REFLOG_KEY), ("replace", MANIFEST_KEY)])
@pytest.mark.parametrize("repair", [repair_reflog, repair_metadata])
def test_a_repair_beside_a_commit_loses_nothing(
    store: MemoryStore, moment: tuple[str, str], repair: Callable[..., object]
) -> None:
    pair = change(store, "/a")
    during(store, *moment, lambda: commit(store, *pair, "/a"))
    repair(store, FQRN, signer=signer(), now=LATER)
    assert opened(store).manifest.revision == 1
    assert_reflog_matches(store)
    assert commit(store, *change(store, "/b"), "/b").manifest.revision == 2


@pytest.mark.parametrize("step", [SwitchStep.REFLOG_WRITTEN, SwitchStep.BEFORE_SWITCH, SwitchStep.FENCED])
@pytest.mark.parametrize("mend", [repair_reflog, repair_metadata, adopt_reflog])
def test_a_commit_beside_a_repair_loses_nothing(
    store: MemoryStore, step: SwitchStep, mend: Callable[..., object]
) -> None:
    met: list[SwitchStep] = []

    def meet(reached: SwitchStep) -> None:
        if reached is step and not met:
            met.append(reached)
            mend(store, FQRN, signer=signer(), now=LATER)

    head = commit(store, *change(store, "/a"), "/a", on_step=meet)
    assert (head.manifest.revision, met) == (1, [step])
    assert_reflog_matches(store)


def test_adopting_the_reflog_of_a_commit_that_is_alive_leaves_it_in_order(store: MemoryStore) -> None:
    before = store.objects[MANIFEST_KEY]
    commit(store, *change(store, "/a"), "/a")
    after, store.objects[MANIFEST_KEY] = store.objects[MANIFEST_KEY], before  # between its reflog and its manifest
    during(store, "replace", MANIFEST_KEY, lambda: store.objects.update({MANIFEST_KEY: after}))
    assert adopt_reflog(store, FQRN, signer=signer(), now=LATER)
    assert opened(store).manifest.revision == 1
    assert_reflog_matches(store)


@pytest.mark.parametrize("step", list(SwitchStep))
def test_a_check_at_any_step_of_a_commit_sees_no_damage(store: MemoryStore, step: SwitchStep) -> None:
    seen: list[object] = []

    def look(reached: SwitchStep) -> None:
        if reached is step:
            seen.append(check(opened(store)).problems)

    commit(store, *change(store, "/a"), "/a", on_step=look)
    assert seen == [()]


def test_a_repair_gives_up_when_others_keep_being_faster(store: MemoryStore) -> None:
    def touch(verb: str, key: str) -> None:
        if (verb, key) == ("replace", REFLOG_KEY):
            store.objects[REFLOG_KEY] += b" "

    store.before = touch
    with pytest.raises(ManifestConflict):
        repair_reflog(store, FQRN, signer=signer(), now=LATER)


# -- commits that are repeated, stopped or older than the newest revision


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
    store = founded(algorithm)
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
        commit(store, old, new, "", now=now)
        times.append(read_head(store, FQRN).manifest.timestamp)
    assert times == [int((NOW + timedelta(hours=5)).timestamp())] * 4
    repository = opened(store)
    assert [tag.timestamp for tag in repository.history().tags()] == times[:2]
    assert check(repository).ok
