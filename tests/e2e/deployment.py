"""A whole deployment in a throw-away folder: the lab's services and Airflow, with proxies before store and gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from include.airflow_api import AirflowApi
from include.cli.airflow_connections import RUN_ENDED, Snapshot, snapshot
from include.cvmfs.check.check import check
from include.cvmfs.format.keys import GatewayKey, save_gateway_key
from include.gateway.client.client import GatewayClient
from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.publication import Publication
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.bootstrap import found_repository, found_stores
from include.site.site import Site
from lab import lifecycle
from lab.cluster import Cluster
from lab.environment import ADMIN, Lab, LabFolders
from lab.ports import LOOPBACK, Ports
from lab.secrets import load_or_create
from lab.supervise import end_marked
from tests.fakes.builds import Build
from tests.fakes.faultproxy import FaultProxy

ROOT = Path(__file__).resolve().parents[2]
FQRN = "nights.example.org"
ASKING = "asked.example.org"
"""The repository that asks for approval."""
LEASE_S = 10
HEARTBEAT_TIMEOUT_S = 12
RUN_S = 240.0
POLL_S = 0.5
PROXY_HOLDS_S = 240.0
TICK = (datetime.now(UTC) - timedelta(hours=1)).replace(second=0, microsecond=0)
"""When the slot `evening` was to begin last: its scheduler makes up for it once its DAG is unpaused."""


WITH_CELERY = {
    # what a scheduler queued that died before it was sent is queued again after so long, by default after ten minutes
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "10",
}


@dataclass(frozen=True, slots=True)
class TestLab(Lab):
    """A lab whose programs see the proxies, notice much sooner, and have the plugin of the kill tests."""

    __test__ = False  # not a test, whatever its name

    base: Mapping[str, str]
    plugins: Path

    def airflow_settings(self) -> dict[str, str]:
        # zero-argument super() does not work in a dataclass with slots
        return (
            Lab.airflow_settings(self)
            | (WITH_CELERY if self.cluster else {})
            | {
                "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.plugins),
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT_S),
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
                "AIRFLOW__WORKERS__SOCKET_CLEANUP_TIMEOUT": "5",
                # a DAG that a test writes is seen at once, a deadline soon, and so is that the scheduler is up
                "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
                "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "1",
                "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
                "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
                # reading all files once a minute is a tenth of two cores; tests that change a file have it read
                "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            }
        )

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        return Lab.environment(self, self.base if base is None else base)


class Deployment:
    """Everything up. `store_proxy` and `gateway_proxy` stand between the services and what their names say."""

    def __init__(self, folder: Path, cluster: Cluster | None = None) -> None:
        self.folder = folder
        self.cluster = cluster
        self.host = LOOPBACK
        if cluster:
            cluster.make()
            self.host = cluster.address
        self.own_dags = folder / "own-dags"
        self.own_dags.mkdir()
        self.place = LabFolders((folder / "var").resolve())
        self.ports = Ports.unused()
        self.store_proxy = FaultProxy(f"http://{LOOPBACK}:{self.ports.s3}", timeout_s=PROXY_HOLDS_S, host=self.host)
        gateway = f"http://{self.host}:{self.ports.gateway}"
        self.gateway_proxy = FaultProxy(gateway, timeout_s=PROXY_HOLDS_S, host=self.host)
        self.lab = self._lab()
        self.environment = self.lab.environment()
        # the tests themselves go to the store and the gateway directly
        direct = {**self.environment, "NIGHTSHIFT_TEST_S3": self.lab.s3_url}
        self.settings = load(environ=direct)
        self.secrets = EnvSecrets(direct)
        self.site = Site(self.settings, self.secrets)
        self.api = AirflowApi(self.lab.airflow_url, ADMIN, self.lab.secrets.admin_password)

    def start(self) -> None:
        """Start everything, and found the repositories."""
        self.store_proxy.__enter__()
        self.gateway_proxy.__enter__()
        # the connection names the proxy's port, so the service itself knows its key from the file
        key = GatewayKey(self.lab.secrets.gateway_key_id, self.lab.secrets.gateway_key_secret)
        for fqrn in (FQRN, ASKING):
            save_gateway_key(self.settings.gateway.keys, fqrn, key)
        lifecycle.up(self.lab, airflow=True, say=_say)
        found_stores(self.site, {"cvmfs", "builds"}, say=_say)
        for fqrn in (FQRN, ASKING):
            found_repository(self.site, fqrn, say=_say)
        for dag_id in ("nightly_install", "nightly_install_main", "publication", "nightly_gc", "rollback"):
            self.api.wait_for_dag(dag_id, timeout_s=60)

    def stop(self) -> None:
        """Let go what is held, and stop everything."""
        self.store_proxy.clear()
        self.gateway_proxy.clear()
        self.site.ledger.dispose()
        try:
            lifecycle.down(self.lab, say=_say)
        finally:
            end_marked(self.place)  # also where a busy machine does not stop it in order
        self.store_proxy.close()
        self.gateway_proxy.close()

    # -- what tests do with it

    def drop(self, build: Build) -> None:
        """Put a build into the store as a build system would: the index last."""
        build.store_in(self.site.store("builds"))

    def trigger(self, dag_id: str, run_id: str, **conf: object) -> str:
        """Start a run by hand; returns its id."""
        self.api.trigger(dag_id, run_id, conf)
        self.api.unpause(dag_id)
        return run_id

    def unpause_quietly(self, dag_id: str) -> None:
        """Unpause a schedule without the run of its last tick, which would be that night's: its place is taken."""
        tick = self.api.pending_schedule(dag_id, now=datetime.now(UTC))
        if tick is not None:
            self.api.trigger(dag_id, f"placeholder__{tick}", {}, logical_date=tick)
            self.rest("PATCH", f"/dags/{dag_id}/dagRuns/placeholder__{tick}", json={"state": "failed"})
        self.api.unpause(dag_id)

    def follow(self, dag_id: str, run_id: str, timeout_s: float = RUN_S) -> Snapshot:
        """Wait until a run has ended."""
        self.wait_until(lambda: self.api.run_state(dag_id, run_id) in RUN_ENDED, f"{run_id} has ended", timeout_s)
        return snapshot(self.api.run_state(dag_id, run_id), self.tasks(dag_id, run_id))

    def wait_until(self, true: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait for what Airflow tells nobody."""
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
            time.sleep(POLL_S)

    def read_files(self, dag_ids: Iterable[str], timeout_s: float) -> None:
        """Have the files of these DAGs read now; by itself Airflow does so seldom."""
        before = {dag_id: self.rest("GET", f"/dags/{dag_id}") for dag_id in dag_ids}
        for dag in before.values():
            self.api._call("PUT", f"/api/v2/parseDagFile/{dag['file_token']}")

        def read() -> bool:
            now = {dag_id: self.rest("GET", f"/dags/{dag_id}") for dag_id in before}
            return all(now[one]["last_parsed_time"] > before[one]["last_parsed_time"] for one in before)

        self.wait_until(read, f"{', '.join(before)}: read again", timeout_s)

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        return self.api.task_instances(dag_id, run_id)

    def rest(self, method: str, path: str, **arguments: Any) -> Any:
        """A call of Airflow's REST API."""
        return self.api._call(method, f"/api/v2{path}", **arguments).json()

    def airflow(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Airflow's command as the documentation has it, from a shell that knows the lab's place and ports only."""
        return self.run("lab", "airflow", *arguments, environment={**self.lab.base, **self.lab.ports.to_environment()})

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A command of ours; by default with the environment of the services."""
        program = str(Path(sys.executable).parent / "nightshift")
        return subprocess.run(
            [program, *arguments],
            env=self.environment if environment is None else environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def task_log(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> str:
        """Return the log of the first try of a task, as the UI shows it."""
        place = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/1"
        asked = {"params": {"map_index": map_index}, "headers": {"Accept": "application/json"}}
        return json.dumps(self.rest("GET", place, **asked))

    def publications(self, dag_id: str, run_id: str) -> dict[str, Publication]:
        """What the ledger says of a run: artifact -> publication."""
        found = publications_of_run(self.site.ledger, f"{dag_id}/{run_id}")
        return {f"{one.project}/{one.platform}": one for one in found}

    def leases(self) -> list[str]:
        with GatewayClient(self.lab.gateway_url, "", "") as client:
            return [f"{lease.full_path} held by {lease.hostname}" for lease in client.leases()]

    def revision(self, fqrn: str = FQRN) -> int:
        return self.site.repository(fqrn).manifest.revision

    def problems(self) -> tuple[str, ...]:
        """What a complete check of the repository finds, data objects included."""
        return tuple(str(one) for one in check(self.site.repository(FQRN)).problems)

    # -- private

    def _lab(self) -> TestLab:
        self.place.make()
        config = self.folder / "site.yaml"
        config.write_text(_SITE)
        secrets = load_or_create(self.place.secrets)
        base = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "NIGHTSHIFT"))},
            "NIGHTSHIFT_CONFIG": str(config),
            "NIGHTSHIFT_VAR": str(self.place.var),
            "NIGHTSHIFT_DAGS": str(self.own_dags),
            "NIGHTSHIFT_TEST_S3": self.store_proxy.url,
            "AIRFLOW_CONN_STORE": json.dumps(
                {"conn_type": "object_store", "login": secrets.s3_access_key, "password": secrets.s3_secret_key}
            ),
            "AIRFLOW_CONN_GATEWAY": json.dumps(
                {
                    "conn_type": "cvmfs_gateway",
                    "host": self.host,
                    "port": int(self.gateway_proxy.url.rpartition(":")[2]),
                    "login": secrets.gateway_key_id,
                    "password": secrets.gateway_key_secret,
                }
            ),
        }
        return TestLab(self.place, self.ports, secrets, base, self._plugins(), cluster=self.cluster)

    def _plugins(self) -> Path:
        folder = self.folder / "plugins"
        folder.mkdir()
        for plugin in (ROOT / "plugins").glob("*.py"):
            (folder / plugin.name).symlink_to(plugin)
        (folder / "child_of_a_task.py").symlink_to(ROOT / "tests" / "e2e" / "child_plugin.py")
        return folder


