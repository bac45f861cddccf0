"""What every DAG of the house keeps to."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TriggerRule
from airflow.serialization.serialized_objects import DagSerialization

from docs.generate_dags import PAGE, example_dags, render
from hooks.task import RetryByKind
from include.dag_runs import RunRefused
from include.settings.load import load
from include.settings.scheduling import consumer_timeout, pools
from operators.base import alert_failed_run, note_failure
from operators.night import CheckCompletenessOperator
from tests.fakes import airflowhome
from tests.fakes.refused import refused

DAGS, CONFIG = airflowhome.ROOT / "dags", airflowhome.ROOT / "config"
PUBLISHING = ("nightly_install", "nightly_install_main", "publication")
IDS = (
    *PUBLISHING,
    "index_events_main",
    "intervene",
    "leases",
    "night_watch",
    "nightly_gc",
    "preflight",
    "repository_care",
    "rollback",
    "stage_out_analytics",
    "stage_out_census",
    "stage_out_finish",
    "stage_out_monitor",
    "stage_out_read_back",
    "stage_out_submit",
    "storage_benchmark",
    "undo_build",
)


def leaves(dag: DAG) -> list[Any]:
    return [task for task in dag.tasks if not task.downstream_list]


@pytest.fixture(scope="module")
def bags() -> dict[Path, DagBag]:
    """All DAGs of each configuration in config/, read once. A fork has its own beside `site.yaml`."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for file in sorted(CONFIG.glob("*.yaml")):
            patch.setenv("NIGHTSHIFT_CONFIG", str(file))
            found[file] = DagBag(str(DAGS), bundle_path=None)
    return found


@pytest.fixture(scope="module")
def bag(bags: dict[Path, DagBag]) -> DagBag:
    return bags[CONFIG / "site.yaml"]


@pytest.fixture(params=IDS)
def dag(request: pytest.FixtureRequest, bag: DagBag) -> DAG:
    return bag.dags[request.param]


