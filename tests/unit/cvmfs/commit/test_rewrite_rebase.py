"""A tree that stands at a second place is the same tree there; its catalogs are new, and no data object is touched."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.group import rebase
from include.cvmfs.format.catalog import PackedCatalog
from include.cvmfs.format.layout import Layout
from tests.fakes.local import DIRECTORY, TREES, LocalRepository, make_folder
from tests.unit.cvmfs.commit.test_rewrite import below


@settings(max_examples=15)
@given(nodes=TREES, target=st.sampled_from(["/a/there", "/b/there", "/there"]))
def test_the_second_place_has_the_same_tree_and_the_first_one_keeps_it(
    nodes: dict[str, dict[str, Any]], target: str
) -> None:
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
