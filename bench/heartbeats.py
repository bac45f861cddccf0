"""Heartbeats of tasks beside users' bulk requests: with one API server for both, and with two that share the work.

One lab whose ledger is on a MariaDB. USERS callers send requests of 10,000 files each through the REST API of
stage-out, one after another, while heartbeats of a task are sent EVERY_S seconds and their answers timed. Three kinds
of rounds follow each other: heartbeats alone, beside the requests at the same server, and at a server of their own
(`airflow api-server --apps execution`), as docs/operations.md describes it.

The task is one that has run; the benchmark sets it to running in the database of its lab, so that each heartbeat takes
the way of a live task. Ends in one line of JSON, which is also written to bench/results/heartbeats.json; code 1 if a
heartbeat was refused or a request failed.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from uuid import uuid4

import jwt
import requests
from nights.lab import BenchLab, say
from publishing.machine import Idle, description
from sqlalchemy import create_engine, text
from stageouting.load import LoadPlan
from stageouting.scene import opened
from stageouting.scheduled import DAGS, scheduled

from lab.environment import ADMIN
from lab.ports import LOOPBACK
from lab.retain import DATABASE
from lab.servers.process import free_port

KINDS = ("alone", "one", "apart")
AUDIENCE = "urn:airflow.apache.org:task"
"""Of the tokens of tasks, as Airflow's configuration has it."""
HOST, PID = "bench", 1
EVERY_S = 0.2
"""As 25 tasks send them, one each 5 s."""
STARTED_S = 120.0


class AdminPlan(LoadPlan):
    """One user, who is the administrator of the lab; each request has 10,000 files."""

    def owner(self, user: int) -> str:  # noqa: ARG002 - every user is the administrator
        return ADMIN

    @property
    def per_request(self) -> int:
        return 10_000


@dataclass(slots=True)
class Round:
    """Milliseconds of each heartbeat, the files that were recorded meanwhile, and how idle the machine was."""

    kind: str
    beats_ms: list[float] = field(default_factory=list)
    files: int = 0
    idle: float = 0.0


