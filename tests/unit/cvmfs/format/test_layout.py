"""All catalogs of a repository have one layout, so that what stock publishers merge without naming columns fits."""

from __future__ import annotations

import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.check.check import check
from include.cvmfs.check.findings import Subject
from include.cvmfs.commit.commit import read_head, switch
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.merge import merge
from include.cvmfs.commit.rewrite import Rewritten, Sender, Unifier, switch_rewritten
from include.cvmfs.commit.tags import add_tag, plan_rollback, rollback
from include.cvmfs.coordination import generation as generations
from include.cvmfs.coordination.generation import CollectionPhase, Generation, look
from include.cvmfs.errors import CatalogError, DestinationError, FormatError, GenerationMoved
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.layout import KEY, Layout, MetaInfo, skeleton
from include.cvmfs.format.schema import open_image
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.revision.repository import ManifestVerifier
from include.cvmfs.sources.artifact import DirectorySource
from tests.fakes.local import DIRECTORY
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, SECONDS, MiniRepository, master_key, opened, sample, signer
from tests.fakes.oldcatalogs import at_revision
from tests.fakes.refused import refused

LAYOUTS = list(Layout)


def laid_out(layout: Layout) -> MiniRepository:
    """A repository as others made it: of the last layout, as one that was upgraded."""
    if layout is not Layout.MTIME_NS_LAST:
        return sample(MemoryStore(), layout=layout)
    mini = sample(MemoryStore(), layout=Layout.MTIME_NS)
    for path, database in mini.databases.items():
        mini.databases[path] = at_revision(database, 7, upgraded=True)
    return mini


def commit(store: MemoryStore, edit: Edit) -> None:
    switch(store, read_head(store, FQRN), edit.finish(SECONDS + 60), signer=signer(), now=SECONDS + 60)


def databases(store: MemoryStore) -> dict[str, bytes]:
    repository = opened(store)
    return {one.path: repository.catalogs.database(one.hash) for one in repository.revision.catalogs_below()}


def layouts(store: MemoryStore) -> set[Layout]:
    return {Catalog.load(database).layout for database in databases(store).values()}


def rows(connection: sqlite3.Connection, columns: tuple[str, ...]) -> dict[tuple[int, int], tuple[object, ...]]:
    entries = connection.execute(f"SELECT {', '.join(columns)} FROM catalog").fetchall()
    return {row[:2]: row for row in entries}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_nested_catalog_fits_into_any_other_without_column_names(layout: Layout, tmp_path: Path) -> None:
    mini = laid_out(layout)
    mini.publish()
    (tmp_path / "a/b").mkdir(parents=True)
    for folder in ("a", "a/b"):
        (tmp_path / folder / ".cvmfscatalog").touch()
        (tmp_path / folder / "file").write_text(folder)
    changeset = prepare(
        DirectorySource(tmp_path), store=mini.store, fqrn=FQRN, destination="/new/tree", now=NOW,
        options=PrepareOptions(layout=layout, mtime_ns=layout.has_mtime_ns),
    )  # fmt: skip
    edit = Edit(CatalogCache(mini.store), opened(mini.store).manifest.root)
    edit.make_nested("/new", DIRECTORY)
    edit.make_nested("/new/empty", DIRECTORY)
    edit.hang(changeset.reference, changeset.root_entry, changeset.statistics.total)
    edit.remove("/sw/app/run")
    commit(mini.store, edit)
    assert check(opened(mini.store)).problems == ()
    found = databases(mini.store)
    assert len(found) == 8
    for one, other in itertools.permutations(found.values(), 2):
        source, target = open_image(one), open_image(other)
        target.execute("DELETE FROM catalog")
        target.execute("ATTACH ':memory:' AS nested")
        target.deserialize(one, name="nested")
        target.execute("INSERT INTO main.catalog SELECT * FROM nested.catalog")
        columns = (*KEY, *(name for name in layout.columns if name not in KEY))
        assert rows(target, columns) == rows(source, columns)


