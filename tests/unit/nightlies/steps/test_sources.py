"""Where artifacts are read from: a file where one is announced, and no store but the slot's."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from include.nightlies.steps.errors import SOURCE_AMBIGUOUS, ArtifactDirectory, SourceNotAllowed
from include.nightlies.steps.sources import locate, opened, read_index
from include.nightlies.steps.values import Item
from include.settings.load import load
from include.settings.prepare import ArtifactLimits
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.builds import Build, tree
from tests.fakes.refused import refused

DATA = tree({"file": b"whole"})


@pytest.fixture
def on_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A slot whose store has another store inside it, and a third beside it."""
    file = tmp_path / "site.yaml"
    stores = {name: {"url": f"file://{tmp_path}/{name}"} for name in ("builds", "builds/inner", "other")}
    repository = {"store": "other", "public_url": "http://127.0.0.1:1", "public_key": "k.pub", "gateway": "gateway"}
    site = {
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
        "stores": {name.replace("/", "-"): settings for name, settings in stores.items()},
        "repositories": {"nights.example.org": repository},
        "slots": {"main": {"repository": "nights.example.org", "store": "builds"}},
    }
    file.write_text(json.dumps(site))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(file))
    return Site(load(), EnvSecrets({}))


def item(on_site: Site, key: str, store: str = "builds") -> Item:
    url = f"{on_site.settings.store(store).url}/{key}"
    return Item("A/x", "/d", url, sha256="ab" * 32, size=len(DATA), store="builds")


def directory(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "evil.sh").write_text("echo")


@pytest.mark.parametrize("unknown", [(), ("size",), ("sha256",)])
def test_a_directory_in_the_place_of_an_announced_file_is_refused(
    on_site: Site, tmp_path: Path, unknown: tuple[str, ...]
) -> None:
    directory(tmp_path / "builds" / "a.tar.gz")
    announced = replace(item(on_site, "a.tar.gz"), **dict.fromkeys(unknown))  # type: ignore[arg-type]
    with refused(ArtifactDirectory, artifact=announced.name):
        opened(on_site, announced, ArtifactLimits())


def test_a_directory_published_by_hand_without_size_and_sum_is_read(on_site: Site, tmp_path: Path) -> None:
    directory(tmp_path / "other" / "tree")
    by_hand = Item("/d", "/d", f"file://{tmp_path}/other/tree")
    entries = {entry.path for entry, _ in opened(on_site, by_hand, ArtifactLimits()).entries()}
    assert entries == {"", "evil.sh"}


def test_an_artifact_is_read_from_the_store_of_its_slot_and_from_no_other(on_site: Site, tmp_path: Path) -> None:
    elsewhere = item(on_site, "a.tar.gz", store="other")
    with refused(SourceNotAllowed, source=elsewhere.source):
        opened(on_site, elsewhere, ArtifactLimits())
    on_site.store("builds").put("inner/a.tar.gz", DATA)
    opened(on_site, item(on_site, "inner/a.tar.gz"), ArtifactLimits())
    looks = [on_site.store(name).counters.heads for name in ("builds", "builds-inner")]
    assert looks == [1, 0], "read with the login of another store"


def test_an_index_that_names_a_file_of_another_store_has_that_artifact_rejected(on_site: Site, tmp_path: Path) -> None:
    build = Build("2026-11-21").add("A", "x", DATA).add("B", "x", DATA, url=f"file://{tmp_path}/other/b.tar.gz")
    build.store_in(on_site.store("builds"))
    index, _ = read_index(on_site, on_site.settings.slot("main"), date(2026, 11, 21))
    assert [artifact.name for artifact in index.artifacts] == ["A/x"]
    assert "outside the store of the index" in index.rejected[0].reason


def test_a_source_that_two_stores_may_have_is_refused_with_their_names(tmp_path: Path) -> None:
    bucket = {"url": "s3://builds", "connection": "store"}
    site = {
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
        "stores": {
            "east": {**bucket, "endpoint": "http://east.example.org"},
            "west": {**bucket, "endpoint": "http://west.example.org"},
            "inner": {**bucket, "url": "s3://builds/inner", "endpoint": "http://west.example.org"},
            "again": {**bucket, "url": "s3://builds/inner", "endpoint": "http://west.example.org"},
        },
    }
    (tmp_path / "site.yaml").write_text(json.dumps(site))
    login = {"AIRFLOW_CONN_STORE": '{"conn_type": "object_store", "login": "k", "password": "s"}'}
    on_two = Site(load(tmp_path / "site.yaml"), EnvSecrets(login))
    with refused(SOURCE_AMBIGUOUS) as refusal:
        locate(on_two, "s3://builds/a.tar.gz")
    assert "stores east and west" in str(refusal.value)
    assert locate(on_two, "s3://builds/a.tar.gz", "east")[1] == "a.tar.gz"
    assert locate(on_two, "s3://builds/inner/a.tar.gz")[1] == "a.tar.gz"