def main() -> int:
    options = _options()
    say(f"machine: {description()}")
    machine = description()
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-heartbeats-"))
    folder.chmod(0o711)  # the database's server runs as an account of its own
    try:
        with (
            opened(folder, mean_s=20.0) as scene,
            scheduled(LoadPlan(1, 1), scene.ledger_url, scene.fts.url) as lab,
            _execution_server(lab) as apart,
        ):
            heart = Heart(lab, _running_task(lab))
            rounds = [
                _round(lab, heart, kind, apart, number, options) for number, kind in enumerate(KINDS * options.rounds)
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        **{kind: _figures([one for one in rounds if one.kind == kind]) for kind in KINDS},
        "users": options.users,
        "machine": machine,
    }
    if options.results:
        Path(options.results).mkdir(parents=True, exist_ok=True)
        Path(options.results, "heartbeats.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


class Heart:
    """Sends heartbeats of one task."""

    def __init__(self, lab: BenchLab, task: str) -> None:
        now = int(time.time())
        claims = {"sub": task, "aud": AUDIENCE, "iat": now, "nbf": now, "exp": now + 7200, "jti": uuid4().hex}
        token = jwt.encode(claims, lab.lab.secrets.jwt_secret, algorithm="HS512")
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {token}"
        self._session.trust_env = False
        self._path = f"/execution/task-instances/{task}/heartbeat"

    def beat(self, url: str) -> float:
        """Milliseconds until the answer. Raises RuntimeError if it is none of a task that runs."""
        began = time.monotonic()
        answer = self._session.put(url + self._path, json={"hostname": HOST, "pid": PID}, timeout=60.0)
        if answer.status_code != 204:
            raise RuntimeError(f"a heartbeat was refused: HTTP {answer.status_code} {answer.text[:300]}")
        return 1000 * (time.monotonic() - began)


def _round(lab: BenchLab, heart: Heart, kind: str, apart: str, number: int, options: argparse.Namespace) -> Round:
    url = apart if kind == "apart" else lab.lab.airflow_url
    done, ends, idle = Round(kind), threading.Event(), Idle()
    with ThreadPoolExecutor(options.users) as pool:
        names = [f"{number}-{user}" for user in range(0 if kind == "alone" else options.users)]
        sent = [pool.submit(_send, lab, name, ends) for name in names]
        try:
            begun = time.monotonic()
            while (now := time.monotonic()) - begun < options.seconds:
                done.beats_ms.append(heart.beat(url))
                time.sleep(max(0.0, now + EVERY_S - time.monotonic()))
            done.idle = idle.share()
        finally:
            ends.set()
    done.files = sum(user.result() for user in sent)
    say(f"{kind}: {_figures([done])}")
    return done


def _send(lab: BenchLab, name: str, ends: threading.Event) -> int:
    """Send requests one after another until `ends`; returns the files. Raises RuntimeError if one is refused."""
    plan = AdminPlan(1, 1, users=1, run=f"beats{name}")
    draw, minute, recorded = Random(name), 0, 0
    session = requests.Session()
    session.trust_env = False
    session.headers["Authorization"] = f"Bearer {_token(lab)}"
    while not ends.is_set():
        request = plan.request(minute, 0, draw)
        files = [
            {
                "source": file.source, "source_name": file.source_name, "destination": file.destination,
                "destination_name": file.destination_name, "size": file.size, "checksum": file.checksum,
            }
            for file in request.files
        ]  # fmt: skip
        answer = session.post(
            f"{lab.lab.airflow_url}/nightshift/stageout/v1/requests",
            json={"key": request.key, "workflow": request.workflow, "files": files}, timeout=300.0,
        )  # fmt: skip
        if answer.status_code != 201:
            raise RuntimeError(f"a request was refused: HTTP {answer.status_code} {answer.text[:300]}")
        recorded += answer.json()["files"]
        minute += 1
    return recorded


def _token(lab: BenchLab) -> str:
    body = {"username": ADMIN, "password": lab.lab.secrets.admin_password}
    answer = requests.post(f"{lab.lab.airflow_url}/auth/token", json=body, timeout=60.0)
    answer.raise_for_status()
    return str(answer.json()["access_token"])


def _running_task(lab: BenchLab) -> str:
    """The id of a task that has run, set to running, while its DAG and all others of stage-out are paused."""
    ends = time.monotonic() + STARTED_S
    ended: list[str] = []
    while not ended:
        if time.monotonic() > ends:
            raise RuntimeError("no pass of stage-out has ended")
        time.sleep(1.0)
        ended = [run["dag_run_id"] for run in lab.api.runs(DAGS[0], prefix="") if run["state"] == "success"]
    for name in DAGS:
        lab.api.pause(name)
    task = next(one["id"] for one in lab.api.task_instances(DAGS[0], ended[0]) if one["state"] == "success")
    engine = create_engine(lab.lab.environment()[DATABASE])
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE task_instance SET state = 'running', hostname = :host, pid = :pid, last_heartbeat_at = :now"
                " WHERE id = :id"
            ),
            {"host": HOST, "pid": PID, "now": datetime.now(UTC), "id": task},
        )  # fmt: skip
    engine.dispose()
    return str(task)


@contextmanager
def _execution_server(lab: BenchLab) -> Iterator[str]:
    """The URL of an API server of Airflow that serves tasks only; it ends with the block."""
    port, program = free_port(), str(Path(sys.executable).parent / "airflow")
    command = [program, "api-server", "--apps", "execution", "--host", LOOPBACK, "--port", str(port)]
    server = subprocess.Popen(
        command, env=lab.lab.environment(), cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://{LOOPBACK}:{port}"
    try:
        ends = time.monotonic() + STARTED_S
        while True:
            try:
                if requests.get(f"{url}/execution/health", timeout=5.0).ok:
                    break
            except requests.ConnectionError:
                if time.monotonic() > ends or server.poll() is not None:
                    raise
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait()


def _figures(rounds: list[Round]) -> dict[str, float]:
    beats = sorted(beat for one in rounds for beat in one.beats_ms)
    return {
        "heartbeats": len(beats),
        "p50_ms": round(beats[len(beats) // 2], 1),
        "p95_ms": round(beats[math.ceil(0.95 * len(beats)) - 1], 1),
        "most_ms": round(beats[-1], 1),
        "files": sum(one.files for one in rounds),
        "idle": round(sum(one.idle for one in rounds) / len(rounds), 2),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=4, help="who send requests at the same time")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=2, help="of each kind")
    parser.add_argument("--results", default=str(Path(__file__).parent / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
