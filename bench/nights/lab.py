"""A lab of its own for a benchmark, with Airflow, in a throw-away folder; and the slot whose nights are run in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import yaml

from bench.nights.builds import drop
from include.airflow_api import AirflowApi
from include.cli.airflow_connections import Snapshot, follow, start
from include.nightlies.records.builds import changeset
from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.passes import today
from include.nightlies.rules.publication import Publication
from include.nightlies.steps.sources import index_place
from include.settings.load import load
from include.settings.model import Slot
from include.settings.secrets import EnvSecrets
from include.site.bootstrap import found_repository, found_stores
from include.site.site import Site
from lab import lifecycle
from lab.cluster import Cluster
from lab.environment import ADMIN, ROOT, Lab
from lab.ports import Ports

SAY_EVERY_S = 20.0


@dataclass(slots=True)
class BenchLab:
    """What a benchmark does with its lab. ``slot``: the only one of the site; ``dag_id``: its nights."""

    lab: Lab
    slot: Slot
    site: Site
    api: AirflowApi

    @property
    def dag_id(self) -> str:
        return f"nightly_install_{self.slot.name}"

    def today(self) -> date:
        return today(self.slot.timezone, datetime.now(UTC))

    def drop(self, day: date, artifacts: int, files: int, own: int = 0) -> None:
        """Put the whole build of a date into the store, its index last."""
        store = self.site.store(self.slot.store)
        build_id = f"b{day:%Y%m%d}"
        made: tuple[Artifact, ...] = drop(store, build_id, artifacts, files, own)
        index = BuildIndex(self.slot.name, build_id, day, complete=True, artifacts=made)
        store.put(index_place(self.slot, day), index.format())

    def start(self, day: date) -> str:
        """Start the night of a date; returns the run's id."""
        return start(self.api, self.dag_id, day, say)

    def follow(self, run_id: str, seconds: float) -> Snapshot:
        """Wait until a run has ended, and say now and then how far it is. Raises LabError."""
        began, said = time.monotonic(), float("-inf")

        def show(seen: Snapshot) -> None:
            nonlocal said
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                say(f"{said - began:4.0f} s: {'; '.join(map(str, seen.kinds))}")

        return follow(self.api, self.dag_id, run_id, show=show, timeout_s=seconds)

    def tasks(self, run_id: str) -> list[dict[str, Any]]:
        return self.api.task_instances(self.dag_id, run_id)

    def publications(self, run_id: str) -> tuple[Publication, ...]:
        return publications_of_run(self.site.ledger, f"{self.dag_id}/{run_id}")

    def prepared_at(self, done: Publication) -> datetime | None:
        """When the preparation of a publication began."""
        made = changeset(self.site.ledger, done.changeset or "")
        return made.created_at if made is not None else None

    def airflow(self, *arguments: str) -> str:
        """What the airflow command says, in the environment of the lab. Raises CalledProcessError."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "airflow"), *arguments],
            env=self.lab.environment(), cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(
                f"airflow {arguments[0]} {arguments[1]} failed: {done.stdout[-500:]}{done.stderr[-1500:]}"
            )
        return done.stdout


@contextmanager
def bench_lab(change: Callable[[dict[str, Any]], None] = lambda _: None, workers: int = 0) -> Iterator[BenchLab]:
    """Start it, found its stores and its repository; at the end all of it goes away.

    `change` may change the configuration before that. `workers`: of Celery, or none.
    """
    before = dict(os.environ)
    # what is started here ends with us, also when it is `kill` that ends us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-night-"))
    folder.chmod(0o755)  # the database's server runs as a user of its own
    os.environ.update({"NIGHTSHIFT_VAR": str(folder), **Ports.unused().to_environment()})
    os.environ["NIGHTSHIFT_CONFIG"] = str(_configuration(folder, change))
    lab = replace(Lab.from_environment(), cluster=Cluster.choose(workers) if workers else None)
    lab.place.make()
    os.environ.update(lab.settings(os.environ))
    try:
        lifecycle.up(lab, airflow=True, say=say)
        settings = load()
        slot = next(iter(settings.slots.values()))
        site = Site(settings, EnvSecrets())
        found_stores(site, {slot.store, settings.repository(slot.repository).store}, say=say)
        found_repository(site, slot.repository, say=say)
        api = AirflowApi(lab.airflow_url, ADMIN, lab.secrets.admin_password)
        yield BenchLab(lab, slot, site, api)
        site.ledger.dispose()
    finally:
        lifecycle.down(lab, say=say)
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)


def _configuration(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The configuration of the embedded services, changed."""
    document = yaml.safe_load((ROOT / "config" / "site.yaml").read_text())
    change(document)
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def say(text: str) -> None:
    print(text, flush=True)
