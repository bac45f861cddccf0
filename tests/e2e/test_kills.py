"""kill -9 of a supervisor in the middle of a commit: the retry runs beside the old process, and the old commit is late.

Of all kills this one asks for most: nobody reports the death, the process of the task lives on, and two processes do
the same work at once. `make soak PART=airflow` has the others.
"""

from __future__ import annotations

import pytest

from tests.e2e.deployment import FQRN, HEARTBEAT_TIMEOUT_S, LEASE_S, Deployment
from tests.e2e.kills import COMMIT, DAG, RETRY_S, SOON_S, Stage, build_of_victims, own_file

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

RUN, DATE, ARTIFACT = "kill", "2026-11-13", "supervisor/publish"


def test_a_commit_whose_supervisor_was_killed_is_made_once_by_the_retry_beside_it(deployment: Deployment) -> None:
    build = build_of_victims(DATE, (ARTIFACT, 10))
    deployment.drop(build)
    before, gateway, stage = deployment.revision(), deployment.gateway_proxy, Stage(deployment, RUN)
    try:
        reserving = gateway.hold(method="POST", path=COMMIT)
        deployment.trigger(DAG, RUN, slot="faults", build_date=DATE)
        reserving.wait(SOON_S)
        commit, again = (gateway.hold(method="POST", path=COMMIT) for _ in range(2))
        reserving.release()
        first = stage.accident(commit, gateway)
        first.kill([])
        retry = stage.accident(again, gateway, RETRY_S)
        assert (first.try_number, retry.try_number) == (1, 2)
        assert first.process.alive(), "two processes do the same work now"
        # its lease has run out, and the retry holds another one
        commit.release()
        stage.answered(first)
        again.release()
    finally:
        gateway.clear()

    assert deployment.follow(DAG, RUN).state == "success"
    (publication,) = deployment.publications(DAG, RUN).values()
    assert (publication.state.value, publication.publish_try) == ("published", 2)
    assert publication.verified_at is not None
    repository = deployment.site.repository(FQRN)
    assert repository.manifest.revision == before + 2, "one for what was reserved, one for the artifact"
    path = build.destination(*ARTIFACT.split("/"))
    assert repository.revision.read(f"{path}/lib/own.so") == own_file(ARTIFACT)
    assert deployment.problems() == ()
    # the run went on for longer than a lease lives
    assert HEARTBEAT_TIMEOUT_S > LEASE_S
    assert deployment.leases() == []
    assert not first.process.alive()
