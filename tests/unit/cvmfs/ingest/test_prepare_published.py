"""Trees with all that a catalog can tell are published, found sound by a full check, and leave nothing when they go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.cvmfs.check.check import check
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.schema import Statistics
from include.cvmfs.ingest.autocatalog import Cuts, Weights
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.sources.dirtab import Dirtab
from include.cvmfs.sources.source import Entry, EntryKind, IdMap, OwnerMap, pack_xattrs
from tests.fakes.edits import commit, founded, stored
from tests.fakes.minirepo import FQRN, NOW, opened
from tests.fakes.recount import read_back
from tests.fakes.trees import ListedSource, Members

NAMES = ["a", "b", "lib", ".cvmfscatalog", ".cvmfsautocatalog", "é"]

XATTRS = st.dictionaries(st.sampled_from([b"user.a", b"user.b"]), st.binary(max_size=3), max_size=2)
KINDS = [EntryKind.FILE, *(EntryKind[kind] for kind in ("FILE", "SYMLINK", "FIFO", "BLOCK_DEVICE", "DIRECTORY"))]
NODES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "mode": st.integers(0, 0o7777),
        "mtime": st.integers(-5, 2_000_000_000),
        "mtime_ns": st.integers(0, 999_999_999),
        "owner": st.tuples(st.integers(0, 3), st.integers(0, 3)),
        "xattrs": XATTRS,
        "content": st.one_of(st.binary(max_size=30), st.integers(200, 30_000).map(lambda size: b"%05d" % size * size)),
        "link": st.booleans(),
    }
)
TREES = st.dictionaries(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join), NODES, max_size=14)


def prepare_options(*, mtime_ns: bool, **options: Any) -> PrepareOptions:
    return PrepareOptions(layout=Layout.MTIME_NS if mtime_ns else Layout.PLAIN, mtime_ns=mtime_ns, **options)


OPTIONS = st.builds(
    prepare_options,
    algorithm=st.sampled_from(list(Algorithm)),
    chunking=st.just(ChunkLimits(1 << 12, 1 << 13, 1 << 14)),
    owner=st.sampled_from([None, (5, 6), OwnerMap(IdMap({1: 2, 2: 1}), IdMap({3: 0}, 9))]),
    mtime=st.sampled_from([None, 77]),
    mtime_ns=st.booleans(),
    specials=st.just(Specials.KEEP),
    xattrs=st.sampled_from([(), ("user.",)]),
    external=st.booleans(),
    cuts=st.builds(
        Cuts, dirtab=st.sampled_from([None, Dirtab.parse("/x/*\n! */b\n")]), auto=st.sampled_from([None, Weights(5, 2)])
    ),
)


class WithXattrs(ListedSource):
    """Entries whose attributes are told apart from them."""

    def __init__(self, members: Members, attributes: dict[str, dict[bytes, bytes]]) -> None:
        super().__init__(members)
        self._attributes = attributes

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> dict[bytes, bytes]:
        found = self._attributes.get(entry.path, {})
        return {name: value for name, value in found.items() if name.startswith(namespaces)}


def members_of(tree: dict[str, dict[str, object]]) -> tuple[Members, dict[str, dict[bytes, bytes]]]:
    """A tree out of arbitrary nodes: what is below something else makes that a directory, markers are files."""
    members: Members = []
    attributes: dict[str, dict[bytes, bytes]] = {}
    previous: dict[str, str] = {}
    for path, node in sorted(tree.items()):
        parts = path.split("/")
        if any(".cvmfs" in part for part in parts[:-1]):
            continue
        kind = node["kind"]
        if any(other.startswith(path + "/") for other in tree):
            kind = EntryKind.DIRECTORY
        if ".cvmfs" in parts[-1]:
            kind = EntryKind.FILE
        folder = "/".join(parts[:-1])
        content = node["content"] if kind is EntryKind.FILE and ".cvmfs" not in path else b""
        if kind is EntryKind.FILE and node["link"] and folder in previous and ".cvmfs" not in path:
            members.append((Entry(path, EntryKind.HARDLINK, 0, 0, hardlink_to=previous[folder]), None))
            continue
        uid, gid = node["owner"]
        entry = Entry(
            path, kind, node["mode"], node["mtime"], uid, gid, len(content),
            symlink="target" if kind is EntryKind.SYMLINK else "",
            device=2049 if kind is EntryKind.BLOCK_DEVICE else 0,
            mtime_ns=node["mtime_ns"],
        )  # fmt: skip
        members.append((entry, content if kind is EntryKind.FILE else None))
        attributes[path] = node["xattrs"]
        if kind is EntryKind.FILE and ".cvmfs" not in path:
            previous[folder] = path
    return members, attributes


@pytest.mark.slow
@settings(max_examples=40)
@given(tree=TREES, options=OPTIONS)
def test_any_tree_is_published_soundly_and_goes_without_a_trace(
    tree: dict[str, dict[str, object]], options: PrepareOptions
) -> None:
    store = founded(options.algorithm, mtime_ns=options.mtime_ns)
    members, attributes = members_of(tree)

    def prepared(given: Members):  # type: ignore[no-untyped-def]
        source = WithXattrs(given, attributes)
        return prepare(source, store=store, fqrn=FQRN, destination="/x", now=NOW, options=options)

    changeset = prepared(members)
    assert prepared(members).root == changeset.root
    found, statistics = read_back(store, changeset.reference)
    assert statistics == changeset.statistics
    for entry, content in members:
        one = found.get(f"/x/{entry.path}")
        if one is None:
            assert options.cuts.auto
            assert ".cvmfs" in entry.path
            continue
        if entry.kind is EntryKind.HARDLINK:
            continue
        assert one.entry.xattr == (pack_xattrs(attributes[entry.path]) if options.xattrs else None)
        if options.mtime is None:
            assert one.entry.mtime == entry.mtime
        assert (one.entry.mtime_ns is not None) is options.mtime_ns
        if content is not None and not one.entry.external:
            assert one.content == content

    def statistics_of_all() -> Statistics:
        return opened(store).revision.catalog_at("").statistics

    before, base = statistics_of_all(), opened(store).manifest.root
    edit = Edit(CatalogCache(store), base)
    edit.hang(changeset.reference, found["/x"].entry.changed(nested_root=False), statistics.total)
    commit(store, base, stored(store, edit), "/x")
    report = check(opened(store), contents=True)
    assert not report.problems, report.problems
    assert statistics_of_all().below.regular == statistics.total.regular

    base = opened(store).manifest.root
    edit = Edit(CatalogCache(store), base)
    edit.remove("/x")
    commit(store, base, stored(store, edit), "/x")
    assert statistics_of_all() == before
    assert not check(opened(store), contents=True).problems
