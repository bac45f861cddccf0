"""An index written of a folder of archives is the one that nights read; what they would refuse is not written."""

from __future__ import annotations

import hashlib
import json
import tarfile
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from include.cli import nightly
from include.nightlies.errors import INDEX_NOT_WRITTEN, BadIndex
from include.nightlies.rules.index import BuildIndex
from include.nightlies.steps.sources import named_archives, read_index, write_index
from include.settings.load import parse
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.errors import Conflict
from tests.fakes.refused import refused
from tests.structure import ROOT

DAY = date(2026, 11, 21)
SCHEMA = json.loads((ROOT / "docs/build-index.schema.json").read_text())
CONFIG = """
stores: {{cvmfs: {{url: "file:cvmfs"}}, builds: {{url: "file:builds"}}}}
repositories:
  n.example.org: {{store: cvmfs, public_url: "file:cvmfs/n.example.org", public_key: k.pub, gateway: gateway}}
slots: {{main: {{repository: n.example.org, store: builds, platforms: {platforms}}}}}
"""


def site_of(folder: Path, platforms: str = "[]") -> Site:
    text = CONFIG.format(platforms=platforms)
    return Site(parse(text, file="site.yaml", root=folder, environ={}), EnvSecrets({}))


def archive(path: Path, content: str = "hello") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "member").write_text(content)
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w:xz") as packed:
        packed.add(path.parent / "member", "bin/member")
    (path.parent / "member").unlink()
    return path


def names(folder: Path, *arguments: object) -> list[str]:
    return [f"{each.project}/{each.platform}" for each in named_archives(folder, *arguments)]


def test_names_of_archives_say_project_and_platform(tmp_path: Path) -> None:
    for name in (
        "Gaudi-x86_64-el9-gcc13-opt.tar.gz", "my-tool-1.0-aarch64.tar.xz", "LCG.v1.x86_64-el9.tgz",
        "Sub/x86_64-el9-dbg.tar.gz", "Sub/deeper/x86_64-el9-opt.tar.gz",
    ):  # fmt: skip
        archive(tmp_path / name)
    (tmp_path / "README").write_text("no archive")
    (tmp_path / "link-x86_64.tar.gz").symlink_to(tmp_path / "Sub/x86_64-el9-dbg.tar.gz")
    assert names(tmp_path) == [
        "Gaudi/x86_64-el9-gcc13-opt", "LCG.v1/x86_64-el9", "Sub/x86_64-el9-dbg", "my-tool-1.0/aarch64",
    ]  # fmt: skip


def test_a_name_without_a_platform_needs_one(tmp_path: Path) -> None:
    archive(tmp_path / "tool-1.0.tar.gz")
    archive(tmp_path / "other-el9.tar.gz")
    with refused(INDEX_NOT_WRITTEN) as refusal:
        named_archives(tmp_path)
    assert "other-el9.tar.gz" in str(refusal.value)
    assert "--platform" in str(refusal.value)
    assert names(tmp_path, ["el9", "9"], "any") == ["other/el9", "tool-1.0/any"]


def test_a_folder_without_archives_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with refused(INDEX_NOT_WRITTEN) as refusal:
            named_archives(folder)
        assert str(folder) in str(refusal.value)


@pytest.mark.parametrize("upload", [False, True])
def test_what_is_written_is_read_as_nights_read_it(tmp_path: Path, upload: bool) -> None:
    site = site_of(tmp_path)
    folder = tmp_path / ("archives" if upload else "builds/drop")
    path = archive(folder / "Gaudi-x86_64-el9.tar.gz")
    written = write_index(site, site.settings.slot("main"), DAY, named_archives(folder), upload=upload)
    assert (written.unchanged, len(written.uploaded)) == (False, upload)
    index, url = read_index(site, site.settings.slot("main"), DAY)
    assert (index, url) == (written.index, written.url)
    assert (index.build_id, index.complete) == ("2026-11-21", True)
    (artifact,) = index.artifacts
    assert artifact.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert site.store("builds").get(artifact.url) == path.read_bytes()
    again = write_index(site, site.settings.slot("main"), DAY, named_archives(folder), upload=upload)
    assert (again.unchanged, again.uploaded) == (True, ())
    jsonschema.validate(json.loads(index.format()), SCHEMA)


