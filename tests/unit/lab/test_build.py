"""Builds of this machine's software: the same date gives the same bytes, another date changes a few modules."""

import hashlib
import io
import json
import marshal
import os
import py_compile
import subprocess
import sys
import tarfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, strategies as st

from include.nightlies.rules.index import BuildIndex
from include.storage.open import open_store
from include.storage.store import Store
from lab import software
from lab.build import PackedBuild, pack_build
from lab.errors import FOREIGN_INDEX, LabError
from lab.software import CHANGE_PERIOD_DAYS, Job, Platform, catalog_folders, last_change, pack, project_files, stamped
from tests.fakes.airflowhome import ROOT
from tests.fakes.refused import refused

pytestmark = pytest.mark.slow

DAY = date(2026, 11, 21)
OPT, DBG = "x86_64-py311-opt", "x86_64-py311-dbg"


def content(archive: Path) -> dict[str, bytes]:
    with (
        archive.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
        tarfile.open(fileobj=io.BytesIO(stream.read())) as tar,
    ):
        return {one.name: tar.extractfile(one).read() for one in tar if one.isreg()}


def packed(folder: Path, project: str, platform: str, day: date = DAY) -> Path:
    return pack(Job(project, platform, day, folder / "code", folder / f"{project}-{platform}-{day}.tar.zst")).path


@given(st.text(), st.dates(min_value=date(1990, 1, 1), max_value=date(2200, 1, 1)))
def test_a_module_changes_once_in_each_period(path: str, day: date) -> None:
    changed = last_change("project", path, day)
    assert timedelta() <= day - changed < timedelta(days=CHANGE_PERIOD_DAYS)
    assert last_change("project", path, changed) == changed
    assert last_change("project", path, changed - timedelta(days=1)) == changed - timedelta(days=CHANGE_PERIOD_DAYS)


@given(st.binary(max_size=200))
def test_a_stamp_is_a_line_of_its_own_and_an_empty_module_stays_empty(source: bytes) -> None:
    result = stamped(source, DAY)
    assert result.startswith(source)
    if source:
        assert result.endswith(b"\n# last changed in the build of 2026-11-21\n") or source.endswith(b"\r")
    else:
        assert result == b""


def test_large_folders_become_catalogs_but_not_a_folder_that_holds_nearly_everything() -> None:
    paths = [f"lib/data/{number}" for number in range(1000)] + [f"lib/code/{number}" for number in range(500)]
    assert catalog_folders(paths) == ["lib/code", "lib/data"]


@pytest.mark.parametrize(
    ("name", "kind"), [(OPT, Platform.OPTIMISED), (DBG, Platform.DEBUG), ("anything", Platform.DEBUG)]
)
def test_a_platform_s_last_part_says_how_modules_are_compiled(name: str, kind: Platform) -> None:
    assert Platform.of(name) is kind


