"""Targets: what may be measured, and areas of runs that touch nothing but their own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.benchmarks.campaign.campaigns import open_target
from include.benchmarks.errors import AREA_FOREIGN, RUNNER_MISSING, TARGET_REFUSED, TARGET_UNUSABLE, BenchmarkError
from include.benchmarks.measure.programs import BenchmarkProgram
from include.benchmarks.measure.targets import MARKER, PathBenchmarkTarget, TargetSpace
from include.settings.benchmarks import PathTarget
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.refused import refused


def site_of(folder: Path, **target) -> Site:
    settings = {
        "ledger": f"sqlite:///{folder}/ledger.db",
        "stores": {"s": {"url": f"file://{folder}/store"}, "web": {"url": "http://127.0.0.1:1/x"}},
        "benchmarks": {"targets": {"t": {"benchmark": "allowed", **target}}},
    }
    return Site(SiteSettings.model_validate(settings), EnvSecrets({}))


def path_target(path: Path) -> PathBenchmarkTarget:
    return PathBenchmarkTarget(PathTarget.model_validate({"kind": "path", "name": "t", "path": path}))


@pytest.fixture(params=["path", "bucket"])
def area(request, tmp_path):
    kinds = {"path": {"kind": "path", "path": str(tmp_path)}, "bucket": {"kind": "bucket", "store": "s"}}
    target = open_target(site_of(tmp_path, **kinds[request.param]), "t")
    target.check()
    return target.area("run-1")


def put(area, name):
    if hasattr(area, "folder"):
        (area.folder / name).write_bytes(b"x")
    else:
        area.store(1).put(name, b"x")


def test_what_is_not_marked_devices_missing_folders_and_files_are_refused(tmp_path):
    with refused(TARGET_REFUSED):
        open_target(site_of(tmp_path, kind="path", path="/mnt", benchmark="refused"), "t")
    (tmp_path / "file").touch()
    for place in ("/dev/null", "missing", "file"):
        with refused(TARGET_UNUSABLE, subject="t"):
            path_target(tmp_path / place).check()
    with refused(TARGET_UNUSABLE):
        open_target(site_of(tmp_path, kind="bucket", store="web"), "t").check()  # it can only be read


def test_only_listed_files_of_the_run_are_removed(area):
    area.create()
    put(area, "data.0.0")
    put(area, "of-a-person")
    area.create()  # a run goes on in its own area
    assert area.remove().left == ("data.0.0", "of-a-person")
    assert area.remove_files(["data.0.0"]).removed == 1
    assert area.remove().left == ("of-a-person",)
    assert area.remove_files(["of-a-person"]).removed == 1
    assert (area.remove().removed, area.remove().left) == (1, ())


def test_an_area_of_others_is_neither_used_nor_removed(tmp_path):
    area = path_target(tmp_path).area("run-1")
    area.folder.mkdir()
    (area.folder / "precious").touch()
    with refused(AREA_FOREIGN):
        area.create()
    (area.folder / MARKER).write_text("run-2")
    for work in (area.create, lambda: area.remove_files(["precious"])):
        with refused(AREA_FOREIGN):
            work()
    assert (area.folder / "precious").exists()


def test_prefixes_with_objects_of_others_are_not_used(tmp_path):
    area = open_target(site_of(tmp_path, kind="bucket", store="s"), "t").area("run-1")
    area.store(1).put("precious", b"x")
    with refused(AREA_FOREIGN):
        area.create()


def test_a_repository_is_removed_whole_and_a_link_in_its_place_is_not_followed(area, tmp_path):
    area.create()
    if hasattr(area, "folder"):
        (area.folder / "repository" / "data").mkdir(parents=True)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "kept").touch()
        (area.folder / "linked").symlink_to(tmp_path / "other")
    put(area, "repository/data/ab")
    put(area, "repositories")
    removal = area.remove_files(["repository/", "linked/", "absent/"])
    assert removal.removed == 1
    assert "repositories" in area.remove().left
    if hasattr(area, "folder"):
        assert removal.left == ("linked/",)
        assert (tmp_path / "other" / "kept").exists()


def test_links_and_folders_in_the_place_of_files_or_of_an_area_are_left(tmp_path):
    area, other = path_target(tmp_path).area("run-1"), path_target(tmp_path).area("run-2")
    area.create()
    (tmp_path / "precious").touch()
    (tmp_path / "elsewhere").mkdir()
    (area.folder / "data.0.0").symlink_to(tmp_path / "precious")
    (area.folder / "data.0.1").mkdir()
    other.folder.symlink_to(tmp_path / "elsewhere")
    assert area.remove_files(["data.0.0", "data.0.1", "../precious"]).left == ("data.0.0", "data.0.1", "../precious")
    assert (tmp_path / "precious").exists()
    with refused(TARGET_UNUSABLE):
        other.create()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_path_says_how_full_it_is_and_a_missing_program_is_named_with_its_package(tmp_path):
    space = path_target(tmp_path).space()
    assert 0 < space.free <= space.total
    assert TargetSpace(100, 25).used_percent == 75
    with refused(RUNNER_MISSING, subject="no-such-program") as error:
        BenchmarkProgram("no-such-program", "its-package").path()
    assert "apt-get install its-package" in str(error.value)
    assert isinstance(error.value, BenchmarkError)
