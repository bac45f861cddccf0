"""A night that stays open, pass by pass: what comes late is published once, and links and events wait for the end."""

from __future__ import annotations

from typing import Any

import pytest

from include.nightlies.rules.passes import Pass
from tests.dags.conftest import MiniSite, Run
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")
DAG = "nightly_install_main"
NOBODY_WAITS_MIN = 60


def build(date: str, *projects: str, complete: bool = False) -> Build:
    made = Build(date, index={"complete": complete})
    for project in projects:
        made.add(project, "x86_64", tree({f"lib/{project}.so": project.encode() * 100}))
    return made


def started(site: MiniSite, run: Run) -> dict[str, Any] | None:
    """The conf of the run that a run started; None if it started none."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    dag_id, _, run_id = run.name.partition("/")
    with create_session() as session:
        for one in session.query(DagRun).filter(DagRun.dag_id == dag_id):
            conf = one.conf or {}
            if one.run_id.startswith("night__") and conf.get("pass", {}).get("first") == run_id:
                return {**conf, "run_id": one.run_id, "note": one.note}
    return None


def test_what_comes_late_goes_in_pass_by_pass_and_the_last_one_takes_what_failed_too(site: MiniSite) -> None:
    late = build("2026-09-01", "Gaudi", "Late").lose("Late", "x86_64")
    site.drop(late)
    first = site.run(DAG, build_date="2026-09-01", wait_minutes=NOBODY_WAITS_MIN)
    assert first.states() == {"Gaudi/x86_64": "published", "Late/x86_64": "failed"}
    # red at once, and the night goes on
    assert (first.state, first.tasks["gate"], first.tasks["next_pass"]) == ("failed", "failed", "success")
    conf = started(site, first)
    assert conf is not None
    turn = Pass.from_json(conf["pass"])
    assert turn.number == 2
    assert conf["build_date"] == "2026-09-01"
    assert "Pass 2 of the night of 2026-09-01, slot main" in conf["note"]

    site.drop(build("2026-09-01", "Gaudi", "Late", "Boole").lose("Late", "x86_64"))
    second = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert second.state == "success", second
    assert second.states() == {"Boole/x86_64": "published"}
    assert [second.tasks[name] for name in ("gate", "links", "announce")] == ["skipped"] * 3
    assert second.tasks["next_pass"] == "success"

    site.drop(build("2026-09-01", "Gaudi", "Late", "Boole", "Rec").lose("Late", "x86_64"))
    again = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert again.states() == {"Rec/x86_64": "published"}
    assert again.tasks["next_pass"] == "skipped", "the run of pass 3 is there"

    before = site.revision()
    site.drop(build("2026-09-01", "Gaudi", "Late", "Boole", "Rec", complete=True))
    last = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert last.state == "success", last
    taken = dict.fromkeys(("Boole/x86_64", "Gaudi/x86_64", "Rec/x86_64"), "unchanged")
    assert last.states() == {**taken, "Late/x86_64": "published"}
    assert site.revision() == before + 2  # its place, and its tree
    assert last.tasks["gate"] == last.tasks["announce"] == "success"
    assert last.tasks["next_pass"] == "skipped"
    assert site.leases() == []
