"""Wrong statistics counters are counted again: the catalogs that have some are rewritten, and nothing else changes."""

from __future__ import annotations

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.check.check_catalog import Miscount
from include.cvmfs.check.restore import Recounter
from include.cvmfs.commit.manifest_verifier import Voucher
from include.cvmfs.commit.rewrite import Rewritten, Sender, switch_rewritten
from include.cvmfs.coordination.generation import look
from include.cvmfs.errors import CatalogError
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.schema import NAMES
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, SECONDS, MiniRepository, opened, signer
from tests.fakes.oldcatalogs import at_revision
from tests.fakes.refused import refused

SET = "UPDATE statistics SET value = ? WHERE counter = ?"


def recounted(store: MemoryStore) -> tuple[Recounter, Rewritten]:
    sender = Sender(store)
    recounter = Recounter(CatalogCache(store), sender.keep)
    _, done = switch_rewritten(
        store, FQRN, recounter, sender, seen=look(store), signer=signer(), now=SECONDS + 60, voucher=Voucher(signer())
    )
    return recounter, done


def all_of(recounter: Recounter) -> list[Miscount]:
    return [miscount for path in sorted(recounter.miscounts) for miscount in recounter.miscounts[path]]


@pytest.mark.parametrize("half", ["self", "subtree"])
@pytest.mark.parametrize(("catalog", "rewritten"), [("", 1), ("/sw/app", 2), ("/sw/app/lib/deep", 3)])
def test_a_wrong_counter_is_counted_again_in_its_catalog_alone(
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


def test_a_counter_that_a_commit_carried_on_is_right_in_every_catalog_above(
    mini: MiniRepository, store: MemoryStore
) -> None:
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
