"""A complete small site (S3 server, gateway service, repository, ledger) and Airflow on SQLite, to run whole DAGs."""

from __future__ import annotations

from tests.fakes import airflowhome

HOME = airflowhome.use()

# ruff: noqa: E402 - Airflow reads its environment when it is first imported
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, cast

import pytest
from airflow.dag_processing.dagbag import BundleDagBag, DagBag
from airflow.sdk import DAG, BaseSensorOperator
from airflow.utils.state import DagRunState
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from include.cvmfs.commit.create import create_repository
from include.cvmfs.format.keys import save_signer
from include.gateway.client.client import GatewayClient
from include.gateway.service.config import AcceptedKey
from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.publication import Publication
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.buckets import allow_public_read, ensure_bucket
from include.storage.kinds import Credentials
from lab.servers.weed import WeedServer
from tests.fakes.apart import one_repository, port_of, running_gateway
from tests.fakes.builds import Build
from tests.fakes.site import FQRN, MASTER, PUBLIC_KEY, SIGNER

KEY = ("worker", "not-a-secret")
ADMIN = ("administrator", "not-a-secret-either")
BUNDLE = "dags-folder"  # what Airflow calls its own folder of DAGs


@dataclass
class MiniSite:
    """What a test needs of the site: its clients, builds to drop, and what became of them."""

    folder: Path
    opened: Site
    gateway_url: str
    bag: DagBag
    environment: dict[str, str] = field(default_factory=dict)
    ways: list[str] = field(default_factory=list)  # the run of each task that asked whether it has to give way
    defaults: dict[str, dict[str, object]] = field(init=False)

    def __post_init__(self) -> None:
        self.defaults = {name: _defaults(dag) for name, dag in self.dags.items()}

    @property
    def dags(self) -> dict[str, DAG]:
        return self.bag.dags

    def drop(self, build: Build) -> None:
        """Put a build into the store as a build system would: the index last."""
        build.store_in(self.opened.store("builds"))

    def client(self) -> GatewayClient:
        return GatewayClient(self.gateway_url, *KEY)

    def leases(self) -> list[str]:
        with self.client() as client:
            return [lease.full_path for lease in client.leases()]

    def revision(self) -> int:
        return self.opened.repository(FQRN).manifest.revision

    def run(self, dag_id: str, logical_date: datetime | None = None, **conf: object) -> Run:
        """Run a DAG as Airflow does, in this process; triggers run inline."""
        # test() leaves a run's parameters in the DAG, where the next run of this process would find them
        conf = {**self.defaults[dag_id], **conf}
        if "allow_future" in conf:
            conf["allow_future"] = True  # the dates of the tests are fixed, and this machine's clock is what it is
        return self._run(dag_id, logical_date=logical_date, run_conf=conf)

    def backfill(self, dag_id: str, logical_date: datetime) -> Run:
        """Run a DAG for a date as a run of a backfill."""
        from airflow.models import dagrun
        from airflow.serialization.definitions.dag import SerializedDAG
        from airflow.utils.types import DagRunTriggeredByType, DagRunType

        def begun(*, dag: SerializedDAG, session: Session, **_: object) -> dagrun.DagRun:
            kind, at = DagRunType.BACKFILL_JOB, logical_date
            run_id = dagrun.DagRun.generate_run_id(run_type=kind, logical_date=at, run_after=at)
            return dag.create_dagrun(
                run_id=run_id, run_type=kind, logical_date=at, data_interval=(at, at), run_after=at,
                triggered_by=DagRunTriggeredByType.BACKFILL, state=DagRunState.RUNNING, session=session,
                conf=dict(self.defaults[dag_id]),
            )  # fmt: skip

        with pytest.MonkeyPatch.context() as patch:  # test() begins runs by hand
            patch.setattr(dagrun, "get_or_create_dagrun", begun)
            return self._run(dag_id)

    def clear(self, run: Run, *tasks: str | tuple[str, int]) -> Run:
        """Clear tasks of a run that ended, by id or id and map index, and let it go on to its end."""
        from airflow.models import dagrun
        from airflow.serialization.definitions.dag import SerializedDAG

        dag_id, _, run_id = run.name.partition("/")

        def cleared(*, dag: SerializedDAG, session: Session, **_: object) -> dagrun.DagRun:
            dag.clear(run_id=run_id, task_ids=tasks, dag_run_state=DagRunState.RUNNING, session=session)
            wanted = select(dagrun.DagRun).where(dagrun.DagRun.dag_id == dag_id, dagrun.DagRun.run_id == run_id)
            found = session.scalars(wanted).one()
            found.dag = dag
            return found

        with pytest.MonkeyPatch.context() as patch:  # test() would begin a run of its own
            patch.setattr(SerializedDAG, "clear_dags", lambda *_, **__: 0)
            patch.setattr(dagrun, "get_or_create_dagrun", cleared)
            return self._run(dag_id)

    def _run(self, dag_id: str, **options: object) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in self.environment.items():
                patch.setenv(variable, value)
            dag = self.dags[dag_id]
            # it is for good; here the next tasks share the process
            patch.setattr("hooks.task.give_way", self.ways.append)
            # test() looks for deadlines by what the DAG says of them; in Airflow the database has given them ids
            patch.setattr(dag, "deadline", None)
            with as_recorded():
                run = dag.test(run_after=datetime.now(UTC), **options)  # type: ignore[arg-type]
            if run.state == "failed" and dag.on_failure_callback is not None:
                cast("Any", dag.on_failure_callback)(
                    {"dag": dag, "run_id": run.run_id, "dag_run": run, "reason": "task_failure"}
                )
        name = f"{dag_id}/{run.run_id}"
        states = {
            f"{ti.task_id}[{ti.map_index}]" if ti.map_index >= 0 else ti.task_id: str(ti.state)
            for ti in run.get_task_instances()
        }
        found = publications_of_run(self.opened.ledger, name)
        return Run(str(run.state), states, {one.destination: one for one in found}, name)


