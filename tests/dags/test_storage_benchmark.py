"""`storage_benchmark` through `dag.test()`, on a folder with a runner that measures what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from include.benchmarks.campaign import campaigns, plan
from include.benchmarks.campaign.folder import target_lock
from include.benchmarks.campaign.plan import RUNNERS
from include.benchmarks.errors import AREA_FOREIGN, CAMPAIGN_FAILED, PLAN_REFUSED, TARGET_BUSY
from include.benchmarks.judge.judge import accept_baseline, judged_campaigns
from include.benchmarks.measure.loads import RunnerKind
from include.site.site import Site
from operators.approve import APPROVE, REJECT
from operators.benchmark import (
    APPROVE_TASK,
    REFUSED,
    ApproveBenchmarkOperator,
    JudgeBenchmarkOperator,
    PlanBenchmarkOperator,
    RemoveBenchmarkDataOperator,
    StorageBenchmarkOperator,
)
from tests.dags.conftest import as_recorded, read_dags, record
from tests.fakes.benchmarking import MIB, MeasuringRunner, benchmark_site
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

WISH = {"target": "scratch", "preset": "hlt2-uncontrolled", "scale": 0.001, "minutes": 5, "rounds": 5}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site without repositories, whose file the DAGs and operators read."""
    made = benchmark_site(tmp_path, fill="allowed")
    settings = made.settings.model_dump(mode="json", include={"ledger", "paths", "stores", "benchmarks"})
    for block in (*settings["stores"].values(), *settings["benchmarks"]["targets"].values()):
        del block["name"]
    settings["paths"].pop("root")
    (tmp_path / "site.yaml").write_text(json.dumps(settings))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    monkeypatch.setitem(RUNNERS, RunnerKind.FIO, MeasuringRunner())
    monkeypatch.delitem(plan.PROGRAMS, RunnerKind.FIO)
    return made


@pytest.fixture
def run(measured: Site) -> Callable[..., dict[str, str]]:
    """Runs the DAG; the state of the run is under ``run``."""
    bag = read_dags("storage_benchmark")
    record(bag)
    dag = bag.dags["storage_benchmark"]
    numbers = iter(range(10))

    def start(**conf: object) -> dict[str, str]:
        when = datetime.now(UTC) - timedelta(minutes=next(numbers))
        with as_recorded():
            done = dag.test(logical_date=when, run_conf={**WISH, "budget_gb": None, **conf})
        return {"run": str(done.state), **{ti.task_id: str(ti.state) for ti in done.get_task_instances()}}

    return start


def planned(measured: Site, **wish: object) -> str:
    campaign: str = PlanBenchmarkOperator(task_id="plan").execute(task_context(**{**WISH, **wish}))
    return campaign


def left_on_target(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "target").iterdir())


