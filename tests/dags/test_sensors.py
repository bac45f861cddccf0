"""Our sensors in a DAG of somebody else: both find their way to the triggerer and back."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from sensors.base import NightshiftSensor
from sensors.cvmfs import LeaseFreeSensor, PlaceSensor
from sensors.objects import ObjectSensor
from tests.dags.conftest import FQRN, MiniSite, as_recorded, record

pytestmark = pytest.mark.server("weed")
KEY, PATH = "sensed/{{ params.name }}", "/sensed/{{ params.name }}"


def waiting(dag_id: str, *, timeout_s: float) -> DAG:
    with DAG(dag_id, params={"name": "it"}, schedule=None) as dag:
        ObjectSensor(task_id="object", store="builds", key=KEY, timeout=timeout_s, poke_interval=0.1)
        LeaseFreeSensor(task_id="lease", fqrn=FQRN, path=PATH, timeout=timeout_s, poke_interval=0.1)
    return dag


def states(dag: DAG) -> dict[str, str]:
    """Run a DAG that is in no file."""
    bag = DagBag(str(Path(__file__).parent / "no-such-folder"))
    bag.bag_dag(dag)
    record(bag)
    with as_recorded():
        run = dag.test(run_after=datetime.now(UTC))
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def test_what_comes_later_is_waited_for(site: MiniSite, monkeypatch: pytest.MonkeyPatch) -> None:
    deferred: dict[str, threading.Event] = {"object": threading.Event(), "lease": threading.Event()}
    defer = NightshiftSensor.defer

    def seen(self: NightshiftSensor, **kwargs: Any) -> NoReturn:
        deferred[self.task_id].set()
        defer(self, **kwargs)

    monkeypatch.setattr(NightshiftSensor, "defer", seen)
    with site.client() as client:
        lease = client.acquire(FQRN, "/sensed/it", hostname="somebody else")

        def put() -> None:
            deferred["object"].wait(60)
            site.opened.store("builds").put("sensed/it", b"x")

        def drop() -> None:
            deferred["lease"].wait(60)
            client.drop(lease)

        threads = [threading.Thread(target=put), threading.Thread(target=drop)]  # whichever sensor comes first
        for thread in threads:
            thread.start()
        try:
            found = states(waiting("waits_for_both", timeout_s=60.0))
        finally:
            for event in deferred.values():
                event.set()
            for thread in threads:
                thread.join()
    assert found == {"object": "success", "lease": "success"}
    assert site.leases() == []


def test_what_does_not_come_fails_in_time(site: MiniSite) -> None:
    site.opened.store("builds").delete(["sensed/it"])
    with site.client() as client, client.lease(FQRN, "/sensed", hostname="somebody else"):
        found = states(waiting("waits_in_vain", timeout_s=0.5))
    assert found == {"object": "failed", "lease": "failed"}


def test_a_builder_waits_until_its_place_is_reserved_and_knows_at_once_that_it_is_taken(
    site: MiniSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, now = "/places/new", datetime.now(UTC)
    publisher = site.opened.publisher(FQRN)

    def builder(dag_id: str, path: str, **wanted: Any) -> DAG:
        with DAG(dag_id, schedule=None) as dag:
            PlaceSensor(task_id="place", fqrn=FQRN, path=path, timeout=30.0, poke_interval=0.1, **wanted)
        return dag

    assert states(builder("content_with_nothing", place, until="free")) == {"place": "success"}
    deferred, defer = threading.Event(), NightshiftSensor.defer

    def seen(self: NightshiftSensor, **kwargs: Any) -> NoReturn:
        deferred.set()
        defer(self, **kwargs)

    def reserve() -> None:
        deferred.wait(60)
        publisher.reserve([place], nested=[], holder="night/run/reserve try 1", now=now)

    monkeypatch.setattr(NightshiftSensor, "defer", seen)
    night = threading.Thread(target=reserve)
    night.start()
    assert states(builder("waits_for_its_place", place)) == {"place": "success"}
    night.join()
    assert states(builder("finds_a_directory_in_the_way", "/places")) == {"place": "failed"}
    assert site.leases() == []