@dataclass(frozen=True)
class Run:
    """A run that ended: its state, its tasks' states, its publications by destination, and its name in the ledger."""

    state: str
    tasks: dict[str, str]
    publications: dict[str, Publication]
    name: str = ""

    def states(self) -> dict[str, str]:
        """Artifact -> state."""
        return {f"{one.project}/{one.platform}": one.state.value for one in self.publications.values()}


@contextmanager
def as_recorded() -> Iterator[None]:
    """Let ``dag.test()`` take the DAGs as ``record`` left them; it would read all files anew before every run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow.dag_processing.bundles.manager.DagBundlesManager.get_all_dag_bundles", lambda _: ())
        # each look at a parameter checks its JSON schema itself again; test_contracts.py does that once
        patch.setattr("jsonschema.Draft202012Validator.check_schema", lambda *_, **__: None)
        # test() hands it the serialized DAG, and fails where a parameter has no default; Airflow does not
        patch.setattr("airflow.models.dagrun.DagRun.produce_dag_callback", lambda *_, **__: None)
        # the pauses before retries are half a minute each; the tests are of what the next try does
        patch.setattr("airflow.models.taskinstance.TaskInstance.next_retry_datetime", lambda task: task.end_date)
        patch.setattr("time.sleep", _sleep)
        yield


def _sleep(seconds: float, wait: Callable[[float], None] = time.sleep) -> None:
    """Sleep; `test()` does so for a second before each look at tasks that were skipped or wait for an answer."""
    looks = sys._getframe(1).f_globals["__name__"] == "airflow.sdk.definitions.dag"
    wait(0.02 if looks else seconds)


@pytest.fixture(scope="session")
def weed(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeedServer]:
    need("weed")
    folder = tmp_path_factory.mktemp("weed")
    with WeedServer(folder / "data", credentials=Credentials(*KEY), log=folder / "log") as server:
        for bucket in ("cvmfs", "builds"):
            ensure_bucket(f"s3://{bucket}", server.credentials, server.options())
        allow_public_read("s3://cvmfs", server.credentials, server.options())
        yield server


@pytest.fixture(scope="session")
def site(weed: WeedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniSite]:
    """The site, its repository created, its gateway running, and its DAGs read by Airflow."""
    folder = tmp_path_factory.mktemp("site")
    store = weed.store("cvmfs", FQRN)
    create_repository(store, FQRN, master=MASTER, signer=SIGNER, now=datetime.now(UTC))
    (folder / "repository.pub").write_bytes(PUBLIC_KEY)
    (folder / "trees").mkdir()
    save_signer(folder / "signing", FQRN, SIGNER)  # for tests whose configuration says that they are there
    read_config = partial(
        one_repository, folder, FQRN, store, AcceptedKey(*KEY), keys=folder / "signing", max_lease_time_s=30,
        admins=(AcceptedKey(*ADMIN, admin=True),),
    )  # fmt: skip
    with running_gateway(read_config) as url:
        port = port_of(url)
        file = folder / "site.yaml"
        file.write_text(_SITE.format(folder=folder, endpoint=weed.endpoint, fqrn=FQRN))
        environment = {
            "NIGHTSHIFT_CONFIG": str(file),
            "AIRFLOW_CONN_STORE": _connection("object_store"),
            "AIRFLOW_CONN_GATEWAY": _connection("cvmfs_gateway", host="127.0.0.1", port=port),
            "AIRFLOW_CONN_GATEWAY_ADMIN": _connection("cvmfs_gateway", login=ADMIN[0], password=ADMIN[1]),
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            opened = Site(load(), EnvSecrets({**os.environ}))
            bag = read_dags()
        record(bag)
        yield MiniSite(folder, opened, url, bag, environment)
        opened.ledger.dispose()


@contextmanager
def reconfigured(site: MiniSite, text: str, *files: str) -> Iterator[MiniSite]:
    """The same site by another configuration; until the end the DAGs of these files take the place of its own."""
    file = site.folder / f"of-{'-'.join(files)}.yaml"
    file.write_text(text)
    environment = {**site.environment, "NIGHTSHIFT_CONFIG": str(file)}
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment.items():
            patch.setenv(variable, value)
        opened, bag = Site(load(), EnvSecrets({**os.environ})), read_dags(*files)
    record(bag)
    yield MiniSite(site.folder, opened, site.gateway_url, bag, environment)
    opened.ledger.dispose()
    bag.dags = {dag_id: site.dags[dag_id] for dag_id in bag.dags.keys() & site.dags.keys()}
    record(bag)


@contextmanager
def meanwhile(sensor: type[BaseSensorOperator], work: Callable[[], object]) -> Iterator[None]:
    """Do this as soon as a task of that kind waits in the triggerer."""
    waits, defer, done = SimpleQueue[bool](), sensor.defer, list[object]()

    def seen(self: BaseSensorOperator, **kwargs: Any) -> NoReturn:
        waits.put(True)
        defer(self, **kwargs)

    thread = threading.Thread(target=lambda: waits.get() and done.append(work()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensor, "defer", seen)
        thread.start()
        try:
            yield
        finally:
            waits.put(False)  # none came to wait
            thread.join()
    assert done


@dataclass
class Shown:
    """Question as a person saw it, and what was held and published at that moment."""

    subject: str
    body: str
    assigned: list[str]
    leases: list[str]
    revision: int
    seconds_left: float


@dataclass
class Anna:
    """Answers every question as Airflow's API does; ``None`` is the end of the time for it."""

    site: MiniSite
    says: str | None
    answered: dict[object, Shown] = field(default_factory=dict)
    faults: list[BaseException] = field(default_factory=list)

    @property
    def seen(self) -> list[Shown]:
        return list(self.answered.values())

    def watch(self, stop: threading.Event) -> None:
        while not stop.wait(0.1):
            try:
                self._look()
            except OperationalError:
                continue  # SQLite is busy
            except BaseException as fault:
                self.faults.append(fault)
                raise

    def _look(self) -> None:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from airflow.utils.state import TaskInstanceState
        from sqlalchemy.orm import joinedload

        with create_session() as session:
            query = select(TaskInstance).where(TaskInstance.state == TaskInstanceState.AWAITING_INPUT)
            waiting = session.scalars(query.options(joinedload(TaskInstance.hitl_detail))).all()
            answered = {ti.id: self._answer(session, ti, ti.hitl_detail) for ti in waiting}
        # one that SQLite was too busy to keep, or that `dag.test()` wrote over, is given again, and counts once
        self.answered |= answered

    def _answer(self, session: Any, ti: Any, detail: Any) -> Shown:
        from airflow.models.trigger import handle_event_submit
        from airflow.triggers.base import TriggerEvent

        now = datetime.now(UTC)
        shown = Shown(
            detail.subject, detail.body, [one["id"] for one in detail.assignees or []], self.site.leases(),
            self.site.revision(), (ti.trigger_timeout - now).total_seconds(),
        )  # fmt: skip
        event = {"error": "no response", "error_type": "timeout"}
        if self.says is not None:
            detail.chosen_options, detail.params_input = [self.says], {"comment": "seen by anna"}
            detail.responded_by, detail.responded_at = {"id": "anna", "name": "anna"}, now
            event = detail.as_resume_event_payload()
        handle_event_submit(TriggerEvent(event), task_instance=ti, session=session)
        return shown


