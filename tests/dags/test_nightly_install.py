"""Whole nights through `dag.test()`, on the S3 server and the gateway service."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from tests.dags.conftest import FQRN, MiniSite
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")


def _build(date: str, **files: bytes) -> Build:
    build = Build(date)
    for project in ("Gaudi", "LHCb"):
        for platform in ("x86_64-opt", "x86_64-dbg"):
            content = {
                "lib/common.so": b"the same in all" * 500,
                f"lib/{project}.so": platform.encode() * 1000,
                **files,
            }
            build.add(project, platform, tree(content))
    return build


def test_a_night_publishes_every_artifact_and_a_second_run_finds_all_of_it_unchanged(site: MiniSite) -> None:
    build = _build("2026-11-01")
    site.drop(build)
    first = site.run("nightly_install_main", build_date="2026-11-01")
    assert first.state == "success", first
    assert set(first.states().values()) == {"published"}
    repository = site.connections.repository(FQRN)
    for project in ("Gaudi", "LHCb"):
        path = build.destination(project, "x86_64-opt")
        assert repository.read(f"{path}/lib/{project}.so") == b"x86_64-opt" * 1000
    assert all(one.verified_at for one in first.publications.values())
    assert site.leases() == []
    before = site.revision()
    second = site.run("nightly_install", slot="main", build_date="2026-11-01")
    assert second.state == "success", second
    assert set(second.states().values()) == {"unchanged"}
    assert site.revision() == before
    assert {one.files for one in second.publications.values()} == {one.files for one in first.publications.values()}


def test_the_next_night_uploads_only_what_changed(site: MiniSite) -> None:
    site.drop(_build("2026-11-02"))
    assert site.run("nightly_install_main", build_date="2026-11-02").state == "success"
    site.drop(_build("2026-11-03", new=b"a file of the third"))
    run = site.run("nightly_install_main", build_date="2026-11-03")
    assert run.state == "success", run
    assert sum(one.objects_reused or 0 for one in run.publications.values()) >= 8


def test_a_dry_run_says_what_would_be_published_and_writes_nothing(site: MiniSite) -> None:
    site.drop(_build("2026-11-04"))
    before, puts = site.revision(), {meta.key for meta in site.connections.repository_store(FQRN).list()}
    run = site.run("nightly_install", slot="main", build_date="2026-11-04", dry_run=True)
    assert run.state == "success", run
    assert run.tasks["gate"] == "skipped"
    assert {one.reason.partition(",")[0] for one in run.publications.values()} == {"dry run: would publish 3 files"}
    assert all("known" in one.reason for one in run.publications.values())
    assert site.revision() == before
    assert {meta.key for meta in site.connections.repository_store(FQRN).list()} == puts
    assert site.leases() == []


def test_only_the_chosen_projects_and_platforms_are_installed(site: MiniSite) -> None:
    site.drop(_build("2026-11-05"))
    run = site.run(
        "nightly_install", slot="main", build_date="2026-11-05", projects=["Gaudi"], platforms=["x86_64-opt"]
    )
    assert run.state == "success", run
    assert run.states() == {"Gaudi/x86_64-opt": "published"}


def test_a_run_that_may_wait_takes_the_build_when_it_comes(site: MiniSite) -> None:
    timer = threading.Timer(3.0, site.drop, args=(_build("2026-11-06"),))
    timer.start()
    run = site.run("nightly_install_main", build_date="2026-11-06", wait_minutes=5)
    timer.join()
    assert run.state == "success", run
    assert len(run.publications) == 4


def test_the_build_date_of_a_run_without_parameter_is_its_logical_date_in_the_zone_of_the_slot(site: MiniSite) -> None:
    site.drop(_build("2026-11-08"))
    # half past eleven in the evening of UTC is the next day in Zurich
    run = site.run("nightly_install_main", logical_date=datetime(2026, 11, 7, 23, 30, tzinfo=UTC))
    assert run.state == "success", run
    assert {one.build_id for one in run.publications.values()} == {"b20261108"}
