"""A DAG that waits for replicas, and lets one take a snapshot: to the triggerer and back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from airflow.sdk import DAG

from include.replicas.look import looks_of
from include.replicas.states import ReplicaState
from sensors.base import NightshiftSensor
from sensors.replicas import ReplicaInSyncSensor
from tests.dags.test_sensors import states
from tests.fakes.site import FQRN
from tests.integration.replicas.conftest import Copies, copies

__all__ = ["copies"]


@pytest.fixture(autouse=True)
def _configured(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(copies.folder / "site.yaml"))
    return


def waiting(dag_id: str, *, timeout: float, **wanted: Any) -> DAG:
    with DAG(dag_id, schedule=None) as dag:
        ReplicaInSyncSensor(task_id="synced", repository=FQRN, timeout=timeout, poke_interval=0.1, **wanted)
    return dag


def test_replicas_are_waited_for_until_they_have_what_stratum_0_has(
    copies: Copies,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies.publish("a")
    deferred, defer = threading.Event(), NightshiftSensor.defer

    def seen(self: NightshiftSensor, **kwargs: Any) -> NoReturn:
        assert [one.state for one in looks_of(copies.site.ledger, FQRN)] == [ReplicaState.BEHIND] * 2
        deferred.set()
        defer(self, **kwargs)

    def snapshots() -> None:
        deferred.wait(600)
        for each in (copies.one, copies.two):
            each.take(copies.stratum0)

    monkeypatch.setattr(NightshiftSensor, "defer", seen)
    thread = threading.Thread(target=snapshots)
    thread.start()
    try:
        assert states(waiting("waits_for_replicas", timeout=600.0)) == {"synced": "success"}
    finally:
        deferred.set()
        thread.join()
    assert [one.state for one in looks_of(copies.site.ledger, FQRN)] == [ReplicaState.IN_SYNC] * 2


def test_an_older_revision_or_another_replica_does(copies: Copies) -> None:
    copies.publish("a")
    copies.two.take(copies.stratum0)
    assert states(waiting("waits_for_two", timeout=600.0, replicas=["s2"])) == {"synced": "success"}
    assert states(waiting("waits_for_one_of_before", timeout=600.0, revision="0")) == {"synced": "success"}
    assert states(waiting("waits_in_vain_for_one", timeout=0.5)) == {"synced": "failed"}
    assert states(waiting("waits_for_nobody", timeout=0.5, replicas=["s3"])) == {"synced": "failed"}