def test_a_run_measures_judges_and_removes_its_data(
    measured: Site, run: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run()
    assert done == dict.fromkeys(
        ("run", "plan", "approve", "healthy", "measure", "recovered", "judge", "remove_data"), "success"
    )
    (first,) = judged_campaigns(measured.ledger)
    assert left_on_target(tmp_path) == []
    judging = JudgeBenchmarkOperator(task_id="judge", campaign=first.id)
    links = [one.get_link(judging, ti_key=None).partition("/nightshift/")[2] for one in judging.operator_extra_links]
    assert links == [f"benchmarks/{first.id}/report", f"benchmarks/{first.id}/data-docs"]
    accept_baseline(measured.ledger, first.id, by="shift", now=datetime.now(UTC))
    monkeypatch.setitem(RUNNERS, RunnerKind.FIO, MeasuringRunner(lambda _step, _turn: 80.0 * MIB))
    slower = run()
    assert (slower["run"], slower["judge"], slower["remove_data"]) == ("failed", "failed", "success")
    assert left_on_target(tmp_path) == []


def test_reading_at_a_distance_has_a_dag_of_its_own_with_its_targets_and_presets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = {"kind": "endpoint", "urls": {"nginx": "https://h.example.org/f"}, "size": 1000, "sha256": "0" * 64}
    settings = {"ledger": f"sqlite:///{tmp_path}/l.db", "benchmarks": {"targets": {"far": endpoint}}}
    (tmp_path / "site.yaml").write_text(json.dumps(settings))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    (dag,) = read_dags("storage_benchmark").dags.values()
    forms = {name: dag.params.get_param(name).schema["enum"] for name in ("target", "preset")}
    assert dag.dag_id == "federation_benchmark"
    assert forms == {"target": ["far"], "preset": ["cms-pairs", "cms-strategies", "cms-transfer"]}


def test_what_cannot_be_planned_or_measured_fails_the_run_and_leaves_nothing(
    measured: Site, run: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = run(scale=1)
    assert (refusing["run"], refusing["plan"], refusing["measure"]) == ("failed", "failed", "upstream_failed")

    def broken(*_: object) -> None:
        raise PLAN_REFUSED("scratch", "broken")

    monkeypatch.setattr(MeasuringRunner, "run", broken)
    failed = run()
    assert (failed["run"], failed["measure"], failed["judge"]) == ("failed", "failed", "failed")
    assert failed["remove_data"] == "success"
    assert left_on_target(tmp_path) == []


def test_a_busy_target_is_waited_for_in_the_triggerer_and_not_for_ever(measured: Site) -> None:
    operator = StorageBenchmarkOperator(task_id="measure", campaign=planned(measured), deferrable=True)
    context = task_context()
    with target_lock(campaigns.campaign_root(measured), "scratch"):
        with pytest.raises(TaskDeferred) as waiting:
            operator.execute(context)
        event = {"found": True, "reason": "over", "since": waiting.value.trigger.since}
        with pytest.raises(TaskDeferred):
            operator.resume(context, event)
        operator.wait_limit_s = -1
        with refused(TARGET_BUSY):
            operator.resume(context, event)
    assert operator.resume(context, event) == 10


def test_presets_with_marks_run_by_hand_only_and_ask(measured: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = {**WISH, "preset": "hlt2-occupancy"}
    with refused(PLAN_REFUSED):
        PlanBenchmarkOperator(task_id="plan").execute(task_context(run_type="scheduled", **marked))
    assert ApproveBenchmarkOperator(task_id="approve", campaign=planned(measured)).execute(task_context()) is None


def test_a_campaign_that_is_not_approved_is_skipped(measured: Site) -> None:
    operator = ApproveBenchmarkOperator(task_id="approve", campaign=planned(measured))
    left: dict[tuple[str, str], object] = {}
    answers = [
        {"chosen_options": [REJECT], "params_input": {}, "responded_by_user": None},
        {"error": "none", "error_type": "timeout"},
    ]
    for answer in answers:
        with pytest.raises(AirflowSkipException):
            operator.execute_complete(task_context(xcoms=left), answer)
    assert left["publish", REFUSED]
    operator.execute_complete(task_context(), {"chosen_options": [APPROVE], "params_input": {}})
    with pytest.raises(AirflowSkipException):
        JudgeBenchmarkOperator(task_id="judge", campaign=operator.campaign).execute(
            task_context(xcoms={(APPROVE_TASK, REFUSED): "the answer is no"})
        )


def test_missing_parts_fail_the_judgement_and_strange_files_the_removal(measured: Site, tmp_path: Path) -> None:
    campaign = planned(measured)
    with refused(CAMPAIGN_FAILED, subject=campaign):
        JudgeBenchmarkOperator(task_id="judge", campaign=campaign).execute(task_context())
    StorageBenchmarkOperator(task_id="measure", campaign=campaign).execute(task_context())
    (area,) = left_on_target(tmp_path)
    (area / "of-a-person").touch()
    with refused(AREA_FOREIGN, subject=campaign):
        RemoveBenchmarkDataOperator(task_id="remove", campaign=campaign).execute(task_context())
    assert (area / "of-a-person").exists()


def test_data_that_were_left_for_a_day_are_removed_before_the_next_campaign(
    measured: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = planned(measured)
    StorageBenchmarkOperator(task_id="measure", campaign=campaign).execute(task_context())
    planned(measured)
    assert len(left_on_target(tmp_path)) == 1
    monkeypatch.setattr(campaigns, "FORGOTTEN", timedelta())
    planned(measured)
    assert left_on_target(tmp_path) == []
