"""Founding a repository: nothing is left behind where it cannot be had, and what is there already stays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from include.cvmfs.commit.commit import read_head
from include.cvmfs.errors import KeyFileError, RepositoryError
from include.cvmfs.format.keys import load_signer
from include.cvmfs.format.layout import Layout
from include.cvmfs.revision.repository import ManifestVerifier, Repository
from include.publishers.errors import PublisherError
from include.settings.errors import MissingConnection
from include.settings.load import parse
from include.settings.model import PublisherKind
from include.settings.secrets import EnvSecrets
from include.settings.services import NodeSettings
from include.site.bootstrap import found_repository, found_stores
from include.site.site import Site
from include.storage.errors import StoreError
from tests.fakes.refused import refused

FQRN = "nights.example.org"
SITE = """\
ledger: "sqlite:///ledger.db"
gateway: {keys: keys}
stores: {main: STORE}
repositories:
  nights.example.org: {store: main, public_url: "file:store/nights.example.org", public_key: keys/k.pub, gateway: gw}
"""
KEY = {"login": "key1", "password": "not-a-secret"}
FOLDER = '{url: "file:store"}'


@pytest.fixture
def connected(tmp_path: Path) -> Callable[..., Site]:
    """Connections of a site whose store is the one given."""

    def connect(store: str = FOLDER, **gateway: object) -> Site:
        environ = {"AIRFLOW_CONN_GW": json.dumps({**KEY, **gateway})}
        return Site(
            parse(SITE.replace("STORE", store), file="site.yaml", root=tmp_path, environ={}), EnvSecrets(environ)
        )

    return connect


def founded(on_site: Site) -> bool:
    found_stores(on_site, {"main"}, say=lambda _: None)
    return found_repository(on_site, FQRN, say=lambda _: None)


def keys(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("keys/*"))


def test_a_repository_is_created_once_with_all_its_keys(connected: Callable[..., Site], tmp_path: Path) -> None:
    assert founded(connected())
    assert keys(tmp_path) == [f"{FQRN}.{ending}" for ending in ("crt", "gw", "key", "masterkey", "pub")]
    assert {path.name for path in (tmp_path / "store" / FQRN).iterdir()} >= {".cvmfspublished", ".cvmfswhitelist"}
    assert not list((tmp_path / "store").rglob(".nightshift-*"))
    before = (tmp_path / "store" / FQRN / ".cvmfspublished").read_bytes()
    assert not founded(connected())
    assert (tmp_path / "store" / FQRN / ".cvmfspublished").read_bytes() == before


@pytest.mark.parametrize(
    ("store", "error"),
    [
        ('{url: "file:blocked/store"}', StoreError),
        ('{url: "http://127.0.0.1:1/store"}', PublisherError),
        ('{url: "s3://store", endpoint: "http://127.0.0.1:1", retries: 0, timeout_s: 2}', StoreError),
        ('{url: "s3://store", endpoint: "http://127.0.0.1:1", connection: absent}', MissingConnection),
    ],
)
def test_nothing_is_written_where_the_store_cannot_be_used(
    connected: Callable[..., Site], tmp_path: Path, store: str, error: type[Exception]
) -> None:
    (tmp_path / "blocked").write_text("a file where the store's folder would be")
    with pytest.raises(error):
        founded(connected(store))
    assert keys(tmp_path) == []


def test_the_key_of_another_gateway_is_refused(connected: Callable[..., Site], tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / f"{FQRN}.gw").write_text("plain_text key1 another\n")
    with refused(PublisherError, fqrn=FQRN):
        founded(connected())
    assert keys(tmp_path) == [f"{FQRN}.gw"]
    assert not (tmp_path / "store" / FQRN).exists()


def test_a_repository_without_its_keys_is_not_made_again(connected: Callable[..., Site], tmp_path: Path) -> None:
    founded(connected())
    for path in (tmp_path / "keys").iterdir():
        path.unlink()
    with refused(PublisherError, fqrn=FQRN):
        founded(connected())
    assert keys(tmp_path) == []


def test_a_creation_that_died_after_its_keys_goes_on_with_them(connected: Callable[..., Site], tmp_path: Path) -> None:
    founded(connected())
    public = (tmp_path / "keys" / f"{FQRN}.pub").read_bytes()
    (tmp_path / "store" / FQRN / ".cvmfspublished").unlink()
    assert founded(connected())
    assert (tmp_path / "keys" / f"{FQRN}.pub").read_bytes() == public


@pytest.mark.parametrize("number", range(4))
def test_a_creation_that_died_between_its_keys_makes_the_others(
    connected: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    left, link = [number], os.link

    def die(source: Path, target: Path) -> None:
        if Path(target).suffix != ".gw":
            left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        link(source, target)

    with monkeypatch.context() as dying:
        dying.setattr("include.cvmfs.format.keys.os.link", die)
        with pytest.raises(KeyboardInterrupt):
            founded(connected())
    before = {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    assert len(before) == number + 1
    assert founded(connected())
    assert keys(tmp_path) == [f"{FQRN}.{ending}" for ending in ("crt", "gw", "key", "masterkey", "pub")]
    assert all((tmp_path / "keys" / name).read_bytes() == data for name, data in before.items())


def test_of_two_creations_at_once_with_the_same_keys_one_wins(connected: Callable[..., Site], tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        tries = [pool.submit(founded, on_site) for on_site in (connected(), connected())]
        outcomes = [one.exception() or one.result() for one in tries]
    assert outcomes.count(True) == 1
    assert outcomes[1 - outcomes.index(True)] is False or isinstance(
        outcomes[1 - outcomes.index(True)], RepositoryError | KeyFileError
    )
    signer = load_signer(tmp_path / "keys", FQRN)
    read_head(connected().repository_store(FQRN), FQRN, ManifestVerifier(signer))


def test_a_repository_of_a_publisher_node_is_not_founded_here(connected: Callable[..., Site]) -> None:
    site = connected()
    node = NodeSettings.model_validate(
        {"host": "node.example.org", "user": "u", "known_hosts": "hosts", "agent": True, "behind": "stock"},
        context={"root": site.settings.paths.root},
    )
    by_node = {"publisher": PublisherKind.CVMFS_SERVER, "server": node}
    changed = site.settings.repository(FQRN).model_copy(update=by_node)
    there = Site(site.settings.model_copy(update={"repositories": {FQRN: changed}}), site.secrets)
    with refused(PublisherError, fqrn=FQRN):
        founded(there)
    assert not list(site.settings.paths.root.rglob("*.key"))


@pytest.mark.parametrize(
    ("setting", "asked", "layout"),
    [("", False, Layout.PLAIN), ("", True, Layout.MTIME_NS), (", prepare: {mtime_ns: true}", False, Layout.MTIME_NS)],
)
def test_a_repository_keeps_nanoseconds_if_it_is_created_for_them(
    tmp_path: Path, setting: str, asked: bool, layout: Layout
) -> None:
    text = SITE.replace("STORE", FOLDER).replace("gateway: gw}", f"gateway: gw{setting}}}")
    environ = {"AIRFLOW_CONN_GW": json.dumps(KEY)}
    on_site = Site(parse(text, file="site.yaml", root=tmp_path, environ={}), EnvSecrets(environ))
    assert found_repository(on_site, FQRN, say=lambda _: None, mtime_ns=asked)
    opened = Repository.open(on_site.gateway_store(FQRN))
    assert opened.revision.catalog_at("").layout is layout
