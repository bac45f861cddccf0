"""Three publishing workers of one run on one repository, under the real scheduler: all commit at the same time."""

from __future__ import annotations

import pytest

from tests.e2e.deployment import FQRN, Deployment
from tests.fakes.builds import Build, tree

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

DAG, RUN, DATE = "nightly_install", "three_publishers", "2026-11-12"
COMMIT = "/leases/[^/]+$"
PROJECTS = ("One", "Two", "Three")
SOON_S = 90.0


def test_three_publish_tasks_of_a_night_overlap_and_nothing_is_lost(deployment: Deployment) -> None:
    build = Build(DATE, slot="faults")
    for project in PROJECTS:
        build.add(project, "x86_64", tree({"lib/own.so": project.encode() * 100, "lib/common.so": b"in all" * 100}))
    deployment.drop(build)
    before, gateway = deployment.revision(), deployment.gateway_proxy
    try:
        reserving = gateway.hold(method="POST", path=COMMIT)
        deployment.trigger(DAG, RUN, slot="faults", build_date=DATE)
        reserving.wait(SOON_S)
        commits = [gateway.hold(method="POST", path=COMMIT) for _ in PROJECTS]
        reserving.release()
        for commit in commits:  # none is let go before all have come
            commit.wait(SOON_S)
        held = deployment.leases()
        running = [
            one["rendered_map_index"]
            for one in deployment.tasks(DAG, RUN)
            if one["task_id"] == "artifact.publish" and one["state"] == "running"
        ]
    finally:
        gateway.clear()
    assert len(held) == len(PROJECTS)
    assert all(f"{DAG}/{RUN}/artifact.publish[" in one for one in held)
    assert sorted(running) == sorted(f"{project}/x86_64" for project in PROJECTS)

    assert deployment.follow(DAG, RUN).state == "success"
    publications = deployment.publications(DAG, RUN)
    assert {name: one.state.value for name, one in publications.items()} == {
        f"{project}/x86_64": "published" for project in PROJECTS
    }
    repository = deployment.site.repository(FQRN)
    assert before < repository.manifest.revision <= before + 1 + len(PROJECTS)
    for project in PROJECTS:
        assert repository.revision.read(f"{build.destination(project, 'x86_64')}/lib/own.so") == project.encode() * 100
    assert deployment.problems() == ()
    assert deployment.leases() == []
