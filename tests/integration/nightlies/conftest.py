"""A small site (a store, a gateway, a ledger, a slot) on which the steps of nights are called one by one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.commit.commit import fence
from include.cvmfs.commit.create import create_repository
from include.cvmfs.format.keys import save_signer
from include.gateway.client.client import GatewayClient
from include.gateway.service.config import AcceptedKey
from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.publication import Publication
from include.nightlies.steps.errors import GateClosed, ReserveFailed
from include.nightlies.steps.plan import plan_night, plan_publication
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.publish import PublishOutcome, publish_batch
from include.nightlies.steps.reserve import reserve_run
from include.nightlies.steps.values import Batch, BatchOutcome, Night, PublicationRequest
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.file import FileStore
from include.storage.store import Store
from lab.servers.weed import WeedServer
from tests.fakes.apart import one_repository, port_of, running_gateway
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.fakes.collector import Collector
from tests.fakes.site import FQRN, MASTER, PUBLIC_KEY, SIGNER
from tests.integration.conftest import BUCKET, OWNER

_runs = itertools.count()
KEY = AcceptedKey("worker", "not-a-secret")
_SITE = """
ledger: "sqlite:///{folder}/ledger.db"
paths: {{var: "{folder}/var"}}
stores:
  cvmfs: {{{store}}}
repositories:
  {fqrn}:
    store: cvmfs
    public_url: "{public_url}/{fqrn}"
    public_key: "{folder}/repository.pub"
    gateway: gateway
slots:
  main: {{repository: {fqrn}, store: cvmfs}}
"""


def missing(gate: GateClosed) -> list[str]:
    """What a closed gate names, without the reasons."""
    return [line.partition(": ")[0] for line in gate.missing]


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Nights:
    """``environment``: what another process needs to work on the same site."""

    site: Site
    environment: Mapping[str, str]

    def plan(self, day: int, projects: Mapping[str, Mapping[str, bytes]], run: str = "") -> Batch:
        """Drop a build of these projects and plan its night."""
        build = Build(f"2026-11-{day:02}")
        for project, files in projects.items():
            build.add(project, "x86_64", tree(files))
        build.store_in(self.site.store("cvmfs"))
        return self.planned(day, run)

    def planned(self, day: int, run: str = "") -> Batch:
        night = Night(run or f"night/{day}", "main", date(2026, 11, day), "test")
        (batch,) = plan_night(self.site, attempt(), night, max_mapped=1).batches
        return batch

    def prepare(self, batch: Batch, try_number: int = 1) -> BatchOutcome:
        return prepare_batch(self.site, attempt(number=try_number), batch)

    def publish(self, batch: Batch, try_number: int = 1) -> PublishOutcome:
        reserve_run(self.site, attempt(), [batch])
        return publish_batch(self.site, attempt(number=try_number), batch)

    def night(self, day: int, projects: Mapping[str, Mapping[str, bytes]]) -> dict[str, Publication]:
        """A whole night; what became of each project."""
        batch = self.plan(day, projects)
        assert not self.prepare(batch).failures
        outcome = self.publish(batch)
        assert not outcome.failures
        assert not outcome.busy
        return {str(one.project): one for one in outcome.done}

    def by_hand(self, path: str, data: bytes, **wanted: Any) -> Publication:
        """Publish a tarball by hand, as a run of its own as far as its steps let it; what became of it."""
        store, run = self.site.store("cvmfs"), f"publication/{next(_runs)}"
        store.put(f"{run}.tar.gz", data)
        plan = plan_publication(
            self.site, attempt(run), PublicationRequest(FQRN, path, f"{store.url}/{run}.tar.gz", **wanted)
        )
        (batch,) = plan.batches
        if not self.prepare(batch).failures and not batch.dry_run:
            with suppress(ReserveFailed):  # which the publication's reason repeats
                self.publish(batch)
        return self.publication(batch)

    def publication(self, batch: Batch) -> Publication:
        (found,) = self.publications(batch.run)
        return found

    def publications(self, run: str) -> tuple[Publication, ...]:
        return tuple(publications_of_run(self.site.ledger, run))

    def reason(self, batch: Batch, name: str) -> str:
        """Why the publication of an artifact is in the state it is in."""
        (item,) = (item for item in batch.items if item.name == name)
        return next(one.reason for one in self.publications(batch.run) if one.destination == item.destination)

    @property
    def store(self) -> Store:
        return self.site.repository_store(FQRN)

    def check(self) -> CheckReport:
        return check(self.site.head(FQRN), contents=True)

    def collector(self) -> Collector:
        def barrier() -> None:
            fence(self.store, FQRN, signer=SIGNER, now=int(now().timestamp()))

        return Collector(self.store, FQRN, barrier=barrier, now=now())

    def client(self) -> GatewayClient:
        return self.site.gateway(FQRN)


@dataclass
class Place:
    """Where a site has its objects: its store, which is the lines of its settings, and where everybody reads it."""

    store: Store
    settings: str
    public_url: str


@pytest.fixture(params=["file", pytest.param("weed", marks=[pytest.mark.server("weed"), pytest.mark.thorough])])
def place(request: pytest.FixtureRequest, s3_prefix: str, tmp_path: Path) -> Place:
    """A folder. The steps know a store by its interface: on S3 is what `dags`, `publishers` and `storage` test."""
    if request.param == "file":
        store: Store = FileStore(tmp_path / "store")
        return Place(store, f'url: "{store.url}"', store.url)
    weed: WeedServer = request.getfixturevalue("weed")
    store = weed.store(BUCKET, s3_prefix)
    settings = f'url: "s3://{BUCKET}/{s3_prefix}", endpoint: "{weed.endpoint}", connection: store'
    return Place(request.getfixturevalue("knowing")(weed, store), settings, weed.public_url(BUCKET, s3_prefix))


@pytest.fixture
def nights(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nights]:
    store = place.store.child(FQRN)
    create_repository(store, FQRN, master=MASTER, signer=SIGNER, now=now())
    (tmp_path / "repository.pub").write_bytes(PUBLIC_KEY)
    save_signer(tmp_path / "signing", FQRN, SIGNER)
    file = tmp_path / "site.yaml"
    file.write_text(_SITE.format(folder=tmp_path, store=place.settings, public_url=place.public_url, fqrn=FQRN))
    keys = tmp_path / "signing"
    with running_gateway(partial(one_repository, tmp_path, FQRN, store, KEY, keys=keys, max_lease_time_s=30)) as url:
        where = {"host": "127.0.0.1", "port": port_of(url)}
        environment = {
            "NIGHTSHIFT_CONFIG": str(file),
            "AIRFLOW_CONN_STORE": _connection("object_store", OWNER.access_key, OWNER.secret_key),
            "AIRFLOW_CONN_GATEWAY": _connection("cvmfs_gateway", KEY.id, KEY.secret, **where),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        site = Site(load(), EnvSecrets())
        yield Nights(site, environment)
        site.ledger.dispose()


def _connection(kind: str, login: str, password: str, **more: object) -> str:
    return json.dumps({"conn_type": kind, "login": login, "password": password, **more})
