"""The check names data objects that are missing, cut or wrong, with a path that needs them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.check.check_catalog import Miscount
from include.cvmfs.check.check_objects import Recounter, Restored, is_whole, restore_objects
from include.cvmfs.check.findings import Lost, Subject
from include.cvmfs.commit.commit import read_head
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.rewrite import Rewritten, Sender, switch_rewritten
from include.cvmfs.coordination.generation import look
from include.cvmfs.errors import CatalogError
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.objects import Compressor
from include.cvmfs.format.schema import NAMES
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.revision.repository import ManifestVerifier, Repository
from include.cvmfs.sources.artifact import DirectorySource
from include.storage.errors import Forbidden, Unavailable, Unsupported
from tests.fakes.checks import checked, key_of, places, set_row
from tests.fakes.edits import commit, founded, stored
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, SECONDS, MiniRepository, opened, signer
from tests.fakes.oldcatalogs import at_revision
from tests.fakes.refused import refused


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


# -- lost objects come back from their tree


CUTS = ChunkLimits(4 << 10, 8 << 10, 16 << 10)
OPTIONS = PrepareOptions(mtime=1, owner=(0, 0), chunking=CUTS)
FILES = {
    "small": b"small",
    "sub/.cvmfscatalog": b"",
    "sub/other": b"other " * 50,
    "large": random.Random(7).randbytes(100 << 10),  # in chunks
}


@dataclass
class Case:
    store: MemoryStore
    tree: Path

    def check(self, *, contents: bool = False) -> CheckReport:
        return check(self.repository(), contents=contents)

    def repository(self) -> Repository:
        return opened(self.store)

    def restore(self, lost: Sequence[Lost], *, tree: Path | None = None, destination: str = "/x") -> Restored:
        return restore_objects(
            self.store, lost, lambda: DirectorySource(tree or self.tree), fqrn=FQRN, destination=destination, now=NOW,
            options=OPTIONS,
        )  # fmt: skip

    def lose(self, path: str) -> str:
        """Delete the object of a file, or one chunk of it; its key."""
        tree = self.repository()
        chunks = tree.revision.chunks(path)
        name = chunks[1].hash if chunks else tree.revision.entry(path).hash
        assert name is not None
        del self.store.objects[name.key]
        return name.key


def filled(folder: Path, files: Mapping[str, bytes] = FILES) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return published(tmp_path, OPTIONS)


def published(folder: Path, options: PrepareOptions) -> Case:
    store = founded()
    tree = filled(folder / "tree")
    changeset = prepare(DirectorySource(tree), store=store, fqrn=FQRN, destination="/a", now=NOW, options=options)
    base = read_head(store, FQRN).manifest.root
    edit = Edit(CatalogCache(store), base)
    edit.hang(NestedRef("/a", changeset.root, changeset.root_size), changeset.root_entry, changeset.statistics.total)
    commit(store, base, stored(store, edit), "/a")
    return Case(store, tree)


@pytest.mark.parametrize("made_by", Compressor)
def test_objects_come_back_whatever_compressed_them(tmp_path: Path, made_by: Compressor) -> None:
    case = published(tmp_path, replace(OPTIONS, compressor=made_by))
    assert case.check(contents=True).problems == ()
    lost = {case.lose("/a/sub/other"), case.lose("/a/large")}
    done = case.restore(case.check().lost)
    assert ({each.hash.key for each in done.mended}, done.missing) == (lost, ())


def test_lost_files_chunks_and_damaged_objects_come_back_from_their_tree(case: Case) -> None:
    assert case.check(contents=True).problems == ()
    lost = {case.lose("/a/small"), case.lose("/a/large")}
    broken = case.repository().revision.entry("/a/sub/other").hash
    assert broken is not None
    case.store.objects[broken.key] = b"not what it was"
    report = case.check(contents=True)
    assert {one.hash.key for one in report.lost} == lost | {broken.key}
    assert {one.stored for one in report.lost} == {None, 15}
    puts = case.store.counters.puts
    done = case.restore(report.lost)
    assert set(done.mended) == set(report.lost)
    assert done.missing == ()
    assert case.store.counters.puts == puts + 3, "nothing but what was lost is sent"
    assert case.check(contents=True).problems == ()


def test_what_the_tree_does_not_have_is_named(case: Case, tmp_path: Path) -> None:
    case.lose("/a/small")
    case.lose("/a/sub/other")
    report = case.check()
    part = filled(tmp_path / "part", {"renamed": FILES["small"], "unrelated": b"x"})
    done = case.restore(report.lost, tree=part)
    assert [one.path for one in done.mended] == ["/a/small"]
    assert [one.path for one in done.missing] == ["/a/sub/other"]
    assert [problem.path for problem in case.check().problems] == ["/a/sub/other"]


def test_a_lost_catalog_comes_back_with_the_destination_and_options_of_its_tree(case: Case) -> None:
    (nested,) = [one for one in case.repository().revision.catalogs_below("/a") if one.path == "/a/sub"]
    del case.store.objects[nested.hash.with_suffix("C").key]
    report = case.check()
    assert [one.hash.suffix for one in report.lost] == ["C"]
    assert not is_whole(case.store, report.lost[0])
    elsewhere = case.restore(report.lost)
    assert elsewhere.mended == ()
    restored = case.restore(report.lost, destination="/a")
    assert restored.missing == ()
    assert case.check().problems == ()


# -- counters


SET = "UPDATE statistics SET value = ? WHERE counter = ?"


def recounted(store: MemoryStore) -> tuple[Recounter, Rewritten]:
    sender = Sender(store)
    recounter = Recounter(CatalogCache(store), sender.keep)
    _, done = switch_rewritten(
        store,
        FQRN,
        recounter,
        sender,
        seen=look(store),
        signer=signer(),
        now=SECONDS + 60,
        voucher=ManifestVerifier(signer()),
    )
    return recounter, done


def all_of(recounter: Recounter) -> list[Miscount]:
    return [miscount for path in sorted(recounter.miscounts) for miscount in recounter.miscounts[path]]


@pytest.mark.parametrize("half", ["self", "subtree"])
@pytest.mark.parametrize(("catalog", "rewritten"), [("", 1), ("/sw/app", 2), ("/sw/app/lib/deep", 3)])
def test_a_wrong_counter_is_counted_again(
    mini: MiniRepository, store: MemoryStore, half: str, catalog: str, rewritten: int
) -> None:
    for number, name in enumerate(NAMES):
        mini.damage(catalog, SET, -2 - number, f"{half}_{name}")
    mini.publish()
    tree = dict(opened(store).revision.walk())
    clean = {nested.path: nested.hash for nested in opened(store).revision.catalogs_below()}
    assert not check(opened(store), quick=True).ok
    recounter, done = recounted(store)
    assert {miscount.path for miscount in all_of(recounter)} == {catalog}
    assert [(m.counter, m.stored) for m in all_of(recounter)] == [(f"{half}_{n}", -2 - i) for i, n in enumerate(NAMES)]
    assert (done.catalogs, opened(store).manifest.revision) == (rewritten, 2)
    report = check(opened(store), contents=True)
    assert (report.problems, report.warnings) == ((), ())
    assert dict(opened(store).revision.walk()) == tree
    kept = {nested.path for nested in opened(store).revision.catalogs_below() if clean[nested.path] == nested.hash}
    assert len(kept) == len(clean) - rewritten
    recounter, done = recounted(store)
    assert (all_of(recounter), done.catalogs, opened(store).manifest.revision) == ([], 0, 2)


def test_a_counter_is_right_in_every_catalog_above(mini: MiniRepository, store: MemoryStore) -> None:
    mini.damage("/sw/app/lib/deep", SET, 7, "self_regular")  # there are 2: what is above has counted 5 more since
    mini.damage("/sw/app", SET, 7, "subtree_regular")
    mini.damage("", "DELETE FROM statistics WHERE counter = 'subtree_xattr'")
    mini.publish()
    recounter, done = recounted(store)
    assert [str(miscount) for miscount in all_of(recounter)] == [
        "subtree_xattr is absent, counted 1", "subtree_regular is 7, counted 2", "self_regular is 7, counted 2"
    ]  # fmt: skip
    assert done.catalogs == 3
    assert check(opened(store)).problems == ()


def test_counters_that_an_older_catalog_does_not_have_are_not_wrong(mini: MiniRepository, store: MemoryStore) -> None:
    for path, database in mini.databases.items():
        mini.databases[path] = at_revision(database, 0)
    mini.publish()
    assert recounted(store)[1].catalogs == 0


def test_catalogs_whose_rows_cannot_be_counted_are_left_as_they_are(mini: MiniRepository, store: MemoryStore) -> None:
    mini.damage("/sw/app", SET, -2, "self_xattr")
    mini.damage("/sw/app/lib/deep", "UPDATE catalog SET parent_1 = 1 WHERE name = 'data'").publish()
    before = opened(store).manifest
    with refused(CatalogError, path="/sw/app/lib/deep") as caught:
        recounted(store)
    assert "dangling: data" in caught.value.detail
    assert opened(store).manifest == before


def test_a_rehearsal_stores_nothing(mini: MiniRepository, store: MemoryStore) -> None:
    mini.damage("/sw/app", SET, -2, "self_xattr").publish()
    stored, kept = set(store.list("")), []
    recounter = Recounter(CatalogCache(store), kept.append)
    done = recounter.tree(NestedRef("", opened(store).manifest.root, 0))
    assert (done.catalogs, len(kept), set(store.list(""))) == (2, 2, stored)
