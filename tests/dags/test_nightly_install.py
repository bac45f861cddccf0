"""Whole nights through `dag.test()`, on the S3 server and the gateway service."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from sensors.build import BuildSensor
from tests.dags.conftest import FQRN, MiniSite
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")


def _build(date: str) -> Build:
    build = Build(date)
    for project in ("Gaudi", "LHCb"):
        common = b"the same in all" * 500
        build.add(project, "x86_64", tree({"lib/common.so": common, f"lib/{project}.so": project.encode() * 1000}))
    return build


def test_a_night_publishes_every_artifact_and_a_second_run_finds_all_of_it_unchanged(site: MiniSite) -> None:
    build = _build("2026-11-08")
    site.drop(build)
    # its build date is its logical date in the zone of the slot: half past eleven of UTC is the next day in Zurich
    first = site.run("nightly_install_main", logical_date=datetime(2026, 11, 7, 23, 30, tzinfo=UTC))
    assert first.state == "success", first
    assert {one.build_id for one in first.publications.values()} == {"b20261108"}
    assert first.states() == {"Gaudi/x86_64": "published", "LHCb/x86_64": "published"}
    repository = site.opened.repository(FQRN)
    for project in ("Gaudi", "LHCb"):
        path = build.destination(project, "x86_64")
        assert repository.revision.read(f"{path}/lib/{project}.so") == project.encode() * 1000
    assert all(one.verified_at for one in first.publications.values())
    assert site.leases() == []
    before = site.revision()
    second = site.run("nightly_install", slot="main", build_date="2026-11-08")
    assert second.state == "success", second
    assert set(second.states().values()) == {"unchanged"}
    assert site.revision() == before
    assert {one.files for one in second.publications.values()} == {one.files for one in first.publications.values()}


def test_a_dry_run_says_what_would_be_published_and_writes_nothing(site: MiniSite) -> None:
    site.drop(_build("2026-11-04"))
    before, puts = site.revision(), {meta.key for meta in site.opened.repository_store(FQRN).list()}
    run = site.run("nightly_install", slot="main", build_date="2026-11-04", dry_run=True)
    assert run.state == "success", run
    assert run.tasks["gate"] == "skipped"
    assert {one.reason.partition(",")[0] for one in run.publications.values()} == {"dry run: would publish 3 files"}
    assert site.revision() == before
    assert {meta.key for meta in site.opened.repository_store(FQRN).list()} == puts
    assert site.leases() == []


def test_a_run_that_may_wait_takes_the_build_when_it_comes(site: MiniSite, monkeypatch: pytest.MonkeyPatch) -> None:
    deferred, defer = threading.Event(), BuildSensor.defer

    def seen(self: BuildSensor, **kwargs: object) -> None:
        deferred.set()
        defer(self, **kwargs)

    monkeypatch.setattr(BuildSensor, "defer", seen)
    builder = threading.Thread(target=lambda: deferred.wait(60) and site.drop(_build("2026-11-06")))
    builder.start()
    run = site.run("nightly_install_main", build_date="2026-11-06", wait_minutes=5)
    builder.join()
    assert run.state == "success", run
    assert len(run.publications) == 2
