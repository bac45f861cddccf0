"""A night of very many small artifacts under the real Airflow: how much of its time is spent on anything but the work.

Starts a lab of its own in a throw-away folder, drops a build of ARTIFACTS tarballs, runs the slot's DAG, and takes the
times from Airflow (when tasks ran) and from the ledger (how long each artifact was worked on in them). Ends in one line
of JSON, which is also written to bench/results/night.json; with code 1 if something was not published, or the share is
above the target.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from publishing.machine import description

from include.lab import lifecycle
from include.lab.airflow_api import AirflowApi
from include.lab.environment import ADMIN, Lab
from include.lab.follow import follow
from include.lab.night import start, today
from include.lab.ports import Ports
from include.nightlies.index import Artifact, BuildIndex
from include.nightlies.records import Publication, publications_of_run
from include.nightlies.steps.reading import index_place
from include.publishers.connect import Connections
from include.publishers.found import found_repository, found_stores
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.storage.store import Store

TARGET = 0.10
PLATFORMS = 4
WORK = {"artifact.prepare": "prepare", "artifact.publish": "publish"}


def main() -> int:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-night-"))
    folder.chmod(0o755)  # the database's server runs as a user of its own
    os.environ.update({"NIGHTSHIFT_VAR": str(folder), **Ports.unused().to_environment()})
    lab = Lab.from_environment()
    lab.place.make()
    os.environ.update(lab.settings(os.environ))
    print(f"machine: {description()}\nload before: {os.getloadavg()[0]:.1f}", flush=True)
    try:
        lifecycle.up(lab, airflow=True, say=_say)
        result = _night(lab, options)
    finally:
        lifecycle.down(lab, say=_say)
        shutil.rmtree(folder, ignore_errors=True)
    line = json.dumps(result)
    Path(options.results).mkdir(parents=True, exist_ok=True)
    (Path(options.results) / "night.json").write_text(json.dumps(result, indent=1) + "\n")
    print(line)
    return 0 if result["published"] == options.artifacts and result["outside"] <= TARGET else 1


def _night(lab: Lab, options: argparse.Namespace) -> dict[str, Any]:
    site = load()
    slot = next(iter(site.slots.values()))
    connections = Connections(site, EnvSecrets())
    found_stores(connections, {slot.store, site.repository(slot.repository).store}, say=_say)
    found_repository(connections, slot.repository, say=_say)
    day = today(site, slot.name, datetime.now(UTC))
    index = BuildIndex(slot.name, "bench", day, complete=True, artifacts=drop(connections.store(slot.store), options))
    connections.store(slot.store).put(index_place(slot, day), index.format())
    api = AirflowApi(lab.airflow_url, ADMIN, lab.secrets.admin_password)
    dag_id = f"nightly_install_{slot.name}"
    run_id = start(api, dag_id, day, _say)
    began = time.monotonic()
    last = [0.0]

    def show(seen: Any) -> None:
        if time.monotonic() - last[0] > 20:
            last[0] = time.monotonic()
            print(f"{time.monotonic() - began:.0f} s: {'; '.join(map(str, seen.kinds))}", flush=True)

    state = follow(api, dag_id, run_id, show=show, timeout_s=options.seconds).state
    done = publications_of_run(connections.ledger, f"{dag_id}/{run_id}")
    return {"state": state, **figures(api.task_instances(dag_id, run_id), done), "machine": description()}


def drop(store: Store, options: argparse.Namespace) -> tuple[Artifact, ...]:
    """The tarballs of a build, each with a few small files, most of them alike on all platforms."""
    made = []
    for number in range(options.artifacts):
        project, platform = f"P{number // PLATFORMS:04}", f"platform{number % PLATFORMS}"
        data = _tarball({f"file{n}": f"{project} {n}".encode() * 20 for n in range(options.files)}, platform)
        url = f"bench/{project}-{platform}.tar.gz"
        store.put(url, data)
        made.append(Artifact(project, platform, url, len(data), hashlib.sha256(data).hexdigest()))
    return tuple(made)


def _tarball(files: dict[str, bytes], platform: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in {**files, "platform": platform.encode()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), 1, mtime=0)


@dataclass(frozen=True, slots=True)
class Ran:
    """A task of the run, in seconds since the epoch."""

    task: str
    began: float
    ended: float


def figures(instances: Iterable[dict[str, Any]], done: Sequence[Publication]) -> dict[str, Any]:
    """What the times of tasks and of artifacts make.

    `outside`: the share of the wall time in which no artifact was prepared or published. A batch is counted as worked
    on only as long as the ledger says of its artifacts; what its task spends on starting counts as outside.
    `outside_tasks`: the same with whole tasks.
    """
    ran = [
        Ran(one["task_id"], _seconds(one["start_date"]), _seconds(one["end_date"]))
        for one in instances
        if one["start_date"] and one["end_date"]
    ]
    wall = max(one.ended for one in ran) - min(one.began for one in ran)
    worked = {"prepare": 0.0, "publish": 0.0}
    for one in done:
        for phase, seconds in one.seconds.items():
            worked["prepare" if phase == "prepare" else "publish"] += seconds
    tasks = {task: [one for one in ran if one.task == task] for task in WORK}
    whole = [(one.began, one.ended) for batch in tasks.values() for one in batch]
    strict = []
    for task, kind in WORK.items():
        for one in tasks[task]:
            # artifacts are alike here, so each batch of as many has had its part
            length = min(worked[kind] / len(tasks[task]), one.ended - one.began)
            strict.append((one.ended - length, one.ended))
    others: dict[str, float] = {}
    for one in ran:
        if one.task not in WORK:
            others[one.task] = round(others.get(one.task, 0.0) + one.ended - one.began, 1)
    return {
        "artifacts": len(done),
        "published": sum(one.state.good for one in done),
        "batches": len(tasks["artifact.prepare"]),
        "wall_s": round(wall, 1),
        "outside": round(1 - _covered(strict) / wall, 3),
        "outside_tasks": round(1 - _covered(whole) / wall, 3),
        "target": TARGET,
        "prepare_s": round(worked["prepare"], 1),
        "publish_s": round(worked["publish"], 1),
        "other_tasks_s": others,
    }


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """How many seconds at least one of them covers."""
    covered, reached = 0.0, float("-inf")
    for began, ended in sorted(intervals):
        covered += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return covered


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _say(text: str) -> None:
    print(text, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=int, default=1500)
    parser.add_argument("--files", type=int, default=3, help="files in each artifact that all platforms have alike")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the run may take")
    parser.add_argument("--results", default=str(Path(__file__).parent / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
