"""Every store says of what kind it is, and every scheme names one kind: whether it is local is never a default."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from include.cvmfs.errors import SignatureError
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.keys import save_signer
from include.cvmfs.format.objects import Compressor
from include.cvmfs.ingest import packing, processes
from include.cvmfs.ingest.upload import Budget, JournaledStore, Uploader, UploadJournal
from include.cvmfs.revision.repository import Repository, fetch_trusted
from include.monitoring.findings import Severity
from include.monitoring.store_checks import conditions, written
from include.nightlies.steps.sources import opened
from include.nightlies.steps.values import Item
from include.publishers.capabilities import Operation
from include.settings.load import load
from include.settings.prepare import ArtifactLimits
from include.settings.secrets import EnvSecrets
from include.site.bootstrap import found_stores
from include.site.site import Site, switching
from include.storage.buckets import bucket_policy
from include.storage.errors import StoreError
from include.storage.file import FileStore
from include.storage.kinds import FILE, HTTP, S3, StoreKind, kind_of
from include.storage.open import open_store
from include.storage.store import Store
from tests.fakes.archives import archive, file
from tests.fakes.farstore import FAR, FarStore, register
from tests.fakes.minirepo import FQRN, NOW, public_key, sample, signer
from tests.fakes.refused import refused


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("file:///srv/cvmfs", FILE), ("s3://bucket/x", S3), ("S3://bucket/x", S3), ("http://host/x", HTTP),
        ("HTTPS://host/x", HTTP),
    ],
)  # fmt: skip
def test_a_store_is_of_the_kind_that_its_url_names(url: str, kind: StoreKind) -> None:
    store = open_store(url)
    assert (kind_of(url), store.kind, store.child("below").kind) == (kind, kind, kind)
    assert (store.is_local, store.writable) == (kind.is_local, kind.writable)


def test_only_folders_are_local_and_only_http_is_read_only() -> None:
    assert [kind.is_local for kind in (FILE, S3, HTTP)] == [True, False, False]
    assert [kind.writable for kind in (FILE, S3, HTTP)] == [True, True, False]


@pytest.mark.parametrize("url", ["", "folder/x", "file:/x", "far://pool/x", "://x"])
def test_a_url_of_no_known_scheme_is_of_no_kind(url: str) -> None:
    with pytest.raises(StoreError):
        kind_of(url)


def test_a_store_that_does_not_say_its_kind_cannot_be_made() -> None:
    silent = type("Silent", (FarStore,), {"kind": Store.kind})
    assert silent.__abstractmethods__ == {"kind"}
    with pytest.raises(TypeError):
        silent()


def test_a_journaled_store_is_of_the_kind_of_the_store_behind_it(tmp_path: Path) -> None:
    journal = UploadJournal(tmp_path, about=("x",), generation=0, now=NOW)
    assert JournaledStore(FarStore(), journal).kind is FAR
    assert JournaledStore(FileStore(tmp_path), journal).kind is FILE


# -- a new scheme is remote everywhere: never read unverified, never switched without a lease, never skipped


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> FarStore:
    return register(monkeypatch)


@pytest.fixture
def site(far: FarStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose one store is of the new scheme."""
    path = tmp_path / "site.yaml"
    path.write_text(
        f'ledger: "sqlite:///{tmp_path}/ledger.db"\ngateway: {{keys: "{tmp_path}/keys"}}\n'
        "stores: {main: {url: 'far://pool', connection: key, endpoint: 'http://127.0.0.1:9'}}\n"
        f"repositories: {{{FQRN}: {{store: main, public_url: 'http://127.0.0.1:9', public_key: k.pub, gateway: gw}}}}\n"
    )
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(path))
    key = json.dumps({"conn_type": "object_store", "login": "key", "password": "not-a-secret"})
    made = Site(load(path, environ={}), EnvSecrets({"AIRFLOW_CONN_KEY": key}))
    yield made
    made.ledger.dispose()


def test_it_is_never_read_without_a_key(far: FarStore) -> None:
    sample(far).publish()
    with refused(SignatureError, what="manifest"):
        Repository.open("far://pool", fqrn=FQRN, now=NOW)
    with refused(SignatureError, what="manifest"):
        fetch_trusted(far, fqrn=FQRN, public_keys=(), now=NOW)
    assert Repository.open("far://pool", fqrn=FQRN, public_keys=[public_key()], now=NOW).verified


def test_its_manifest_is_switched_under_a_lease(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    save_signer(site.settings.gateway.keys, FQRN, signer())
    leased: list[str] = []

    @contextlib.contextmanager
    def lease(repository: str, path: str, *, hostname: str) -> Iterator[None]:
        leased.append(f"{repository}{path} {hostname}")
        yield

    gateway = SimpleNamespace(judges_bases=lambda: True, lease=lease)
    monkeypatch.setattr(site, "gateway", lambda _: gateway)
    with switching(site, FQRN, Operation.TAG_ADD, holder="me") as (store, _):
        assert store.url == f"far://pool/{FQRN}"
        assert leased == [f"{FQRN} me"]


def test_its_conditions_are_not_taken_for_granted(site: Site) -> None:
    (finding,) = conditions(site, "main")
    assert finding.severity is Severity.WARNING
    assert "never tried" in finding.seen


def test_it_is_no_folder_of_this_machine(site: Site, far: FarStore) -> None:
    assert "store main" not in written(site.settings, ["main"])
    far.put("a.tar", archive([file("a", b"1")]))
    source = opened(site, Item("A/x", "/d", "far://pool/a.tar", store="main"), ArtifactLimits())
    assert [entry.path for entry, _ in source.entries()] == ["a"]


def test_it_is_given_no_bucket_and_no_policy(site: Site) -> None:
    lines: list[str] = []
    found_stores(site, {"main"}, say=lines.append)
    assert lines == []
    with refused(StoreError):
        bucket_policy("far://pool", [FQRN], {})


def test_it_gets_all_its_connections_and_no_writers_of_files(far: FarStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with Uploader(far, connections=64, budget=Budget(1)) as uploader:
        assert uploader._most == 64
    monkeypatch.setattr(packing, "PROCESSES_AFTER_FILES", 1)
    monkeypatch.setattr(processes, "useful", lambda: pytest.fail("files are packed for a folder"))
    delivered: list[str] = []
    with packing.Packer[str](
        far, known=(), algorithm=Algorithm.SHA1, compressor=Compressor.STOCK, connections=1, budget_bytes=1 << 20,
        deliver=lambda ticket, digest: delivered.append(ticket),
    ) as packer:  # fmt: skip
        packer.take("a", b"1")
    assert delivered == ["a"]
