"""Commits that go together make the same tree as commits one after another, whoever comes first."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings, strategies as st

from include.cvmfs.commit.commit import Head, NewTag, commit_group
from include.cvmfs.commit.group import Change as Wanted
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.schema import Statistics
from include.cvmfs.revision.needed_objects import Lineage
from include.cvmfs.revision.revision import Revision
from include.gateway.protocol import overlap
from tests.fakes.minirepo import FQRN, signer
from tests.faults.machine.world import HERE, LEASES, MADE, Change, World


@dataclass(frozen=True)
class Holder:
    """Somebody with a lease; what he puts into three files below it, None: nothing; and his tag."""

    path: str
    files: tuple[int | None, ...]
    tag: bool

    def wanted(self, content: dict[str, int]) -> dict[str, int]:
        made = dict(content)
        if self.path in MADE:
            made[self.path] = HERE
        for place, number in enumerate(self.files):
            name = f"{self.path}/f{place}"
            made.pop(name, None)
            if number is not None:
                made[name] = number
        return made


holders = st.builds(
    Holder,
    st.sampled_from([path for path in LEASES if path]),
    st.tuples(*[st.none() | st.integers(0, 9)] * 3),
    st.booleans(),
)


def disjoint(many: list[Holder]) -> list[Holder]:
    """As leases are."""
    kept: list[Holder] = []
    for one in many:
        if not any(overlap(one.path, other.path) for other in kept):
            kept.append(one)
    return kept


def together(world: World, changes: list[tuple[Holder, Change]]) -> list[Head | Exception]:
    cache = CatalogCache(world.store)
    tags = [NewTag(holder.path.replace("/", "-")) if holder.tag else None for holder, _ in changes]
    return commit_group(
        world.store,
        [
            Wanted(holder.path, change.base, change.new.hash, tag)
            for (holder, change), tag in zip(changes, tags, strict=True)
        ],
        fqrn=FQRN, signer=signer(), now=world.seconds + 10, catalogs=cache, lineage=Lineage(cache),
    )  # fmt: skip


def everything(world: World) -> tuple[dict[str, Dirent], list[str], Statistics]:
    """All entries, where nested catalogs are mounted, and the counters."""
    view, entries, nested = Revision(CatalogCache(world.store), world.head().root), dict[str, Dirent](), list[str]()
    waiting = [""]
    while waiting:
        for entry in view.listing(folder := waiting.pop()):
            path = f"{folder}/{entry.name}"
            entries[path] = entry
            if stat.S_ISDIR(entry.mode):
                waiting.append(path)
            if view.nested_at(path):
                nested.append(path)
    statistics = view.root.statistics
    view.close()
    return entries, sorted(nested), statistics


@settings(max_examples=8, derandomize=True)
@given(st.lists(holders, min_size=1, max_size=5), st.lists(holders, min_size=2, max_size=8).map(disjoint), st.randoms())
def test_a_group_makes_the_tree_that_its_commits_make_one_by_one_in_any_order(
    earlier: list[Holder], many: list[Holder], chance: Random
) -> None:
    grouped, single = World.fresh(), World.fresh()
    for number, before in enumerate(earlier):  # a past, the same on both sides
        for world in (grouped, single):
            change = world.prepare(world.revision, before.wanted(dict(world.contents[world.revision])))
            assert change is not None
            together(world, [(Holder(before.path, before.files, False), change)])
            world.seconds = 1_900_000_000 + 100 * number
            for revision, root, content in world.observed():
                world.roots[revision], world.contents[revision] = root, content
    assert grouped.head().root == single.head().root
    base: ObjectHash = grouped.head().root

    changes = []
    for holder in many:
        change = grouped.prepare(grouped.revision, holder.wanted(dict(grouped.contents[grouped.revision])))
        assert change is not None
        changes.append((holder, change))
    single.store.objects.update({key: data for _, change in changes for key, data in change.objects.items()})

    heads = together(grouped, changes)
    assert not [one for one in heads if isinstance(one, Exception)]
    assert len({one.manifest.revision for one in heads}) <= 2, "one revision for all; what stands already makes none"
    chance.shuffle(changes)
    for one in changes:
        [head] = together(single, [one])
        assert isinstance(head, Head), head
    assert everything(grouped) == everything(single)
    assert grouped.tags().keys() == single.tags().keys()
    assert grouped.head().revision - grouped.revision <= 1
    assert grouped.problems(contents=True) == single.problems(contents=True) == []
    if all(not change.touched and not holder.tag for holder, change in changes):
        assert grouped.head().root == base