@pytest.mark.parametrize(("mtime_ns", "layout"), [(False, Layout.PLAIN), (True, Layout.MTIME_NS)])
def test_a_repository_of_ours_has_the_layout_that_it_was_created_with(mtime_ns: bool, layout: Layout) -> None:
    store = MemoryStore()
    create_repository(store, FQRN, master=master_key(), signer=signer(), now=NOW, mtime_ns=mtime_ns)
    edit = Edit(CatalogCache(store), opened(store).manifest.root)
    edit.make_nested("/a", DIRECTORY.changed(mtime_ns=7))
    commit(store, edit)
    assert layouts(store) == {layout}
    root = opened(store).revision.catalog_at("")
    assert root.get_property("schema_revision") == ("7" if mtime_ns else "6")
    assert len(layout.columns) == (16 if mtime_ns else 15)
    assert opened(store).revision.entry("/a").mtime_ns == (7 if mtime_ns else None)
    assert check(opened(store)).problems == ()


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_commit_changes_no_layout_of_catalogs_that_are_there(layout: Layout) -> None:
    mini = laid_out(layout)
    mini.databases["/sw/app/lib/deep"] = laid_out(Layout.PLAIN).databases["/sw/app/lib/deep"]
    mini.publish()
    before = {path: Catalog.load(data).layout for path, data in databases(mini.store).items()}
    edit = Edit(CatalogCache(mini.store), opened(mini.store).manifest.root)
    edit.remove("/sw/app/lib/deep/data")
    edit.remove("/readme")
    commit(mini.store, edit)
    assert {path: Catalog.load(data).layout for path, data in databases(mini.store).items()} == before


def test_a_change_that_has_nanoseconds_is_merged_by_name_into_catalogs_that_have_none() -> None:
    mini = laid_out(Layout.PLAIN)
    mini.publish()
    base = opened(mini.store).manifest.root
    cache = CatalogCache(mini.store)
    change = Edit(cache, base)
    change.root.convert(Layout.MTIME_NS)  # as a publisher of the development branch does
    entry = change.lookup("/readme")
    assert entry is not None
    change.add("/sw/more", entry.changed(mtime_ns=5))
    new = change.finish(SECONDS + 1)
    for packed in new.catalogs:
        mini.store.put(packed.hash.key, packed.data)
    merged = merge(cache, base=base, new=new.hash, current=base, lease_path="/sw")
    assert merged.root.layout is Layout.PLAIN
    assert merged.lookup("/sw/more") == entry.changed(name="more")


def test_nanoseconds_are_refused_before_anything_is_read_where_no_column_holds_them(tmp_path: Path) -> None:
    store = MemoryStore()
    with refused(DestinationError, path="/x"):
        prepare(
            DirectorySource(tmp_path / "absent"), store=store, fqrn=FQRN, destination="/x", now=NOW,
            options=PrepareOptions(mtime_ns=True),
        )  # fmt: skip
    assert store.objects == {}


def test_columns_in_an_order_of_their_own_are_read_and_no_new_catalog_follows_them() -> None:
    mini = sample(MemoryStore())
    mini.damage("", "ALTER TABLE catalog ADD COLUMN more INTEGER").publish()
    assert opened(mini.store).revision.read("/readme") == b"hello\n"
    edit = Edit(CatalogCache(mini.store), opened(mini.store).manifest.root)
    with refused(CatalogError, path=""):
        edit.make_nested("/new", DIRECTORY)


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(Layout, 2)))
def test_another_layout_keeps_every_value_but_nanoseconds_that_have_no_column(one: Layout, other: Layout) -> None:
    mini = laid_out(one)
    if one.has_mtime_ns:
        mini.damage("/sw/app", "UPDATE catalog SET mtimens = 5 WHERE name IN ('run', 'one')")
    catalog = Catalog.load(mini.databases["/sw/app"])
    kept = tuple(name for name in one.columns if name in other.columns)
    before, statistics = open_image(mini.databases["/sw/app"]), catalog.statistics
    assert catalog.convert(other) == (2 if one.has_mtime_ns and not other.has_mtime_ns else 0)
    after = open_image(catalog.to_bytes())
    assert Catalog.load(catalog.to_bytes()).layout is other
    assert rows(after, ("rowid", *kept)) == rows(before, ("rowid", *kept))
    for table in ("chunks", "nested_catalogs", "statistics"):
        sql = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert after.execute(sql).fetchall() == before.execute(sql).fetchall()
    assert catalog.statistics == statistics
    assert catalog.get_property("root_prefix") == "/sw/app"
    assert catalog.get_property("schema_revision") == str(other.revision)