def _say(text: str) -> None:
    print(text)


_SITE = f"""
ledger: "sqlite:///${{NIGHTSHIFT_VAR}}/ledger.db"
paths: {{var: "${{NIGHTSHIFT_VAR}}"}}
metrics_connection: metrics
gateway:
  host: "${{NIGHTSHIFT_GATEWAY_HOST:-127.0.0.1}}"
  insecure: "${{NIGHTSHIFT_GATEWAY_INSECURE:-false}}"
  port: "${{NIGHTSHIFT_GATEWAY_PORT}}"
  max_lease_time_s: {LEASE_S}
  state: "${{NIGHTSHIFT_VAR}}/gateway/state.db"
  keys: "${{NIGHTSHIFT_VAR}}/keys"
stores:
  cvmfs: {{url: "s3://cvmfs", endpoint: "${{NIGHTSHIFT_TEST_S3}}", connection: store, timeout_s: 240}}
  builds: {{url: "s3://builds", endpoint: "${{NIGHTSHIFT_TEST_S3}}", connection: store}}
repositories:
  {FQRN}:
    store: cvmfs
    public_url: "http://${{NIGHTSHIFT_S3_HOST:-127.0.0.1}}:${{NIGHTSHIFT_S3_PORT}}/cvmfs/{FQRN}"
    public_key: "${{NIGHTSHIFT_VAR}}/keys/{FQRN}.pub"
    gateway: gateway
  {ASKING}:
    store: cvmfs
    public_url: "http://${{NIGHTSHIFT_S3_HOST:-127.0.0.1}}:${{NIGHTSHIFT_S3_PORT}}/cvmfs/{ASKING}"
    public_key: "${{NIGHTSHIFT_VAR}}/keys/{ASKING}.pub"
    gateway: gateway
    approval: {{deadline_minutes: 10, approvers: [admin]}}
slots:
  main: {{repository: {FQRN}, store: builds, schedule: "0 2 * * *", timezone: Europe/Zurich}}
  faults: {{repository: {FQRN}, store: builds}}
  early: {{repository: {FQRN}, store: builds, begins: artifact, poll_s: 600, gather_s: 0.5}}
  evening:
    {{repository: {FQRN}, store: builds, schedule: "{TICK.minute} {TICK.hour} * * *", timezone: UTC,
      poll_s: 600, gather_s: 0.5, links: {{}}}}
sites:
  pisa: {{read: &pisa [{{prefix: /store, url: "davs://pisa.example.org/cms"}}], write: *pisa, third_party: *pisa}}
  bari: {{read: &bari [{{prefix: /store, url: "davs://bari.example.org/cms"}}], write: *bari, third_party: *bari}}
"""
