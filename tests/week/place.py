"""Where the week happens: a lab of its own in a throw-away folder, all of it on free ports of loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.airflow_api import AirflowApi
from include.settings.load import load
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.bootstrap import found_repository, found_stores
from include.site.site import Site
from lab import lifecycle
from lab.environment import ADMIN, Lab, LabFolders
from lab.ports import LOOPBACK, Ports
from lab.secrets import load_or_create
from lab.supervise import Supervisor
from tests.week.plan import PLATFORMS, PROJECTS, SLOTS

FQRN = "week.example.org"
DAG_APPEARS_S = 180.0
COMMAND_S = 300.0
RESTARTED_S = 120.0


class WeekFailed(Exception):
    """The week cannot go on; it says why."""


@dataclass(frozen=True, slots=True)
class WeekLab(Lab):
    """A lab whose Airflow notices sooner than a real one that a scheduler or a task is dead: time is compressed.

    `base`: the environment on which those of its programs are built.
    """

    base: Mapping[str, str]

    def airflow_settings(self) -> dict[str, str]:
        return Lab.airflow_settings(self) | {
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        }

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        return Lab.environment(self, self.base if base is None else base)


@dataclass(frozen=True)
class Deployment:
    """What the week works on. `environment`: of every command that is run on it."""

    lab: Lab
    settings: SiteSettings
    site: Site
    environment: dict[str, str]
    fqrn: str

    def api(self) -> AirflowApi:
        """A session of Airflow's API of one's own; one is not shared between threads."""
        return AirflowApi(self.lab.airflow_url, ADMIN, self.lab.secrets.admin_password)

    def command(self, *arguments: str, good: tuple[int, ...] = (0,)) -> str:
        """What `nightshift` with these arguments prints. Raises WeekFailed for another exit code."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "nightshift"), *arguments],
            env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S,
        )  # fmt: skip
        if done.returncode not in good:
            said = (done.stderr or done.stdout).strip()[-500:]
            raise WeekFailed(f"nightshift {' '.join(arguments)} ended with code {done.returncode}: {said}")
        return done.stdout

    @property
    def public_url(self) -> str:
        return self.settings.repository(self.fqrn).public_url

    @property
    def public_key(self) -> bytes:
        return self.settings.repository(self.fqrn).public_key.read_bytes()

    def kill(self, program: str) -> tuple[int, int, float]:
        """`kill -9` a program of the lab; its old and its new process once the process manager started it again, and
        after how many seconds that was."""
        supervisor = Supervisor(self.lab.place)
        old, began = supervisor.process(program).pid, time.monotonic()
        os.kill(old, signal.SIGKILL)

        def new() -> int | None:
            pid = supervisor.process(program).pid
            return pid if pid not in (0, old) else None

        return old, wait_for(new, f"{program} is started again", RESTARTED_S), time.monotonic() - began


@contextmanager
def deployment(say: Callable[[str], None], *, keep: bool = False) -> Iterator[Deployment]:
    """Everything up, with the repository founded; stopped and taken away in the end. `keep`: the folder stays."""
    folder = Path(tempfile.mkdtemp(prefix="nightshift-week-"))
    folder.chmod(0o755)  # the database's server runs as a user of its own
    place = LabFolders((folder / "var").resolve())
    place.make()
    config = folder / "site.yaml"
    config.write_text(site_text())
    base = {name: text for name, text in os.environ.items() if not name.startswith(("AIRFLOW", "NIGHTSHIFT"))}
    base |= {"NIGHTSHIFT_CONFIG": str(config), "NIGHTSHIFT_VAR": str(place.var)}
    lab = WeekLab(place, Ports.unused(), load_or_create(place.secrets), base)
    site = None
    try:
        lifecycle.up(lab, airflow=True, say=say)
        environment = lab.environment()
        settings = load(environ=environment)
        site = Site(settings, EnvSecrets(environment))
        found_stores(site, {"cvmfs", "builds"}, say=say)
        found_repository(site, FQRN, say=say)
        made = Deployment(lab, settings, site, environment, FQRN)
        api = made.api()
        for slot in settings.slots:
            api.wait_for_dag(f"nightly_install_{slot}", timeout_s=DAG_APPEARS_S)
            api.unpause(f"nightly_install_{slot}")
        yield made
    finally:
        if site is not None:
            site.ledger.dispose()
        lifecycle.down(lab, say=say)
        if keep:
            say(f"logs and state stay in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def wait_for(look: Callable[[], Any], what: str, timeout_s: float, poll_s: float = 0.5) -> Any:
    """The first true thing that a look shows. Raises WeekFailed."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise WeekFailed(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(poll_s)
    return seen


def site_text() -> str:
    """The site configuration: three slots that publish to one repository."""
    text = _SITE
    for name, slot in SLOTS.items():
        choices = f"projects: [{', '.join(PROJECTS)}], platforms: [{', '.join(PLATFORMS)}]"
        choices += f", optional: {{platforms: [{', '.join(slot.optional)}]}}" if slot.optional else ""
        ways = f'links: {{}}, tag: "{{slot}}-{{build_id}}", partial: {slot.partial}'
        text += f"  {name}: {{repository: {FQRN}, store: builds, poll_s: 1, gather_s: 2, {ways}, {choices}}}\n"
    return text


_SITE = f"""\
ledger: "sqlite:///${{NIGHTSHIFT_VAR}}/ledger.db"
paths: {{var: "${{NIGHTSHIFT_VAR}}"}}
gateway:
  host: {LOOPBACK}
  port: "${{NIGHTSHIFT_GATEWAY_PORT}}"
  max_lease_time_s: 30
  state: "${{NIGHTSHIFT_VAR}}/gateway/state.db"
  keys: "${{NIGHTSHIFT_VAR}}/keys"
stores:
  cvmfs: {{url: "s3://cvmfs", endpoint: "http://{LOOPBACK}:${{NIGHTSHIFT_S3_PORT}}", connection: store}}
  builds: {{url: "s3://builds", endpoint: "http://{LOOPBACK}:${{NIGHTSHIFT_S3_PORT}}", connection: store}}
repositories:
  {FQRN}:
    store: cvmfs
    public_url: "http://{LOOPBACK}:${{NIGHTSHIFT_S3_PORT}}/cvmfs/{FQRN}"
    public_key: "${{NIGHTSHIFT_VAR}}/keys/{FQRN}.pub"
    gateway: gateway
slots:
"""
