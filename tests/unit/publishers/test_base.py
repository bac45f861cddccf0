"""Settings of a repository become options for its trees, with the maps and rules that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.cvmfs.errors import FormatError, RepositoryError
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.objects import Compressor
from include.cvmfs.ingest.autocatalog import Weights
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.spool import SpecialBits, Specials
from include.cvmfs.revision.repository import Repository
from include.cvmfs.sources.source import OwnerMap
from include.publishers.base import tree_options
from include.settings.prepare import ChunkSizes, OwnerSettings, Prepare
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, MiniRepository, public_key
from tests.fakes.refused import refused


def repository(
    dirtab: bytes | None = None, *, layout: Layout = Layout.PLAIN, algorithm: Algorithm = Algorithm.SHA1
) -> Repository:
    mini = MiniRepository(MemoryStore(), layout=layout, algorithm=algorithm)
    if dirtab is not None:
        mini.file("/.cvmfsdirtab", dirtab)
    mini.build().publish()
    return Repository.open(mini.store, fqrn=FQRN, public_keys=[public_key()], now=NOW)


def test_nothing_is_kept_or_cut_unless_it_is_set() -> None:
    options = tree_options(Prepare(), repository(b"/a\n"))
    assert (options.owner, options.mtime_ns, options.specials, options.xattrs) == (None, False, Specials.REFUSE, ())
    assert options.special_bits is SpecialBits.STRIP
    assert (options.cuts.dirtab, options.cuts.auto, options.cuts.entries) == (None, None, 500_000)


def test_all_that_is_set_is_there(tmp_path: Path) -> None:
    settings = Prepare(
        specials="keep",
        special_bits="keep",
        xattrs=("user.",),
        mtime_ns=True,
        owner=OwnerSettings(uid=3, gid=4),
        autocatalogs=True,
        autocatalogs_max=500,
        catalog_entries=0,
    )
    options = tree_options(settings, repository(layout=Layout.MTIME_NS))
    assert (options.owner, options.mtime_ns, options.specials) == ((3, 4), True, Specials.KEEP)
    assert options.special_bits is SpecialBits.KEEP
    assert (options.xattrs, options.cuts.auto, options.cuts.entries) == (("user.",), Weights(500, 1_000), 0)


def test_data_sets_are_cut_into_large_pieces_and_stored_as_they_are() -> None:
    usual = tree_options(Prepare(), repository())
    assert (usual.chunking, usual.compressor, usual.memory_mb) == (ChunkLimits(), Compressor.STOCK, 128)
    data = tree_options(Prepare(chunks="data", compression="none"), repository())
    assert (data.chunking, data.compressor) == (ChunkLimits(48 << 20, 56 << 20, 64 << 20), Compressor.NONE)
    assert data.memory_mb >= 192
    own = tree_options(Prepare(chunks=ChunkSizes(min=1 << 20, average=2 << 20, max=4 << 20)), repository())
    assert own.chunking == ChunkLimits(1 << 20, 2 << 20, 4 << 20)


def test_owner_maps_are_read_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "uid.map").write_text("1 2\n* 9\n")
    options = tree_options(Prepare.model_construct(uid_map=tmp_path / "uid.map", gid_map=None), repository())
    assert isinstance(options.owner, OwnerMap)
    assert options.owner.of(1, 7) == (2, 7)
    assert options.owner.of(5, 7) == (9, 7)


@pytest.mark.parametrize(("text", "place"), [(None, ""), (b"\xff", ""), (b"not a rule", ", line 1")])
def test_an_owner_map_that_cannot_be_read_is_named(tmp_path: Path, text: bytes | None, place: str) -> None:
    if text is not None:
        (tmp_path / "gid.map").write_bytes(text)
    settings = Prepare.model_construct(uid_map=None, gid_map=tmp_path / "gid.map")
    with refused(FormatError, what=f"{tmp_path / 'gid.map'}{place}"):
        tree_options(settings, repository())


def test_the_repositorys_own_dirtab_counts_if_this_is_set() -> None:
    settings = Prepare(dirtab=True)
    dirtab = tree_options(settings, repository(b"/nightlies/*\n")).cuts.dirtab
    assert dirtab is not None
    assert dirtab.matches("/nightlies/a")
    assert tree_options(settings, repository()).cuts.dirtab is None
    with refused(FormatError, what="/.cvmfsdirtab of mini.example.org, line 1"):
        tree_options(settings, repository(b"relative\n"))


@pytest.mark.parametrize("layout", [Layout.PLAIN, Layout.MTIME_NS])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_what_is_new_is_hashed_and_laid_out_as_what_is_there(layout: Layout, algorithm: Algorithm) -> None:
    options = tree_options(Prepare(), repository(layout=layout, algorithm=algorithm))
    assert (options.algorithm, options.layout) == (algorithm, layout)


def test_nanoseconds_are_refused_by_name_in_a_repository_that_was_not_created_for_them() -> None:
    with pytest.raises(RepositoryError) as caught:
        tree_options(Prepare(mtime_ns=True), repository())
    assert str(caught.value).startswith(f"repository {FQRN}: was not created for nanoseconds")
    assert "remove `prepare.mtime_ns`" in str(caught.value)
    assert "repo create --mtime-ns" in str(caught.value)
