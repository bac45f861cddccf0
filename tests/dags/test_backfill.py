"""Runs of a backfill through `dag.test()`: a date installs its own build, and doing it again changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.dags.conftest import FQRN, MiniSite, Run
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")

DAG = "nightly_install_main"


def at(date: str) -> datetime:
    """When the slot's schedule is on that date: 02:00 in Zurich, in winter."""
    return datetime.fromisoformat(f"{date}T01:00:00").replace(tzinfo=UTC)


def test_a_date_publishes_its_build_and_the_same_date_again_is_unchanged_without_a_revision(site: MiniSite) -> None:
    date = "2026-02-02"
    build = Build(date).add("Gaudi", "x86_64", tree({"lib/own.so": b"of that night"}))
    site.drop(build)
    run = site.backfill(DAG, at(date))
    assert (run.state, run.name) == ("success", f"{DAG}/backfill__{date}T01:00:00+00:00")
    (publication,) = run.publications.values()
    assert (publication.state.value, publication.build_id) == ("published", build.build_id)
    assert site.opened.repository(FQRN).revision.read(f"{publication.destination}/lib/own.so") == b"of that night"
    before = site.revision()
    again = site.clear(run, *site.dags[DAG].task_ids)  # as `--reprocess-behavior completed` does
    assert again.state == "success", again.tasks
    (publication,) = again.publications.values()
    assert (publication.state.value, publication.plan_try) == ("unchanged", 2)
    assert site.revision() == before
    assert site.leases() == []


def test_a_date_without_a_build_fails_in_its_first_try(site: MiniSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.dags[DAG].get_task("find_build"), "retries", 2)
    run = site.backfill(DAG, at("2026-02-04"))
    assert (run.state, run.tasks["find_build"], run.publications) == ("failed", "failed", {})
    assert try_of(run, "find_build") == 1


def try_of(run: Run, task_id: str) -> int:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    where = (TaskInstance.run_id == run.name.partition("/")[2], TaskInstance.task_id == task_id)
    with create_session() as session:
        return int(session.scalars(select(TaskInstance.try_number).where(*where)).one())
