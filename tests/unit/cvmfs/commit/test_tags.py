"""Tags change without a new revision, go by rule, and lead back; nothing is lost beside other writers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY, NewTag, read_head
from include.cvmfs.commit.tags import (
    PruneRule,
    add_tag,
    change_tags,
    decide,
    plan_rollback,
    prune_by_rule,
    remove_tags,
    rollback,
)
from include.cvmfs.coordination.condemned import store_list
from include.cvmfs.coordination.generation import KEY, CollectionPhase, CollectionStep as GenerationStep, Generation
from include.cvmfs.errors import (
    REVISION_UNKNOWN,
    CollectionRunning,
    CvmfsError,
    FormatError,
    GenerationMoved,
    ManifestConflict,
    ObjectMissing,
    TagError,
)
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Reflog, Tag
from include.cvmfs.format.hashes import ObjectHash, hash_bytes
from include.cvmfs.revision.revision import Revision, diff
from tests.fakes.local import DIRECTORY, LocalRepository
from tests.fakes.minirepo import FQRN, sample, signer
from tests.fakes.oldcatalogs import age
from tests.fakes.refused import refused

SIGNED = {"signer": signer(), "now": 2_000_000_000}


def add(repository: LocalRepository, name: str, revision: str | None = None, **fields: Any) -> Tag:
    return add_tag(repository.store, FQRN, name, revision, **SIGNED, **fields)


def names(repository: LocalRepository) -> set[str]:
    return {tag.name for tag in repository.opened().tags()}


@pytest.fixture
def repository() -> LocalRepository:
    """Three revisions, each with a tag and a directory of the same name."""
    repository = LocalRepository()
    for name in ("one", "two", "three"):
        repository.change(lambda edit, name=name: edit.add(f"/{name}", DIRECTORY), tag=name)
    return repository


def test_a_tag_names_the_newest_or_any_revision(repository: LocalRepository) -> None:
    before = read_head(repository.store, FQRN).manifest
    tag = add(repository, "release", description="good")
    first = add(repository, "again", "one")
    by_hash = add(repository, "by-hash", str(first.hash))
    after = repository.opened()
    assert (after.manifest.root, after.manifest.revision) == (before.root, before.revision)
    assert after.manifest.timestamp >= before.timestamp
    assert after.tag("release") == tag
    assert (tag.hash, tag.revision, tag.size) == (before.root, before.revision, before.root_size)
    assert first.hash == by_hash.hash == after.tag("one").hash
    assert first.timestamp == after.tag("one").timestamp
    assert repository.problems() == []


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "\x1b[2J", "a\0", "a\x85b", "a\u2028b", "caf\udce9"])
def test_a_tag_that_is_not_one_line_of_text_is_refused(repository: LocalRepository, text: str) -> None:
    before = dict(repository.store.objects)
    with refused(TagError, name=text):
        add(repository, text)
    with refused(TagError, name="release"):
        add(repository, "release", description=text)
    with refused(TagError, name="release"):
        NewTag("release", text)
    assert repository.store.objects == before


def test_the_same_again_changes_nothing_and_another_is_refused_unless_moved(repository: LocalRepository) -> None:
    add(repository, "release", "one", description="good")
    before = dict(repository.store.objects)
    assert add(repository, "release", "one").description == "good"
    assert repository.store.objects == before
    with refused(TagError, name="release"):
        add(repository, "release", "two")
    assert add(repository, "release", "two", move=True).description == "good"
    assert repository.opened().tag("release").hash == repository.opened().tag("two").hash


@pytest.mark.parametrize("name", ["trunk", "trunk-previous", "", "with blank", "x" * 256])
def test_bad_names_are_refused(repository: LocalRepository, name: str) -> None:
    with pytest.raises(TagError):
        add(repository, name)
    with pytest.raises(TagError):
        remove_tags(repository.store, FQRN, [name], **SIGNED)


def test_what_is_no_root_catalog_is_not_tagged(repository: LocalRepository) -> None:
    repository.change(lambda edit: edit.make_nested("/nested", DIRECTORY))
    nested = repository.opened().revision.nested_at("/nested")
    assert nested is not None
    with refused(TagError, name="x"):
        add(repository, "x", str(nested.hash))
    with pytest.raises(ObjectMissing):
        add(repository, "x", str(hash_bytes(b"nothing")))
    with pytest.raises(FormatError):
        add(repository, "x", "nonsense")


def test_tags_go_and_what_is_gone_is_no_error(repository: LocalRepository) -> None:
    assert remove_tags(repository.store, FQRN, ["one", "nowhere"], **SIGNED) == 1
    assert names(repository) == {"two", "three", "trunk", "trunk-previous"}
    before = dict(repository.store.objects)
    assert remove_tags(repository.store, FQRN, ["one"], **SIGNED) == 0
    assert repository.store.objects == before
    assert repository.problems() == []


def test_another_writer_in_between_is_not_undone(repository: LocalRepository) -> None:
    calls = []

    def before(verb: str, key: str) -> None:
        if (verb, key) == ("replace", ".cvmfsreflog") and not calls:
            calls.append(key)
            repository.change(lambda edit: edit.add("/other", DIRECTORY), tag="other")

    repository.store.before = before
    add(repository, "mine", "one")
    assert {"mine", "other"} <= names(repository)
    assert repository.opened().revision.entry("/other").is_directory
    assert repository.problems() == []


def test_one_who_is_always_slower_gives_up(repository: LocalRepository) -> None:
    number = iter(range(100))
    busy = []

    def before(verb: str, key: str) -> None:
        if (verb, key) == ("replace", ".cvmfsreflog") and not busy:
            busy.append(1)
            repository.change(lambda edit: edit.add(f"/n{next(number)}", DIRECTORY))
            busy.clear()

    repository.store.before = before
    with pytest.raises(ManifestConflict):
        change_tags(repository.store, FQRN, lambda history: None, **SIGNED)


def test_a_tag_that_was_moved_to_the_newest_revision_is_not_pruned(repository: LocalRepository) -> None:
    def move(verb: str, key: str) -> None:
        if (verb, key) == ("replace", ".cvmfsreflog"):
            repository.store.before = lambda verb, key: None
            add(repository, "one", "three", move=True)

    rule = PruneRule(keep=2)
    assert [one.tag.name for one in decide(repository.opened().tags(), rule, NOW) if one.remove] == ["one"]
    repository.store.before = move
    decisions = prune_by_rule(repository.store, FQRN, rule, signer=signer(), now=NOW)
    assert [one.tag.name for one in decisions if one.remove] == ["two"]
    assert {"one", "three"} <= names(repository)
    assert "two" not in names(repository)


# -- beside a collection


def condemn(repository: LocalRepository, root: ObjectHash, then: GenerationStep | None = None) -> None:
    """A collection whose list holds what only that revision needs, as far as the list or a step further."""
    tree = Revision(CatalogCache(repository.store), root)
    keep = {name for name, _ in repository.opened().revision.objects_below()}
    doomed = {name for name, _ in tree.objects_below()} - keep
    name = store_list(repository.store, doomed)
    document = Generation(0, CollectionPhase.IDLE, NOW).after(GenerationStep.BEGIN, NOW)
    document = document.after(GenerationStep.CONDEMN, NOW, condemned=name)
    if then is not None:
        document = document.after(then, NOW, condemned=name)
    repository.store.put(KEY, document.format())


COLLECTED: dict[str, Callable[[LocalRepository, Tag], object]] = {
    "tag": lambda repository, old: add(repository, "kept", str(old.hash)),
    "tag moved": lambda repository, old: add(repository, "three", str(old.hash), move=True),
    "rollback": lambda repository, old: rollback(
        repository.store, plan_rollback(repository.store, FQRN, old.name), **SIGNED
    ),
}


@pytest.mark.parametrize("way", COLLECTED)
@pytest.mark.parametrize("then", [None, GenerationStep.SWEEP])
def test_a_condemned_revision_is_not_named(repository: LocalRepository, way: str, then: GenerationStep | None) -> None:
    old = repository.opened().tag("one")
    condemn(repository, old.hash, then)
    before = repository.store.objects[MANIFEST_KEY]
    with pytest.raises(CollectionRunning):
        COLLECTED[way](repository, old)
    assert repository.store.objects[MANIFEST_KEY] == before
    add(repository, "newest")  # what is not on the list may be named


@pytest.mark.parametrize(
    ("way", "error"), list(zip(COLLECTED, (CollectionRunning, CollectionRunning, GenerationMoved), strict=True))
)
def test_a_root_condemned_at_last_is_not_switched_to(
    repository: LocalRepository, way: str, error: type[Exception]
) -> None:
    old = repository.opened().tag("one")
    before = repository.store.objects[MANIFEST_KEY]

    def condemn_now(verb: str, key: str) -> None:
        if (verb, key) == ("replace", ".cvmfsreflog"):
            repository.store.before = lambda verb, key: None
            condemn(repository, old.hash)

    repository.store.before = condemn_now
    with pytest.raises(error):
        COLLECTED[way](repository, old)
    assert repository.store.objects[MANIFEST_KEY] == before
    assert repository.problems() == []


def tag(name: str, revision: int, days_old: float = 0) -> Tag:
    return Tag(name, ObjectHash(bytes(20), suffix="C"), revision, int(NOW.timestamp() - days_old * 86400), 1)


NOW = datetime(2026, 7, 1, tzinfo=UTC)
TAGS = [tag("trunk", 9), tag("n9", 9), tag("n8", 8, 2), tag("n7", 7, 3), tag("keep-6", 6, 100), tag("n5", 5, 200)]


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        (PruneRule(keep=2), {"n7", "keep-6", "n5"}),
        (PruneRule(keep=2, match="n*"), {"n7", "n5"}),
        (PruneRule(older_than=timedelta(days=90)), {"keep-6", "n5"}),
        (PruneRule(keep=4, older_than=timedelta(days=1)), {"n5"}),
        (PruneRule(keep=1, older_than=timedelta(days=30), match="n*"), {"n5"}),
        (PruneRule(keep=99), set()),
        (PruneRule(match="nothing*"), set()),
        (PruneRule(protect=("n9", "keep-*")), {"n8", "n7", "n5"}),
        (PruneRule(), {"n9", "n8", "n7", "keep-6", "n5"}),
    ],
)
def test_tags_are_pruned_by_rule(rule: PruneRule, gone: set[str]) -> None:
    decisions = decide(TAGS, rule, NOW)
    assert {one.tag.name for one in decisions if one.remove} == gone
    assert len(decisions) == len(TAGS)
    assert all(one.reason for one in decisions)


@given(keep=st.integers(0, 8), days=st.none() | st.integers(0, 300), match=st.sampled_from(["*", "n*", "[kt]*"]))
def test_commits_tags_stay_and_no_fewer_than_asked_for(keep: int, days: int | None, match: str) -> None:
    rule = PruneRule(keep, None if days is None else timedelta(days=days), match)
    stay = [one.tag.name for one in decide(TAGS, rule, NOW) if not one.remove]
    assert "trunk" in stay
    assert len(stay) >= min(keep, len(TAGS))


# -- rollback


def test_going_back_makes_a_new_revision_with_the_old_tree(repository: LocalRepository) -> None:
    old = repository.opened()
    plan = plan_rollback(repository.store, FQRN, "one")
    assert {lost.name for lost in plan.lost} == {"two", "three"}
    rollback(repository.store, plan, **SIGNED)
    new = repository.opened()
    assert new.manifest.revision == old.manifest.revision + 1
    assert list(diff(old.at("one"), new.revision)) == []
    assert names(repository) == {"one", "trunk"}
    assert new.tag("one").revision == new.tag("trunk").revision == new.manifest.revision
    assert new.tag("one").hash == new.manifest.root
    assert new.revision.catalog_at("").previous_revision == old.manifest.root
    assert repository.problems() == []
    repository.change(lambda edit: edit.add("/after", DIRECTORY), tag="after")
    assert repository.problems() == []
    assert names(repository) == {"one", "after", "trunk", "trunk-previous"}


def test_without_a_tag_the_last_publication_is_undone(repository: LocalRepository) -> None:
    rollback(repository.store, plan_rollback(repository.store, FQRN), **SIGNED)
    opened = repository.opened()
    assert opened.revision.lookup("/three") is None
    assert opened.revision.entry("/two").is_directory
    assert names(repository) == {"one", "two", "trunk"}
    with refused(TagError, name="trunk-previous"):
        plan_rollback(repository.store, FQRN)


def test_going_back_to_where_one_is_changes_nothing(repository: LocalRepository) -> None:
    before = dict(repository.store.objects)
    plan = plan_rollback(repository.store, FQRN, "three")
    assert plan.changes_nothing
    rollback(repository.store, plan, **SIGNED)
    assert repository.store.objects == before


def test_a_tree_that_is_not_whole_is_not_offered(repository: LocalRepository) -> None:
    repository.change(lambda edit: edit.make_nested("/nested", DIRECTORY), tag="whole")
    nested = repository.opened().revision.nested_at("/nested")
    assert nested is not None
    repository.change(lambda edit: edit.remove("/nested"))
    repository.store.delete([nested.hash.key])
    before = read_head(repository.store, FQRN).manifest
    with pytest.raises(CvmfsError):
        rollback(repository.store, plan_rollback(repository.store, FQRN, "whole"), **SIGNED)
    assert read_head(repository.store, FQRN).manifest == before


def test_a_publication_since_the_plan_is_not_thrown_away(repository: LocalRepository) -> None:
    plan = plan_rollback(repository.store, FQRN, "one")
    repository.change(lambda edit: edit.add("/new", DIRECTORY))
    with pytest.raises(ManifestConflict):
        rollback(repository.store, plan, **SIGNED)
    assert repository.opened().revision.entry("/new").is_directory


def test_a_revision_of_old_stock_tools_can_be_gone_back_to() -> None:
    repository = LocalRepository()
    mini = age(sample(repository.store), 2)
    mini.publish([replace(tag("old", 1), hash=mini.store_catalogs().hash)])
    repository.change(lambda edit: edit.remove("/sw"))
    rollback(repository.store, plan_rollback(repository.store, FQRN, "old"), **SIGNED)
    assert repository.problems() == []
    assert repository.opened().revision.read("/sw/app/lib/deep/data") == b"deep data"


def revisions(repository: LocalRepository) -> dict[int, ObjectHash]:
    """The revisions that have a root, by number."""
    return {tag.revision: tag.hash for tag in repository.opened().tags()}


def test_a_revision_without_a_tag_is_gone_back_to_by_its_number(repository: LocalRepository) -> None:
    number, root = repository.opened().tag("two").revision, repository.opened().tag("two").hash
    remove_tags(repository.store, FQRN, ["two"], **SIGNED)
    plan = plan_rollback(repository.store, FQRN, number)
    assert (plan.tag.name, plan.tag.hash, plan.goal) == ("", root, f"revision {number}")
    assert [lost.name for lost in plan.lost] == ["three"]
    rollback(repository.store, plan, **SIGNED)
    opened = repository.opened()
    assert list(diff(opened.at(root), opened.revision)) == []
    assert names(repository) == {"one", "trunk"}
    assert repository.problems() == []
    # the revisions that were left behind are still before this one
    assert plan_rollback(repository.store, FQRN, number + 1).tag.revision == number + 1


@pytest.mark.parametrize("number", [-1, 0, 99])
def test_a_number_that_no_revision_has_is_refused(repository: LocalRepository, number: int) -> None:
    with refused(REVISION_UNKNOWN, fqrn=FQRN):
        plan_rollback(repository.store, FQRN, number)
    with refused(TagError, name="nowhere"):
        plan_rollback(repository.store, FQRN, "nowhere")


def test_where_the_line_of_revisions_is_broken_a_tag_below_leads_on(repository: LocalRepository) -> None:
    found = revisions(repository)
    one, two = (repository.opened().tag(name).revision for name in ("one", "two"))
    repository.change(lambda edit: edit.add("/four", DIRECTORY))
    repository.store.delete([found[two + 1].key])
    assert plan_rollback(repository.store, FQRN, one).tag.hash == found[one]
    remove_tags(repository.store, FQRN, ["one", "two"], **SIGNED)
    with refused(REVISION_UNKNOWN, fqrn=FQRN):
        plan_rollback(repository.store, FQRN, one)


def test_a_revision_that_the_reflog_no_longer_names_was_collected(repository: LocalRepository) -> None:
    two = repository.opened().tag("two")
    remove_tags(repository.store, FQRN, ["two"], **SIGNED)
    reflog = Reflog.load(repository.store.get(REFLOG_KEY))
    assert reflog.remove(two.hash)
    repository.store.put(REFLOG_KEY, reflog.to_bytes())
    with refused(REVISION_UNKNOWN, fqrn=FQRN):
        plan_rollback(repository.store, FQRN, two.revision)


def test_a_tag_whose_root_is_gone_is_refused_before_anything_is_written(repository: LocalRepository) -> None:
    repository.store.delete([repository.opened().tag("one").hash.key])
    before = dict(repository.store.objects)
    with refused(TagError, name="one"):
        plan_rollback(repository.store, FQRN, "one")
    assert repository.store.objects == before
