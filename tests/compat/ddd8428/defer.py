"""Run with the code of this folder's commit: tasks of it at a site where each must wait, and the rows that they leave.

Kept as it was, since it calls that code. Standard output is one JSON object: the row of each task that was deferred, as
Airflow's worker hands it to the database, and what the task before left for it.
"""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

for name in [name for name in os.environ if name.startswith("AIRFLOW__")]:
    del os.environ[name]
os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "ERROR"

# ruff: noqa: E402 - Airflow reads its environment when it is imported
from airflow.models.trigger import Trigger
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.serde import serialize

from include.settings.load import load
from operators.begin import index_asset
from operators.night import NightPlanOperator
from operators.reserve import CvmfsReserveOperator
from sensors.build import BuildSensor
from sensors.lease import LeaseFreeSensor
from sensors.objects import ObjectSensor
from sensors.place import PlaceSensor
from triggers.pause import PauseTrigger

FQRN, RUN = "compat.example.org", "scheduled__2026-11-21T01:30:00+00:00"
PLACE = "/nightlies/main/b1/Gaudi/x86_64"
NIGHT = {
    "run": f"nightly_install_main/{RUN}", "slot": "main", "date": "2026-11-21", "reason": "by hand", "projects": [],
    "platforms": [], "dry_run": False, "number": 1, "earlier": [], "last": True,
}  # fmt: skip


def context(**params):
    left = {}
    ti = SimpleNamespace(
        dag_id="nightly_install_main", run_id=RUN, task_id="reserve", map_index=-1, try_number=1, max_tries=2,
        xcom_push=lambda *, key, value: left.update({key: value}), xcom_pull=lambda **_: None,
    )  # fmt: skip
    now = datetime.now(UTC)
    run = SimpleNamespace(logical_date=now, partition_key=None, run_type="scheduled", run_id=RUN, start_date=now)
    return {
        "ti": ti,
        "dag": SimpleNamespace(dag_id="nightly_install_main"),
        "run_id": RUN,
        "dag_run": run,
        "params": params,
    }


def deferred(task, **params):
    try:
        task.execute(context(**params))
    except TaskDeferred as wait:
        path, arguments = wait.trigger.serialize()
        return {
            "classpath": path,
            "kwargs": json.dumps(serialize(arguments)),
            "next_method": wait.method_name,
            "next_kwargs": serialize(wait.kwargs or {}),
        }
    raise SystemExit(f"{task.task_id} did not wait")


def main():
    batches = NightPlanOperator(task_id="plan", night=NIGHT).execute(context())
    reserve = CvmfsReserveOperator(task_id="reserve", batches=batches, patience_s=0.0)
    rows = {
        "lease": deferred(reserve),
        "lease sensor": deferred(LeaseFreeSensor(task_id="free", repository=FQRN, path="/nightlies")),
        "place": deferred(PlaceSensor(task_id="place", repository=FQRN, path=PLACE)),
        "object": deferred(ObjectSensor(task_id="object", store="builds", key="later")),
        "night": deferred(BuildSensor(task_id="find_build", slot="main")),
    }
    freeze = Path(sys.argv[1]) / "store" / FQRN / ".nightshift" / "freeze"
    freeze.parent.mkdir(exist_ok=True)
    freeze.write_text(
        '{"format":1,"id":"0","reason":"disks","since":"2026-11-21T00:00:00+00:00","thawed":null,"until":null,"who":"x"}\n'
    )
    rows["thaw"] = deferred(reserve)
    freeze.unlink()
    until = datetime.now(UTC) + timedelta(hours=1)
    path, arguments = PauseTrigger(0.0, until.isoformat(), "2026-11-21T02:00:00+00:00", 3).serialize()
    rows["pause"] = {"classpath": path, "kwargs": json.dumps(serialize(arguments)), "next_method": "outage_over",
                     "next_kwargs": serialize({})}  # fmt: skip
    (watcher,) = index_asset(load().slot("watched")).watchers
    path, arguments = watcher.trigger.serialize()
    os.environ.pop("AIRFLOW__CORE__FERNET_KEY", None)
    rows["watcher"] = {"classpath": path, "kwargs": Trigger.encrypt_kwargs(arguments), "name": watcher.name}
    sys.stdout.write(json.dumps({"rows": rows, "batches": batches}, indent=1) + "\n")


main()