def test_the_same_date_gives_the_same_bytes_in_another_process_without_a_cache(tmp_path: Path) -> None:
    first = packed(tmp_path / "a", "rich", OPT).read_bytes()
    script = (
        "import sys; from datetime import date; from pathlib import Path; from lab.software import Job, pack;"
        "folder = Path(sys.argv[1]);"
        f"pack(Job('rich', '{OPT}', date(2026, 11, 21), folder / 'code', folder / 'b.tar.zst'))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=environment)
    assert hashlib.sha256((tmp_path / "b.tar.zst").read_bytes()).digest() == hashlib.sha256(first).digest()


def test_a_compiled_module_is_what_the_compiler_makes_of_the_stamped_source(tmp_path: Path) -> None:
    files = content(packed(tmp_path, "dns", OPT))
    compiled = {name: data for name, data in files.items() if name.endswith(".opt-2.pyc")}
    assert len(compiled) > 100
    for name, data in list(compiled.items())[:10]:
        module = name.replace("__pycache__/", "").removesuffix(Platform.OPTIMISED.suffix) + ".py"
        source = tmp_path / "module.py"
        source.write_bytes(files[module])
        target = py_compile.compile(
            str(source), cfile=str(tmp_path / "module.pyc"), dfile=module, optimize=2,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )  # fmt: skip
        expected = Path(target).read_bytes()
        assert data[:16] == expected[:16]
        assert marshal.loads(data[16:]) == marshal.loads(expected[16:])


def test_platforms_share_sources_and_differ_in_compiled_modules(tmp_path: Path) -> None:
    optimised, debug = content(packed(tmp_path, "dns", OPT)), content(packed(tmp_path, "dns", DBG))
    shared = optimised.keys() & debug.keys()
    assert shared
    assert all(optimised[name] == debug[name] for name in shared)
    assert not {name for name in shared if name.endswith(".pyc")}
    assert sum(name.endswith(".pyc") for name in debug) == sum(name.endswith(".pyc") for name in optimised)


def test_the_next_date_changes_about_one_module_in_fourteen_and_nothing_else(tmp_path: Path) -> None:
    today, next_day = (content(packed(tmp_path, "dns", DBG, day)) for day in (DAY, DAY + timedelta(days=1)))
    assert today.keys() == next_day.keys()
    changed = {name for name in today if today[name] != next_day[name]}
    modules = [name for name in today if name.endswith(".py")]
    assert all(name.endswith((".py", ".pyc")) for name in changed)
    assert 0.03 < sum(name.endswith(".py") for name in changed) / len(modules) < 0.13


def test_links_and_executables_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a small library in place of the whole one
    (tmp_path / "lib/encodings").mkdir(parents=True)
    (tmp_path / "lib/encodings/__init__.py").write_text("")
    monkeypatch.setattr(software.sysconfig, "get_path", lambda _: str(tmp_path / "lib"))
    archive = packed(tmp_path, "python", DBG)
    with (
        archive.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        members = {one.name: one for one in tar}
    assert members["bin/python3"].issym()
    assert members["bin/python3"].linkname == f"python3.{sys.version_info.minor}"
    assert members[f"bin/python3.{sys.version_info.minor}"].mode == 0o755
    assert [name for name in members if name.endswith("/encodings/__init__.py")]


def test_big_projects_are_cut_into_catalogs() -> None:
    paths = [file.path for file in project_files("botocore")]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert f"lib/{version}/site-packages/botocore/data" in catalog_folders(paths)
    with refused(LabError):
        project_files("no_such_package")


def build(store: Store, folder: Path, **changes: Any) -> PackedBuild:
    """A small build of slot main, packed into a store."""
    return pack_build(
        store, slot="main", date=DAY, index_key="main/index.json", cache=folder / "cache", projects=["rich", "dns"],
        platforms=[OPT], processes=1, **changes,
    )  # fmt: skip


def test_a_build_in_the_store_is_left_alone_and_one_with_a_damaged_archive_is_packed_again(tmp_path: Path) -> None:
    store = open_store((tmp_path / "builds").as_uri())
    first = build(store, tmp_path)
    assert first.packed
    assert [artifact.name for artifact in first.index.artifacts] == [f"rich/{OPT}", f"dns/{OPT}"]
    for artifact in first.index.artifacts:
        assert hashlib.sha256(store.get(artifact.url)).hexdigest() == artifact.sha256
    again = build(store, tmp_path)
    assert not again.packed
    assert again.index == first.index
    store.put(first.index.artifacts[0].url, b"cut short")
    repaired = build(store, tmp_path)
    assert repaired.packed
    assert repaired.index == first.index
    assert build(store, tmp_path, rebuild=True).index == first.index
    keys = [entry.key for entry in store.list()]
    assert {key.partition("/")[0] for key in keys} == {"main", "demonstration"}, "a folder that no builder uses"
    assert [key for key in keys if key.startswith("main/")] == ["main/index.json"]


def of_a_builder() -> bytes:
    """The index of a complete build, as a build system writes it."""
    return BuildIndex("main", "1234", DAY, complete=True, artifacts=()).format()


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize(
    "index", [of_a_builder(), b"{ half an ind", b"[]", json.dumps({"made_by": "another"}).encode(), b"\xff"]
)
def test_an_index_that_the_demonstration_did_not_make_is_refused_before_anything_is_stored(
    tmp_path: Path, index: bytes, rebuild: bool
) -> None:
    store = open_store((tmp_path / "builds").as_uri())
    store.put("main/index.json", index)
    with refused(FOREIGN_INDEX) as refusal:
        build(store, tmp_path, rebuild=rebuild)
    assert f"nightshift nightly install --slot main --date {DAY}" in str(refusal.value)
    assert {entry.key: store.get(entry.key) for entry in store.list()} == {"main/index.json": index}


def test_an_index_that_a_builder_writes_meanwhile_stays(tmp_path: Path) -> None:
    store = open_store((tmp_path / "builds").as_uri())
    with refused(FOREIGN_INDEX):
        build(store, tmp_path, progress=lambda _: store.put("main/index.json", of_a_builder()))
    assert store.get("main/index.json") == of_a_builder()
