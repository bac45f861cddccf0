"""The log of every task can be read while it works, though no component serves logs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.objects import compress
from include.gateway.client.client import GatewayClient
from tests.e2e.deployment import FQRN, Deployment
from tests.fakes.builds import tree

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

DAG, RUN, PLACE = "publication", "logs", "/logs/1"
CONTENT = b"read while it is uploaded " * 400
SOON_S = 60.0


@pytest.fixture(scope="module")
def logs(deployment: Deployment) -> Iterator[dict[str, str]]:
    """The logs of one publication: of a task that uploads, of one that waits for its path, and of both at the end."""
    try:
        yield watch(deployment)
    finally:
        deployment.store_proxy.clear()
        deployment.gateway_proxy.clear()


def watch(deployment: Deployment) -> dict[str, str]:
    """Holds each task where it is while its log is read."""
    store, gateway, secrets = deployment.store_proxy, deployment.gateway_proxy, deployment.lab.secrets
    deployment.site.store("builds").put("logs.tar.gz", tree({"file": CONTENT}))
    upload = store.hold(method="PUT", path=f"{FQRN}/{hash_bytes(compress(CONTENT)).key}")
    deployment.trigger(DAG, RUN, repository=FQRN, path=PLACE, source="s3://builds/logs.tar.gz")
    upload.wait(SOON_S)
    seen = {"running": log(deployment, "prepare", "running")}

    with GatewayClient(deployment.lab.gateway_url, secrets.gateway_key_id, secrets.gateway_key_secret) as client:
        with client.lease(FQRN, PLACE, hostname="somebody else") as lease:

            def deferred() -> bool:
                client.renew(lease)
                return state(deployment, "publish") == "deferred"

            upload.release()
            deployment.wait_until(deferred, "publish is deferred", SOON_S)
            # the next look of the triggerer fails, and it says so; the one after that is kept waiting
            gateway.cut(method="GET", path="/leases")
            looking = gateway.hold(method="GET", path="/leases")
            looking.wait(SOON_S)
        seen["deferred"] = log(deployment, "publish", "deferred")
    looking.release()
    assert deployment.follow(DAG, RUN).state == "success"
    return seen | {f"{task} at the end": log(deployment, task, "success") for task in ("prepare", "publish")}


def log(deployment: Deployment, task: str, expected: str) -> str:
    """What a task of the mapped group has logged, as the UI gets it; it is in that state before and after."""
    assert state(deployment, task) == expected
    place = f"/dags/{DAG}/dagRuns/{RUN}/taskInstances/tree.{task}/logs/1"
    found = deployment.rest("GET", place, params={"map_index": 0}, headers={"Accept": "application/json"})
    assert state(deployment, task) == expected
    return "\n".join(str(line) for line in found["content"])


def state(deployment: Deployment, task: str) -> str:
    return next(one["state"] for one in deployment.tasks(DAG, RUN) if one["task_id"] == f"tree.{task}")


def test_the_log_of_a_running_task_can_be_read(logs: dict[str, str]) -> None:
    assert "Filling up the DagBag" in logs["running"]
    assert "prepared" not in logs["running"]


def test_the_log_of_a_deferred_task_says_what_it_waits_for_and_what_its_trigger_met(logs: dict[str, str]) -> None:
    assert "path busy by 'somebody else'" in logs["deferred"]
    assert "waiting in the triggerer until" in logs["deferred"]
    assert ".trigger." in logs["deferred"]
    assert "'logger': 'triggers.poll" in logs["deferred"]


@pytest.mark.parametrize("task", ["running", "deferred"])
def test_no_log_server_is_asked_that_does_not_run(logs: dict[str, str], task: str) -> None:
    assert "Could not read served logs" not in logs[task]


def test_the_log_of_a_finished_task_is_whole(logs: dict[str, str]) -> None:
    assert "prepared" in logs["prepare at the end"]
    assert "back from waiting" in logs["publish at the end"]
    assert "lease held" in logs["publish at the end"]
