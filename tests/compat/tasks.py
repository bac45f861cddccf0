"""A night's tasks, run by hand in the order of its DAG: what each leaves for the next."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from airflow.sdk import Asset

from operators.approve import AskApprovalOperator
from operators.care import CheckRepositoryOperator, CheckWhitelistOperator, RemoveUnfinishedWritesOperator
from operators.inherit import InheritArtifactsOperator
from operators.leases import ListLeasesOperator
from operators.night import (
    AnnounceBuildOperator,
    CheckCompletenessOperator,
    PlanNightOperator,
    PlanPublicationOperator,
    SetLinksOperator,
)
from operators.passes import StartNextPassOperator
from operators.prepare import PrepareArtifactsOperator
from operators.publish import PublishArtifactsOperator
from operators.reserve import ReserveDestinationsOperator
from operators.undo import PlanUndoOperator, UndoBuildOperator
from operators.verify import VerifyArtifactsOperator
from operators.watch import WatchNightsOperator
from sensors.build import BuildSensor
from tests.compat.keys import FQRN
from tests.compat.sites import DAY, CompatSite
from tests.fakes.taskcontext import task_context

UNDO = {
    "slot": "main", "build_id": "b2", "reason": "crashes", "projects": None, "platforms": None, "instead": "nothing",
    "move_links": True, "approval": False, "dry_run": False,
}  # fmt: skip


class Events(dict[Any, Any]):
    """What a task tells of the assets that it has among its outlets."""

    def __missing__(self, asset: Any) -> Any:
        self[asset] = SimpleNamespace(extra=None)
        return self[asset]


def context(run_id: str, **params: Any) -> Any:
    """Of a scheduled run of the night's DAG."""
    at = datetime(DAY.year, DAY.month, DAY.day, 1, 30, tzinfo=UTC)
    # the clock of this machine may be behind the fixed dates
    made = task_context(logical_date=at, run_type="manual", allow_future=True, **params)
    made["run_id"] = made["ti"].run_id = made["dag_run"].run_id = run_id
    made["outlet_events"] = Events()
    return made


def install(site: CompatSite) -> dict[str, Any]:
    """A whole build, a partial one on top of it that is undone, a tree by hand: what tasks return, by their names."""
    site.drop(DAY, "Gaudi", "LHCb")
    left: dict[str, Any] = {}

    def run(name: str, task: Any, where: Any) -> Any:
        left[name] = task.execute(where)
        return left[name]

    first = context("run-1")
    night = run("find_build", BuildSensor(task_id="find_build", slot="main"), first)
    batches = run("plan", PlanNightOperator(task_id="plan", night=night), first)
    _publish("", batches, first, left)
    passed = run("gate", CheckCompletenessOperator(task_id="gate", night=night), first)
    linked = run("links", SetLinksOperator(task_id="links", night=night), first)
    announce = AnnounceBuildOperator(
        task_id="announce", night=night, passed=passed, linked=linked, outlets=[Asset(name="nightlies_main", uri="x://y")]
    )  # fmt: skip
    run("announce", announce, first)
    left["asset event"] = [event.extra for event in first["outlet_events"].values()]
    left["next_pass"] = _next(night, first)

    site.drop(DAY, "Gaudi", build_id="b2", partial=True, base={"build_id": "b1", "date": str(DAY)})
    second = context("run-2")
    night = BuildSensor(task_id="find_build", slot="main").execute(second)
    batches = run("plan of a partial build", PlanNightOperator(task_id="plan", night=night), second)
    pushed = second["ti"].xcom_pull(task_ids="publish", key="inherited")
    left["inherited of a plan"] = pushed
    _publish(" of a partial build", batches, second, left)
    run("inherited", InheritArtifactsOperator(task_id="inherited", batch=pushed), second)

    undo = context("run-3", **UNDO)
    run("look of an undo", PlanUndoOperator(task_id="look"), undo)
    left["plan of an undo"] = undo["ti"].xcom_pull(task_ids="publish", key="plan")
    run("undo", UndoBuildOperator(task_id="undo"), undo)

    (site.folder / "builds" / "byhand").mkdir()
    (site.folder / "builds" / "byhand" / "file").write_text("x")
    given = {"repository": FQRN, "path": "/by/hand", "source": f"file://{site.folder}/builds/byhand", "mode": "replace",
             "dry_run": False}  # fmt: skip
    run("plan of a publication", PlanPublicationOperator(task_id="plan"), context("run-4", **given))
    with site.client() as client:
        lease = client.acquire(FQRN, "/elsewhere", hostname="night/run-1/publish try 1")
        looking = context("run-5")
        looking["ti"].get_task_states = lambda **_: {}
        run("look at leases", ListLeasesOperator(task_id="look"), looking)
        client.drop(lease)
    watching = context("run-6", repositories=None, dry_run=True)
    watching["ti"].get_dr_count = lambda **_: 0
    run("check", CheckRepositoryOperator(task_id="check", repository=FQRN), watching)
    run("whitelist", CheckWhitelistOperator(task_id="whitelist", repository=FQRN), watching)
    run("unfinished", RemoveUnfinishedWritesOperator(task_id="unfinished", repository=FQRN), watching)
    run("watch", WatchNightsOperator(task_id="watch"), watching)
    run("ask", AskApprovalOperator(task_id="ask", batches=batches), second)
    return left


def _publish(what: str, batches: Any, where: Any, left: dict[str, Any]) -> None:
    left[f"reserve{what}"] = ReserveDestinationsOperator(task_id="reserve", batches=batches).execute(where)
    prepared = [PrepareArtifactsOperator(task_id="prepare", batch=batch).execute(where) for batch in batches]
    left[f"prepare{what}"] = prepared
    left[f"publish{what}"] = [
        PublishArtifactsOperator(task_id="publish", batch=batch).execute(where) for batch in batches
    ]
    left[f"verify{what}"] = VerifyArtifactsOperator(task_id="verify", batches=batches).execute(where)


def _next(night: dict[str, Any], where: Any) -> Any:
    """What the run of the next pass is started with."""
    from airflow.sdk.exceptions import DagRunTriggerException

    open_night = {**night, "last": False}
    where["ti"].xcom_push(key="plan", value=[])
    try:
        StartNextPassOperator(task_id="next_pass", night=open_night, plan="plan").execute(where)
    except DagRunTriggerException as started:
        return {"dag": started.trigger_dag_id, "run": started.dag_run_id, "conf": started.conf}
    raise AssertionError("no pass was started")
