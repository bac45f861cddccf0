"""Trees that are kept for a node: the same tree comes out, and what cannot be sent is refused before anything is."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, CvmfsError, DestinationError, SourceError
from include.cvmfs.format.layout import Layout
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import PrepareOptions
from include.cvmfs.ingest.spool import SpecialBits, Specials
from include.cvmfs.sources.artifact import DirectorySource, open_artifact
from include.cvmfs.sources.source import AttributedSource, Entry, EntryKind, IdMap, OwnerMap, SourceLimits, pack_xattrs
from include.cvmfs.sources.tarball import TarSource
from include.publishers.capabilities import Operation
from include.publishers.errors import PACKED_MISSING
from include.publishers.server.node import TreeComparison
from include.publishers.server.pack import Packing, member
from tests.fakes.archives import Member, archive, file, folder, hardlink, symlink
from tests.fakes.local import TREES, LocalRepository, make_folder
from tests.fakes.minirepo import FQRN, NOW
from tests.fakes.refused import refused

HERE = "/a/b"


def packing(place: Path, lossless: Any = None, **options: Any) -> Packing:
    return Packing(FQRN, place / "packed", PrepareOptions(**options), lossless or (lambda operation, path: None))


def pack(where: Packing, members: list[Member] | bytes, **more: Any) -> Changeset:
    data = members if isinstance(members, bytes) else archive(members)
    return where.pack(open_artifact(iter([data]), "tree.tar"), destination=HERE, now=NOW, **more)


def names(where: Packing, changeset: Changeset) -> dict[str, tarfile.TarInfo]:
    """Members of the archive by the standard library."""
    data = b"".join(where.find(changeset).blocks())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {one.name: one for one in tar.getmembers()}


def test_an_archive_is_kept_and_found_again(tmp_path: Path) -> None:
    where = packing(tmp_path)
    data = archive([folder("lib"), file("lib/a", b"content" * 1000, mode=0o755), symlink("lib/b", "../../x")])
    made = pack(where, data)
    assert (made.files, made.bytes, made.source_sha256) == (2, 7000, hashlib.sha256(data).hexdigest())
    assert (made.objects_new, made.bytes_uploaded, made.stored) == (0, 0, True)
    found = names(where, made)
    assert list(found) == ["lib", "lib/a", "lib/b"]
    assert (found["lib/a"].mode, found["lib/a"].size, found["lib/b"].linkname) == (0o755, 7000, "../../x")
    assert made == pack(where, data)
    assert len(list(where.folder.iterdir())) == 1
    where.find(made).forget()
    with refused(PACKED_MISSING):
        where.find(made)


def test_trees_that_differ_in_anything_have_different_roots(tmp_path: Path) -> None:
    where = packing(tmp_path)
    trees = [
        [file("a", b"1")], [file("a", b"2")], [file("b", b"1")], [file("a", b"1", mtime=5)],
        [file("a", b"1", mode=0o600)], [file("a", b"1", uid=5)], [file("a", b"1"), folder("c")],
    ]  # fmt: skip
    roots = {pack(where, tree).root for tree in trees}
    assert len(roots) == len(trees)


@pytest.mark.parametrize(
    "members",
    [
        [file("../out")], [file("/etc/passwd")], [file("a/../../b")], [file("a"), file("a")],
        [symlink("d", "/etc"), file("d/passwd")], [hardlink("a", "/etc/passwd")], [hardlink("a", "b")],
        [Member(b"\xff")], [Member(b"a\nb/" + b"x" * 90, prefix=b"y/" * 10), file("z/../y")],
    ],
)  # fmt: skip
def test_hostile_names_are_refused_and_nothing_is_kept(tmp_path: Path, members: list[Member]) -> None:
    where = packing(tmp_path)
    with pytest.raises(SourceError):
        pack(where, members)
    assert list(where.folder.iterdir()) == []


def test_a_damaged_archive_and_one_beyond_a_limit_are_refused(tmp_path: Path) -> None:
    where, data = packing(tmp_path), archive([file("a", b"x" * 5000), file("b", b"y")])
    for wrong in (data[:3000], data[:-1024], b"not a tarball"):
        with pytest.raises(SourceError):
            pack(where, wrong)
    for limits in (SourceLimits(members=1), SourceLimits(bytes=100), SourceLimits(file_bytes=100)):
        with refused(SOURCE_LIMIT_EXCEEDED):
            pack(where, data, limits=limits)
    with pytest.raises(DestinationError):
        where.pack(open_artifact(iter([data]), "x"), destination="/a/../b", now=NOW)


def test_special_files_are_refused_left_out_or_kept(tmp_path: Path) -> None:
    members = [file("a"), Member(b"pipe", type=b"6"), hardlink("again", "pipe")]
    with refused(SourceError, member="pipe"):
        pack(packing(tmp_path), members)
    skipping = packing(tmp_path, specials=Specials.SKIP)
    made = pack(skipping, members)
    assert list(names(skipping, made)) == ["a"]
    assert "2 special files left out" in made.notes
    keeping = packing(tmp_path, specials=Specials.KEEP)
    assert names(keeping, pack(keeping, members[:2]))["pipe"].isfifo()


def test_what_would_be_lost_is_reported_once_for_each_kind_with_its_path(tmp_path: Path) -> None:
    losses: list[tuple[Operation, str]] = []
    where = packing(tmp_path, lambda *loss: losses.append(loss), specials=Specials.KEEP)
    pack(where, [file("a"), hardlink("b", "a"), hardlink("c", "a"), Member(b"p", type=b"6"), Member(b"q", type=b"6")])
    assert losses == [(Operation.TREE_HARD_LINKS, f"{HERE}/b"), (Operation.TREE_SPECIALS, f"{HERE}/p")]


def test_bits_and_owners_are_as_the_settings_say(tmp_path: Path) -> None:
    owners = OwnerMap(IdMap(default=7), IdMap(default=8))
    for owner in ((7, 8), owners):
        where = packing(tmp_path, owner=owner)
        made = pack(where, [file("a", mode=0o4755, uid=1, gid=2)])
        found = names(where, made)["a"]
        assert (found.mode, found.uid, found.gid) == (0o755, 7, 8)
        assert made.notes == ("set-uid, set-gid and sticky bits stripped from 1 entries",)


def test_special_bits_are_kept_in_the_archive_if_this_is_asked_for(tmp_path: Path) -> None:
    where = packing(tmp_path, special_bits=SpecialBits.KEEP)
    made = pack(where, [file("a", mode=0o4755), folder("t", mode=0o1777)])
    assert [names(where, made)[name].mode for name in ("a", "t")] == [0o4755, 0o1777]
    assert made.notes == ()


def test_lost_special_bits_are_seen_only_if_they_were_to_be_kept(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/su").touch()
    (tmp_path / "tree/su").chmod(0o4755)
    where = packing(tmp_path, special_bits=SpecialBits.KEEP)
    packed = where.find(where.pack(DirectorySource(tmp_path / "tree"), destination=HERE, now=NOW))
    repository = LocalRepository()
    repository.publish(tmp_path / "tree", HERE)
    tree = repository.opened()
    assert TreeComparison().difference(tree.revision, packed, contents=True) is None
    lost = TreeComparison(special_bits=True).difference(tree.revision, packed, contents=True)
    assert str(lost) == f"{HERE}/su: has other permissions"


def test_the_marker_of_the_tree_itself_is_made_on_the_node_and_others_go_along(tmp_path: Path) -> None:
    where = packing(tmp_path)
    made = pack(where, [file(".cvmfscatalog"), folder("sub"), file("sub/.cvmfscatalog"), file("sub/a")])
    assert list(names(where, made)) == ["sub", "sub/.cvmfscatalog", "sub/a"]
    assert made.catalogs == 2
    assert made.files == 3


def test_a_dry_run_keeps_nothing(tmp_path: Path) -> None:
    where = packing(tmp_path)
    made = pack(where, [file("a")], dry_run=True)
    assert not made.stored
    assert list(where.folder.iterdir()) == []
    with refused(PACKED_MISSING):
        where.find(replace(made, stored=False))


def test_what_was_never_published_goes_after_two_days(tmp_path: Path) -> None:
    where = packing(tmp_path)
    old = where.find(pack(where, [file("old")])).path
    young = where.find(pack(where, [file("young")])).path
    os.utime(old, (NOW.timestamp() - timedelta(days=3).total_seconds(),) * 2)
    os.utime(young, (NOW.timestamp(),) * 2)
    pack(where, [file("new")])
    assert (old.exists(), young.exists()) == (False, True)


def test_a_disk_that_cannot_take_the_tree_is_named(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(b"in the way")
    with pytest.raises((CvmfsError, OSError)):
        pack(packing(tmp_path), [file("a")])


@pytest.mark.slow
@settings(max_examples=40)
@given(nodes=TREES)
def test_any_tree_comes_out_of_its_archive_as_it_went_in(
    tmp_path_factory: pytest.TempPathFactory, nodes: Mapping[str, Mapping[str, Any]]
) -> None:
    place = tmp_path_factory.mktemp("any")
    tree = make_folder(place / "tree", nodes)
    assume(not any(one.is_socket() for one in tree.rglob("*")))  # which no archive can hold
    where = packing(place, specials=Specials.KEEP, layout=Layout.MTIME_NS, mtime_ns=True)
    made = where.pack(DirectorySource(tree), destination=HERE, now=NOW)

    def read(source: Any) -> dict[str, tuple[Any, ...]]:
        found = {}
        for entry, opener in source.entries():
            content = opener().read() if opener else None
            if entry.path not in ("", ".cvmfscatalog"):
                mode = 0 if entry.kind in (EntryKind.SYMLINK, EntryKind.HARDLINK) else entry.mode & 0o777
                # a hard link tells nothing but what it is a link to
                rest = () if entry.kind is EntryKind.HARDLINK else (entry.mtime, entry.mtime_ns, entry.uid, entry.gid)
                found[entry.path] = (entry.kind, mode, entry.size, entry.symlink, entry.hardlink_to, content, *rest)
        return found

    assert read(TarSource(where.find(made).blocks(), "again")) == read(DirectorySource(tree))


@given(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=120).filter(
        lambda name: name not in (".", "..") and len(name.encode()) < 256
    ),
    st.integers(0, 0xFFFFFFFF),
    st.integers(-(1 << 40), 1 << 40),
    st.integers(0, 999_999_999),
    st.dictionaries(st.sampled_from([b"user.a", b"user.b c"]), st.binary(max_size=40), max_size=2),
)
def test_any_header_comes_back(name: str, owner: int, mtime: int, ns: int, attributes: dict[bytes, bytes]) -> None:
    xattr = pack_xattrs(attributes)
    if mtime < 0:
        ns = 0
    entry = Entry(name, EntryKind.FILE, 0o640, mtime, owner, owner, 0, mtime_ns=ns, xattr=xattr)
    source = AttributedSource(TarSource([member(entry) + bytes(1024)], "one"), ("user.",))
    ((found, _),) = source.entries()
    assert found == entry