def test_a_check_names_catalogs_of_different_layouts_and_the_cure() -> None:
    mini = laid_out(Layout.MTIME_NS)
    mini.databases["/sw/app/lib/deep"] = laid_out(Layout.PLAIN).databases["/sw/app/lib/deep"]
    mini.publish()
    [problem] = check(opened(mini.store)).problems
    assert (problem.subject, problem.path) == (Subject.LAYOUT, "")
    assert "1 with 15 columns (/sw/app/lib/deep); 2 with 16 columns, mtimens after mtime (/, /sw/app)" in problem.what
    assert problem.what.endswith("nightshift repo repair --catalog-layout")


def test_what_a_stock_receiver_writes_above_a_tree_with_nanoseconds_is_sound() -> None:
    mini = laid_out(Layout.MTIME_NS)
    mini.damage("/sw/app", "UPDATE catalog SET mtimens = 5 WHERE name = 'app'").publish()
    assert check(opened(mini.store)).problems == ()
    mini.damage("", "UPDATE catalog SET mtimens = 6 WHERE name = 'app'").publish()
    [problem] = check(opened(mini.store)).problems
    assert (problem.subject, problem.path) == (Subject.TRANSITION, "/sw/app")
    assert problem.what.endswith("mtime (ns)")


def mixed() -> MiniRepository:
    """A stock repository that was published to with nanoseconds: three layouts, with a value in each that can."""
    mini = laid_out(Layout.MTIME_NS_LAST)
    mini.databases["/sw/app"] = laid_out(Layout.MTIME_NS).databases["/sw/app"]
    mini.databases["/sw/app/lib/deep"] = laid_out(Layout.PLAIN).databases["/sw/app/lib/deep"]
    mini.damage("/sw/app", "UPDATE catalog SET mtimens = 5 WHERE name IN ('run', 'code')")
    mini.damage("", "UPDATE catalog SET mtimens = 6 WHERE name = 'readme'")
    mini.publish()
    return mini


def unified(store: MemoryStore, layout: Layout, catalogs: Sender | None = None, **more: Any) -> Rewritten:
    sender = catalogs or Sender(store)
    unifier = Unifier(CatalogCache(store), layout, sender.keep)
    fields = {"seen": look(store), "signer": signer(), "now": SECONDS + 60, "voucher": ManifestVerifier(signer())}
    return switch_rewritten(store, FQRN, unifier, sender, **fields | more)[1]


@pytest.mark.parametrize(
    ("layout", "rewritten", "lost"), [(Layout.PLAIN, 2, 3), (Layout.MTIME_NS, 3, 0), (Layout.MTIME_NS_LAST, 3, 0)]
)
def test_catalogs_of_several_layouts_become_one_in_one_revision(layout: Layout, rewritten: int, lost: int) -> None:
    store = mixed().store
    before = {path: entry.changed(mtime_ns=None) for path, entry in opened(store).revision.walk()}
    revision = opened(store).manifest.revision
    done = unified(store, layout)
    assert (done.catalogs, done.mtime_ns) == (rewritten, lost)
    assert layouts(store) == {layout}
    report = check(opened(store), contents=True)
    assert (report.problems, report.revision) == ((), revision + 1)
    assert {path: entry.changed(mtime_ns=None) for path, entry in opened(store).revision.walk()} == before
    assert unified(store, layout).catalogs == 0
    assert opened(store).manifest.revision == revision + 1


def test_a_repair_that_was_killed_sends_nothing_again() -> None:
    store = mixed().store
    manifest, first = opened(store).manifest, Sender(store)

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unified(store, Layout.PLAIN, first, before_switch=killed)
    assert (first.sent, opened(store).manifest) == (2, manifest)
    again = Sender(store)
    assert unified(store, Layout.PLAIN, again).catalogs == 2
    assert again.sent == 0
    assert opened(store).manifest.revision == manifest.revision + 1