def test_every_dag_file_is_imported(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert set(IDS) <= set(bag.dags), "a fork may have more"
    assert {name for name in IDS if "publish" in str(bag.dags[name].task_ids)} == set(PUBLISHING)


def test_the_slots_of_each_configuration_have_their_dags(bags: dict[Path, DagBag]) -> None:
    for file, found in bags.items():
        assert found.import_errors == {}, file
        slots = {f"{kind}_{name}" for name in load(file).slots for kind in ("nightly_install", "index_events")}
        assert slots <= set(found.dags), file


def test_a_dag_that_only_people_pages_and_tasks_start_is_not_paused_when_airflow_first_reads_it(
    bags: dict[Path, DagBag],
) -> None:
    """A run of a paused DAG stays queued; a schedule begins only once an operator unpauses it."""
    for file, found in bags.items():
        by_hand = {dag_id: dag.schedule is None for dag_id, dag in found.dags.items()}
        assert all(by_hand[name] for name in ("intervene", "nightly_install", "publication", "rollback", "undo_build"))
        paused = {dag_id: dag.is_paused_upon_creation for dag_id, dag in found.dags.items()}
        assert paused == {dag_id: False if alone else None for dag_id, alone in by_hand.items()}, file


def test_the_first_tasks_of_every_dag_refuse_a_key_that_the_dag_has_no_parameter_for(dag: DAG) -> None:
    first = [task for task in dag.tasks if not task.upstream_list]
    assert first
    names = list(dag.params)
    for task in first:
        if task.is_mapped:
            task = task.unmap({name: values[0] for name, values in dict[str, Any](task.expand_input.value).items()})  # noqa: PLW2901
        ti = SimpleNamespace(xcom_push=lambda **_: None)
        context = {"dag": dag, "ti": ti, "run_id": "manual__1"}
        taken: dict[str, object] = dict.fromkeys([*names, "pass", "openlineage", "airflow/task_span_detail_level"])
        task.pre_execute({**context, "dag_run": SimpleNamespace(conf=taken)})
        for key in ["dryrun", *(f"{name}s" for name in names if f"{name}s" not in names)]:
            with refused(RunRefused, unknown=(key,)) as caught:
                task.pre_execute({**context, "dag_run": SimpleNamespace(conf={key: True})})
            assert key != "dryrun" or "dry_run" not in names or "did you mean 'dry_run'?" in str(caught.value)


def test_a_backfill_collects_nothing_as_all_of_it_is_after_the_begin(bag: DagBag) -> None:
    dag = bag.dags["nightly_gc"]
    begin = dag.get_task("begin")
    assert set(dag.task_ids) == {"begin", *(task.task_id for task in begin.get_flat_relatives())}


def test_a_dag_can_be_serialised_and_read_back(dag: DAG) -> None:
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(again.task_ids) == set(dag.task_ids)


def test_every_task_has_retries_pool_owner_time_out_documentation_and_retries_by_kind(dag: DAG) -> None:
    known = {pool.name for pool in pools(load(CONFIG / "site.yaml"))}
    for task in dag.tasks:
        assert task.retries is not None, task.task_id
        assert task.retries > 0, task.task_id
        assert task.pool in known, f"{task.task_id} uses the pool {task.pool}, which nobody makes"
        assert task.owner == "nightshift", task.task_id
        assert isinstance(task.execution_timeout, timedelta), task.task_id
        assert task.doc_md, task.task_id
        assert isinstance(task.retry_policy, RetryByKind), task.task_id


def test_no_task_may_take_longer_than_the_broker_waits_for_it(dag: DAG) -> None:
    limit = consumer_timeout(load(CONFIG / "site.yaml"))
    for task in dag.tasks:
        assert task.execution_timeout < limit, task.task_id


def test_every_failed_run_sends_an_alert_with_what_its_tasks_noted(dag: DAG) -> None:
    assert dag.on_failure_callback is alert_failed_run
    for task in dag.tasks:
        assert list(task.on_failure_callback or ()) == [note_failure], task.task_id


def test_every_dag_and_every_task_is_shown_by_a_name_in_words(dag: DAG) -> None:
    for key, name in [
        (dag.dag_id, dag.dag_display_name),
        *((task.task_id, task.task_display_name) for task in dag.tasks),
    ]:
        assert name != key, key
        assert name[0].isupper(), key
        assert "_" not in name, key
        assert len(name) <= 40, key


def test_every_dag_is_described_tagged_and_bounded(dag: DAG) -> None:
    assert dag.doc_md
    assert dag.description
    assert dag.tags
    assert dag.dagrun_timeout
    assert dag.max_active_runs <= 16
    assert dag.start_date is not None
    assert dag.start_date.tzinfo is not None
    for name in dag.params:
        param = dag.params.get_param(name)
        assert param.description, f"the parameter {name} is not described"
        assert param.schema["title"] not in {"", name}, name


@pytest.mark.parametrize("dag_id", PUBLISHING)
def test_all_ends_in_the_gate_which_runs_whatever_came_before_and_nothing_can_hide_its_failure(
    bag: DagBag, dag_id: str
) -> None:
    dag = bag.dags[dag_id]
    gate = dag.get_task("gate")
    assert isinstance(gate, CheckCompletenessOperator)
    assert gate.trigger_rule == TriggerRule.ALL_DONE
    after = [dag.get_task(name) for name in gate.get_flat_relative_ids(upstream=False)]
    before = gate.get_flat_relative_ids(upstream=True)
    # a pass of a night that goes on has no gate; what starts the next one fails the run by itself
    assert before | {"gate", "next_pass"} | {task.task_id for task in after} >= set(dag.task_ids)
    # what comes after it happens only if it passed, and one thing after the other
    assert [task.task_id for task in after if task.trigger_rule != TriggerRule.ALL_SUCCESS] == []
    assert len([task for task in leaves(dag) if task.task_id != "next_pass"]) == 1
    assert not [task.task_id for task in dag.tasks if task.is_teardown]


def test_a_night_tells_others_last_after_its_links(bag: DagBag) -> None:
    dag = bag.dags["nightly_install"]
    (last,) = [task for task in leaves(dag) if task.task_id != "next_pass"]
    assert [task.task_id for task in dag.tasks if task.outlets] == [last.task_id] == ["announce"]
    assert "links" in last.upstream_task_ids


PARSE = """
import os, runpy, sys, time
import airflow.sdk, airflow.triggers.base

HEAVY = {"boto3", "obstore", "sqlalchemy.orm.decl_api", "pandas", "numpy", "great_expectations",
         "uvicorn", "include.ledger.engine"}
imported = set(sys.modules)
for file in sys.argv[1:]:
    if (child := os.fork()) == 0:  # each file in a process of its own; Airflow is imported only once
        began = time.process_time()
        runpy.run_path(file)
        print(file, time.process_time() - began, *(HEAVY & (set(sys.modules) - imported)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, file
"""


def test_a_dag_file_is_parsed_in_less_than_a_second_and_imports_nothing_heavy() -> None:
    files = [str(file) for file in sorted(DAGS.glob("*.py"))]
    for _ in range(3):  # a busy machine adds to processor time: the least of three counts
        measured = _parsed(files)
        assert [file for file, *_ in measured] == files
        assert [(file, heavy) for file, _, *heavy in measured if heavy] == []
        files = [file for file, spent, *_ in measured if float(spent) >= 1.0]
        if not files:
            break
    assert files == [], f"files and seconds of processor time: {measured}"


def _parsed(files: list[str]) -> list[list[str]]:
    """Each file, the processor time of its parse in s, and the heavy modules that it imports."""
    done = subprocess.run(
        [sys.executable, "-c", PARSE, *files], capture_output=True, text=True, cwd=airflowhome.ROOT, check=True
    )
    return [line.split() for line in done.stdout.splitlines()]


def test_a_configuration_with_faults_is_named_in_the_import_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = tmp_path / "site.yaml"
    faulty.write_text("slots:\n  main:\n    repository: nights.example.org\n    store: builds\n    schedule: often\n")
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(faulty))
    errors = DagBag(str(DAGS), bundle_path=None).import_errors
    assert len(errors) == len(list(DAGS.glob("*.py")))
    for error in errors.values():
        assert f"{faulty}:5: slots.main.schedule: not a cron expression" in error