def test_another_index_or_archive_stays_unless_it_is_replaced(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    slot, folder = site.settings.slot("main"), tmp_path / "archives"
    archive(folder / "Gaudi-x86_64.tar.gz")
    write_index(site, slot, DAY, named_archives(folder), upload=True)
    before = {path: path.read_bytes() for path in (tmp_path / "builds").rglob("*") if path.is_file()}
    archive(folder / "Gaudi-x86_64.tar.gz", "another content")
    archive(folder / "New-x86_64.tar.gz")
    with refused(Conflict):
        write_index(site, slot, DAY, named_archives(folder), upload=True)
    write_index(site, slot, DAY, named_archives(folder), upload=True, replace=True, dry_run=True)
    assert {path: path.read_bytes() for path in (tmp_path / "builds").rglob("*") if path.is_file()} == before
    replaced = write_index(site, slot, DAY, named_archives(folder), upload=True, replace=True)
    assert len(replaced.uploaded) == 2
    assert read_index(site, slot, DAY)[0] == replaced.index


def test_what_nights_would_refuse_is_not_written(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    slot, folder = site.settings.slot("main"), tmp_path / "builds/drop"
    archive(folder / "Gaudi-x86_64.tar.gz")
    archive(folder / "Gaudi/x86_64.tar.gz", "twice")
    with refused(INDEX_NOT_WRITTEN) as refusal:
        write_index(site, slot, DAY, named_archives(folder))
    assert "is listed 2 times" in str(refusal.value)
    (folder / "Gaudi/x86_64.tar.gz").unlink()
    with refused(BadIndex):
        write_index(site, slot, DAY, named_archives(folder), build_id="a/b")
    with refused(INDEX_NOT_WRITTEN) as refusal:
        elsewhere = archive(tmp_path / "elsewhere/Gaudi-x86_64.tar.gz").parent
        write_index(site, slot, DAY, named_archives(elsewhere))
    assert "--upload" in str(refusal.value)
    assert not [*(tmp_path / "builds").rglob("*.json")]


def test_the_command_says_what_it_wrote_and_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.yaml").write_text(CONFIG.format(platforms="[]"))
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", "site.yaml")
    archive(tmp_path / "builds/drop/tool.tar.gz")
    words = ["index", str(tmp_path / "builds/drop"), "--date", "2026-11-21"]
    nameless = CliRunner().invoke(nightly.app, words)
    assert nameless.exit_code == 2
    done = CliRunner().invoke(nightly.app, [*words, "--platform", "any"])
    assert done.exit_code == 0, done.output
    assert "builds/main/2026-11-21/index.json: 1 artifacts, written" in done.output
    assert "nightly install --slot main --date 2026-11-21 --wait" in done.output
    assert "unchanged" in CliRunner().invoke(nightly.app, [*words, "--platform", "any"]).output


GOOD: dict[str, Any] = {
    "format": 1, "slot": "main", "build_id": "b", "date": "2026-11-21", "complete": True,
    "artifacts": [{"project": "p", "platform": "x", "url": "p.tar", "size": 1, "sha256": "0" * 64}],
}  # fmt: skip
ARTIFACT = GOOD["artifacts"][0]


def taken(document: object) -> bool:
    try:
        return not BuildIndex.parse(json.dumps(document).encode(), slot="main").rejected
    except BadIndex:
        return False


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"serial": 3, "created": "2026-11-21T02:00:00+00:00", "made_by": "us"}, True),
        ({"partial": True, "base": {"build_id": "a", "date": "2026-11-20"}}, True),
        ({"serial": None, "created": None, "base": None}, True),
        ({"artifacts": [{**ARTIFACT, "dependencies": ["q"], "priority": -3}]}, True),
        ({"format": 2}, False),
        ({"complete": "yes"}, False),
        ({"build_id": "a/b"}, False),
        ({"date": "21.11.2026"}, False),
        ({"serial": -1}, False),
        ({"created": 5}, False),
        ({"partial": True}, False),
        ({"base": {"build_id": "a", "date": "2026-11-20"}}, False),
        ({"artifacts": None}, False),
        ({"artifacts": [{**ARTIFACT, "sha256": "0" * 63 + "G"}]}, False),
        ({"artifacts": [{**ARTIFACT, "size": 0}]}, False),
        ({"artifacts": [{**ARTIFACT, "size": 1.5}]}, False),
        ({"artifacts": [{**ARTIFACT, "url": ""}]}, False),
        ({"artifacts": [{**ARTIFACT, "url": "/absolute"}]}, False),
        ({"artifacts": [{**ARTIFACT, "url": "a/../b"}]}, False),
        ({"artifacts": [{**ARTIFACT, "platform": "-x"}]}, False),
        ({"artifacts": [{**ARTIFACT, "priority": 1_000_001}]}, False),
        ({"artifacts": [{**ARTIFACT, "dependencies": "q"}]}, False),
        ({"artifacts": [{key: value for key, value in ARTIFACT.items() if key != "size"}]}, False),
    ],
)
def test_the_schema_of_the_pages_takes_what_nights_take(changes: dict[str, object], good: bool) -> None:
    document = {**GOOD, **changes}
    assert taken(document) is good
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(document) is good