def test_a_repair_beside_a_collection_changes_nothing() -> None:
    store = mixed().store
    seen = look(store)
    generations.write(store, Generation(1, CollectionPhase.MARKING, NOW), expected=None)
    before = opened(store).manifest
    with pytest.raises(GenerationMoved):
        unified(store, Layout.PLAIN, seen=seen)
    assert opened(store).manifest == before


@pytest.mark.parametrize("several", [True, False])
def test_a_rollback_to_several_layouts_brings_them_to_that_of_the_current_revision(several: bool) -> None:
    mini = mixed() if several else laid_out(Layout.MTIME_NS)
    if not several:
        mini.publish()
    store = mini.store
    base = opened(store).manifest.root
    tree = {path: entry.changed(mtime_ns=None) for path, entry in opened(store).revision.walk()}
    edit = Edit(CatalogCache(store), opened(store).manifest.root)
    edit.remove("/readme")
    commit(store, edit)
    unified(store, Layout.PLAIN)
    add_tag(store, FQRN, "old", str(base), signer=signer(), now=SECONDS + 70)
    replaced = dict[str, str]()
    rollback(store, plan_rollback(store, FQRN, "old"), signer=signer(), now=SECONDS + 80, rewritten=replaced.update)
    nested = {str(one.hash) for one in opened(store).revision.catalogs_below()}
    assert bool(replaced) is several
    assert set(replaced.values()) & nested == set(replaced.values()) - {replaced.get(str(base))}
    assert not replaced.keys() & nested
    assert layouts(store) == {Layout.PLAIN if several else Layout.MTIME_NS}
    assert {path: entry.changed(mtime_ns=None) for path, entry in opened(store).revision.walk()} == tree
    assert check(opened(store)).problems == ()


def test_a_damaged_catalog_is_named_by_path_and_hash() -> None:
    mini = sample(MemoryStore())
    # what a merge without names makes of 16 columns whose order differs
    mini.damage("/sw/app", "UPDATE catalog SET flags = NULL, name = '1' WHERE name = 'run'").publish()
    repository = opened(mini.store)
    name = repository.revision.nested_at("/sw/app")
    assert isinstance(name, NestedRef)
    with pytest.raises(CatalogError) as caught:
        repository.revision.listing("/sw/app")
    assert str(caught.value) == f"/sw/app: damaged catalog {name.hash}: entry '1': flags is NULL"
    view = Edit(CatalogCache(mini.store), repository.manifest.root)
    with refused(CatalogError, path="/sw/app"):
        view.listing("/sw/app")


# -- meta info


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
INFOS = st.builds(
    MetaInfo,
    administrator=TEXT,
    email=TEXT,
    organisation=TEXT,
    description=TEXT,
    url=TEXT,
    stratum0=TEXT,
    stratum1s=st.lists(TEXT, max_size=3).map(tuple),
    custom=st.dictionaries(TEXT, VALUES, max_size=3),
    others=st.dictionaries(TEXT.map(lambda key: f"x-{key}"), VALUES, max_size=3),
)


def test_the_skeleton_has_the_members_of_the_stock_tools() -> None:
    assert json.loads(skeleton()) == {
        "administrator": "",
        "email": "",
        "organisation": "",
        "description": "",
        "url": "",
        "recommended-stratum0": "",
        "recommended-stratum1s": [],
        "custom": {},
    }


@given(INFOS)
def test_it_reads_back_as_what_was_written(info: MetaInfo) -> None:
    assert MetaInfo.parse(info.format()) == info


def test_text_that_is_no_unicode_still_makes_a_file() -> None:
    odd = MetaInfo.parse(b'{"description": "\\ud800"}')
    assert MetaInfo.parse(odd.format()) == odd


def test_absent_members_are_empty() -> None:
    assert MetaInfo.parse(b"{}") == MetaInfo()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{", b"\xff\xfe\xfd", b"[" * 100_000, b'{"url": 1}', b'{"custom": []}',
        b'{"recommended-stratum1s": ""}',
    ],
)  # fmt: skip
def test_what_is_no_meta_info_is_refused(data: bytes) -> None:
    with refused(FormatError, what="meta info"):
        MetaInfo.parse(data)