def test_of_several_repositories_or_slots_none_is_chosen_by_the_alphabet_and_no_form_has_dummies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (airflowhome.ROOT / "tests" / "dags" / "two_repositories.yaml").read_text()
    assert unset(text, tmp_path, monkeypatch) == {
        "intervene": ["action"],
        "publication": ["repository", "path", "source"],
        "rollback": ["repository", "reason"],
        "undo_build": ["slot", "build_id", "reason"],
        "nightly_install": ["slot"],
    }
    # the only one is the default
    alone = text.replace("  b.example.org", "  # b.example.org").replace("  second", "  # second")
    assert unset(alone, tmp_path, monkeypatch) == {
        "intervene": ["action"],
        "publication": ["path", "source"],
        "rollback": ["reason"],
        "undo_build": ["build_id", "reason"],
    }


def unset(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The parameters without a value, of each DAG that has some; none of them has a schedule."""
    (folder / "site.yaml").write_text(text)
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(folder / "site.yaml"))
    bag = DagBag(str(DAGS), bundle_path=None)
    assert bag.import_errors == {}
    found = {}
    for dag in bag.dags.values():
        params = {name: dag.params.get_param(name) for name in dag.params}
        empty = [name for name, one in params.items() if not one.has_value and one.value is not None]
        if empty:
            assert not dag.timetable.can_be_scheduled, dag.dag_id
            found[dag.dag_id] = empty
            again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
            assert set(again.params) == set(dag.params)
    return found


def test_the_page_about_the_dags_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(example_dags()), "run `make docs`"