@contextmanager
def anna(site: MiniSite, says: str | None) -> Iterator[Anna]:
    person, stop = Anna(site, says), threading.Event()
    thread = threading.Thread(target=person.watch, args=(stop,), daemon=True)
    thread.start()
    yield person
    stop.set()
    thread.join(20)
    assert not person.faults


@pytest.fixture(autouse=True)
def _environment_of_the_site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each test that is on the site, and for no test that comes after these."""
    if "site" in request.fixturenames:
        for name, value in request.getfixturevalue("site").environment.items():
            monkeypatch.setenv(name, value)


def _defaults(dag: DAG) -> dict[str, object]:
    known = {name: dag.params.get_param(name) for name in dag.params}
    return {name: param.value for name, param in known.items() if param.value is None or param.has_value}


def _connection(kind: str, **more: object) -> str:
    return json.dumps({"conn_type": kind, "login": KEY[0], "password": KEY[1], **more})


def read_dags(*names: str) -> DagBag:
    """The DAGs of the site that the environment names: those of all files, or of some."""
    folder = airflowhome.ROOT / "dags"
    bag = BundleDagBag(str(folder), bundle_path=folder, bundle_name=BUNDLE, collect_dags=not names)
    for name in names:
        bag.process_file(str(folder / f"{name}.py"))
    assert bag.import_errors == {}
    return bag


def record(bag: DagBag) -> None:
    """Write DAGs into Airflow's database, which is made if need be, in the place of others of their names."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import sync_bag_to_db
    from airflow.utils.db import initdb

    if not (HOME / "airflow.db").exists():
        initdb()
        DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(bag, BUNDLE, None)


_SITE = """
ledger: "sqlite:///{folder}/ledger.db"
gateway: {{max_lease_time_s: 30}}
paths: {{var: "{folder}"}}
stores:
  cvmfs: {{url: "s3://cvmfs", endpoint: "{endpoint}", connection: store}}
  builds: {{url: "s3://builds", endpoint: "{endpoint}", connection: store}}
  trees: {{url: "file://{folder}/trees"}}
repositories:
  {fqrn}:
    store: cvmfs
    public_url: "{endpoint}/cvmfs/{fqrn}"
    public_key: "{folder}/repository.pub"
    gateway: gateway
    gateway_admin: gateway_admin
    limits: {{members: 2000, bytes: 50MiB, file_size: 10MiB}}
slots:
  main:
    repository: {fqrn}
    store: builds
    schedule: "0 2 * * *"
    timezone: Europe/Zurich
    retries: 0
    gather_s: 0.2
    poll_s: 1
  linked:
    repository: {fqrn}
    store: builds
    retries: 0
    links: {{}}
    tag: "{{slot}}-{{build_id}}"
  required:
    repository: {fqrn}
    store: builds
    projects: [Gaudi, LHCb]
    platforms: [x86_64]
    retries: 0
"""
