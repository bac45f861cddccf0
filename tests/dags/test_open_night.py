"""A night that stays open, pass by pass: what comes late is published once, and links and events wait for the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from include.nightlies.passes import Pass
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


def test_what_comes_late_goes_in_with_the_next_pass_and_the_last_one_looks_at_all(site: MiniSite) -> None:
    site.drop(build("2026-09-01", "Gaudi", "LHCb"))
    first = site.run(DAG, build_date="2026-09-01", wait_minutes=NOBODY_WAITS_MIN)
    assert first.state == "success", first
    assert first.states() == {"Gaudi/x86_64": "published", "LHCb/x86_64": "published"}
    assert {name: first.tasks[name] for name in ("gate", "links", "announce")} == dict.fromkeys(
        ("gate", "links", "announce"), "skipped"
    )
    conf = started(site, first)
    assert conf is not None
    turn = Pass.from_json(conf["pass"])
    assert turn.number == 2
    assert conf["build_date"] == "2026-09-01"
    assert "Pass 2 of the night of 2026-09-01, slot main" in conf["note"]
    site.drop(build("2026-09-01", "Gaudi", "LHCb", "Boole"))
    second = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert second.state == "success", second
    assert second.states() == {"Boole/x86_64": "published"}
    before = site.revision()
    site.drop(build("2026-09-01", "Gaudi", "LHCb", "Boole", complete=True))
    third = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert third.state == "success", third
    assert set(third.states().values()) == {"unchanged"}
    assert len(third.publications) == 3
    assert third.tasks["gate"] == third.tasks["announce"] == "success"
    assert third.tasks["next_pass"] == "skipped"
    assert site.revision() == before
    assert site.leases() == []


def test_what_failed_in_a_pass_is_tried_again_by_the_last_one_only(site: MiniSite) -> None:
    late = build("2026-09-02", "Gaudi", "Late").lose("Late", "x86_64")
    site.drop(late)
    first = site.run(DAG, build_date="2026-09-02", wait_minutes=NOBODY_WAITS_MIN)
    assert first.states() == {"Gaudi/x86_64": "published", "Late/x86_64": "failed"}
    # red at once, and the night goes on
    assert (first.state, first.tasks["gate"], first.tasks["next_pass"]) == ("failed", "failed", "success")
    conf = started(site, first)
    assert conf is not None
    late = build("2026-09-02", "Gaudi", "Late", "Boole").lose("Late", "x86_64")
    site.drop(late)
    name = {"pass": {**conf["pass"], "first": first.name.partition("/")[2]}}
    second = site.run(DAG, build_date="2026-09-02", **name)
    assert second.states() == {"Boole/x86_64": "published"}
    site.drop(build("2026-09-02", "Gaudi", "Late", "Boole", complete=True))
    last = site.run(DAG, build_date="2026-09-02", **name)
    assert last.state == "success", last
    assert last.states() == {"Boole/x86_64": "unchanged", "Gaudi/x86_64": "unchanged", "Late/x86_64": "published"}


def test_a_cleared_pass_starts_no_second_successor(site: MiniSite) -> None:
    site.drop(build("2026-09-03", "Gaudi"))
    given = {"build_date": "2026-09-03", "wait_minutes": NOBODY_WAITS_MIN}
    night = {"pass": Pass("scheduled__x", 1, datetime(2100, 1, 1, tzinfo=UTC)).to_json()}
    first = site.run(DAG, **given, **night)
    assert first.tasks["next_pass"] == "success"
    site.drop(build("2026-09-03", "Gaudi", "LHCb"))
    again = site.run(DAG, **given, **night)
    assert again.states() == {"LHCb/x86_64": "published"}
    assert again.tasks["next_pass"] == "skipped", "the run of pass 2 is there"


def test_the_cutoff_ends_a_night_that_is_not_complete_and_the_gate_says_so(site: MiniSite) -> None:
    site.drop(build("2026-09-04", "Gaudi"))
    over = {"pass": Pass("scheduled__y", 4, datetime(2026, 9, 4, tzinfo=UTC)).to_json()}
    run = site.run(DAG, build_date="2026-09-04", **over)
    assert run.state == "failed"
    assert run.tasks["gate"] == "failed"
    assert run.tasks["next_pass"] == "skipped"
    assert run.states() == {"Gaudi/x86_64": "published"}


def test_a_slot_that_is_removed_ends_its_run_by_name_and_nothing_is_half_done(
    site: MiniSite, capfd: pytest.CaptureFixture[str]
) -> None:
    site.drop(build("2026-09-05"))
    before = site.revision()
    with without_slot(site):
        run = site.run("nightly_install", slot="required", build_date="2026-09-05", wait_minutes=NOBODY_WAITS_MIN)
    assert run.state == "failed"
    assert run.tasks["find_build"] == "failed"
    assert "unknown slot 'required'" in capfd.readouterr().out
    assert run.publications == {}
    assert site.revision() == before


@contextmanager
def without_slot(site: MiniSite) -> Iterator[None]:
    """Takes the slot `required` out of the configuration, a moment after its night began."""
    file = site.folder / "site.yaml"
    whole = file.read_text()
    timer = threading.Timer(2.0, file.write_text, (whole.partition("  required:\n")[0],))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        file.write_text(whole)
