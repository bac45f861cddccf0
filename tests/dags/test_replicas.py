"""A DAG that waits for replicas, and lets one take a snapshot: to the triggerer and back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from include.replicas.look import looks_of
from include.replicas.states import ReplicaState
from sensors.base import NightshiftSensor
from sensors.cvmfs import ReplicaInSyncSensor
from tests.dags.conftest import as_recorded, meanwhile, record
from tests.fakes.site import FQRN
from tests.integration.replicas.conftest import Copies, copies

__all__ = ["copies"]


@pytest.fixture(autouse=True)
def _configured(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(copies.folder / "site.yaml"))


def waiting(dag_id: str, *, timeout: float, **wanted: Any) -> DAG:
    with DAG(dag_id, schedule=None) as dag:
        ReplicaInSyncSensor(task_id="synced", repository=FQRN, timeout=timeout, poke_interval=0.1, **wanted)
    return dag


def state(dag: DAG) -> str:
    """Run a DAG that is in no file; the state of its one task."""
    bag = DagBag(str(Path(__file__).parent / "no-such-folder"))
    bag.bag_dag(dag)
    record(bag)
    with as_recorded():
        run = dag.test(run_after=datetime.now(UTC))
    (task,) = run.get_task_instances()
    return str(task.state)


def test_replicas_are_waited_for_until_they_have_what_stratum_0_has(copies: Copies) -> None:
    copies.publish("a")

    def snapshots() -> None:
        assert [one.state for one in looks_of(copies.site.ledger, FQRN)] == [ReplicaState.BEHIND] * 2
        for each in (copies.one, copies.two):
            each.take(copies.stratum0)

    with meanwhile(NightshiftSensor, snapshots):
        assert state(waiting("waits_for_replicas", timeout=600.0)) == "success"
    assert [one.state for one in looks_of(copies.site.ledger, FQRN)] == [ReplicaState.IN_SYNC] * 2


def test_an_older_revision_or_another_replica_does(copies: Copies) -> None:
    copies.publish("a")
    copies.two.take(copies.stratum0)
    assert state(waiting("waits_for_two", timeout=600.0, replicas=["s2"])) == "success"
    assert state(waiting("waits_for_one_of_before", timeout=600.0, revision="0")) == "success"
    assert state(waiting("waits_in_vain_for_one", timeout=0.5)) == "failed"
    assert state(waiting("waits_for_nobody", timeout=0.5, replicas=["s3"])) == "failed"
