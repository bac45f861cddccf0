"""Whole nights, backfills and publications by `dag.test()`: each way through their DAGs once."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk.exceptions import ParamValidationError
from airflow.utils.session import create_session

from include.cvmfs.format.paths import link_target
from include.nightlies.rules.passes import Pass
from sensors.build import BuildSensor
from tests.dags.conftest import FQRN, MiniSite, Run, meanwhile
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")


DAG = "nightly_install_main"
NOBODY_WAITS_MIN = 60


def built(date: str, *projects: str, slot: str = "main", **index: object) -> Build:
    """A build of these projects, not complete unless it is said; each is a tree of one library."""
    made = Build(date, slot, index={"complete": False, **index})
    for project in projects:
        made.add(project, "x86_64", tree({f"lib/{project}.so": f"{project} of {date}".encode()}))
    return made


def content(site: MiniSite, build: Build, project: str) -> bytes:
    """The library of a project, as readers get it."""
    return site.opened.repository(FQRN).revision.read(f"{build.destination(project, 'x86_64')}/lib/{project}.so")


def test_a_night_waits_for_its_build_publishes_every_artifact_and_a_dry_run_finds_all_of_it_unchanged(
    site: MiniSite,
) -> None:
    build = built("2026-11-08", "Gaudi", "LHCb", complete=True)
    with meanwhile(BuildSensor, lambda: site.drop(build)):
        first = site.run(DAG, build_date="2026-11-08", wait_minutes=5)
    assert first.state == "success", first
    assert {one.build_id for one in first.publications.values()} == {"b20261108"}
    assert first.states() == {"Gaudi/x86_64": "published", "LHCb/x86_64": "published"}
    for project in ("Gaudi", "LHCb"):
        assert content(site, build, project) == f"{project} of 2026-11-08".encode()
    assert all(one.verified_at for one in first.publications.values())
    assert site.leases() == []
    site.drop(built("2026-11-08", "Gaudi", "LHCb", "Rec", complete=True))
    before, puts = site.revision(), {meta.key for meta in site.opened.repository_store(FQRN).list()}
    second = site.run("nightly_install", slot="main", build_date="2026-11-08", dry_run=True)
    assert (second.state, second.tasks["gate"]) == ("success", "skipped"), second
    assert second.states() == {"Gaudi/x86_64": "unchanged", "LHCb/x86_64": "unchanged", "Rec/x86_64": "skipped"}
    (skipped,) = [one.reason for one in second.publications.values() if one.project == "Rec"]
    assert skipped.startswith("dry run: would publish 2 files")
    assert site.revision() == before
    assert {meta.key for meta in site.opened.repository_store(FQRN).list()} == puts


def started(site: MiniSite, run: Run) -> dict[str, Any] | None:
    """The conf of the run that a run started; None if it started none."""
    dag_id, _, run_id = run.name.partition("/")
    with create_session() as session:
        for one in session.query(DagRun).filter(DagRun.dag_id == dag_id):
            conf = one.conf or {}
            if one.run_id.startswith("night__") and conf.get("pass", {}).get("first") == run_id:
                return {**conf, "run_id": one.run_id, "note": one.note}
    return None


def test_what_comes_late_goes_in_pass_by_pass_and_the_last_one_takes_what_failed_too(site: MiniSite) -> None:
    site.drop(built("2026-09-01", "Gaudi", "Late").lose("Late", "x86_64"))
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

    site.drop(built("2026-09-01", "Gaudi", "Late", "Boole").lose("Late", "x86_64"))
    second = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert second.state == "success", second
    assert second.states() == {"Boole/x86_64": "published"}
    assert [second.tasks[name] for name in ("gate", "links", "announce")] == ["skipped"] * 3
    assert second.tasks["next_pass"] == "success"

    before = site.revision()
    site.drop(built("2026-09-01", "Gaudi", "Late", "Boole", complete=True))
    last = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert last.state == "success", last
    taken = dict.fromkeys(("Boole/x86_64", "Gaudi/x86_64"), "unchanged")
    assert last.states() == {**taken, "Late/x86_64": "published"}
    assert site.revision() == before + 2  # its place, and its tree
    assert last.tasks["gate"] == last.tasks["announce"] == "success"
    assert last.tasks["next_pass"] == "skipped"
    assert site.leases() == []


def test_what_failed_is_mended_cleared_with_what_follows_it_and_goes_in(site: MiniSite) -> None:
    build = built("2026-10-24", "Bad", "Good", complete=True)
    site.drop(replace(build, data={url: data[:-20] if "Bad" in url else data for url, data in build.data.items()}))
    run = site.run(DAG, build_date="2026-10-24")
    assert run.states() == {"Bad/x86_64": "failed", "Good/x86_64": "published"}
    assert (run.state, run.tasks["gate"]) == ("failed", "failed")
    assert run.tasks["links"] == run.tasks["announce"] == "upstream_failed"
    site.drop(build)
    failed = next(task for task, state in run.tasks.items() if ".prepare[" in task and state == "failed")
    task, _, index = failed.removesuffix("]").partition("[")
    after = run.tasks.keys() - {"find_build", "plan", "reserve"}
    follows = {name for name in after if "[" not in name}
    again = site.clear(run, (task, int(index)), (task.replace("prepare", "publish"), int(index)), *follows)
    assert again.states() == {"Bad/x86_64": "published", "Good/x86_64": "published"}
    assert again.state == "success", again.tasks
    assert site.leases() == []


FOLDER = "/nightlies/linked"


def latest(site: MiniSite) -> str:
    entry = site.opened.head(FQRN).revision.lookup(f"{FOLDER}/latest")
    return link_target(f"{FOLDER}/latest", entry.symlink) if entry else ""


def test_a_night_and_a_partial_one_move_their_links_and_name_their_revisions(site: MiniSite) -> None:
    def night(build: Build) -> Run:
        site.drop(build)
        run = site.run("nightly_install", slot="linked", build_date=build.date)
        assert run.state == "success", run
        assert latest(site) == f"{FOLDER}/{build.build_id}"
        return run

    first = night(built("2026-11-02", "A", "B", slot="linked", complete=True))
    assert [first.tasks[name] for name in ("inherited", "links", "announce")] == ["skipped", "success", "success"]
    base = {"build_id": "b20261102", "date": "2026-11-02"}
    build = built("2026-11-03", "B", slot="linked", complete=True, partial=True, base=base)
    second = night(build)
    assert second.tasks["inherited"] == "success"
    assert second.states() == {"A/x86_64": "published", "B/x86_64": "published"}
    assert (content(site, build, "A"), content(site, build, "B")) == (b"A of 2026-11-02", b"B of 2026-11-03")
    assert {"linked-b20261102", "linked-b20261103"} <= {one.name for one in site.opened.repository(FQRN).tags()}
    assert site.leases() == []


def test_a_date_publishes_its_build_and_the_same_date_again_is_unchanged_without_a_revision(site: MiniSite) -> None:
    build = built("2026-02-02", "Gaudi", complete=True)
    site.drop(build)
    # its date is the logical date in the zone of the slot: half past eleven of UTC is the next day in Zurich
    run = site.backfill(DAG, datetime(2026, 2, 1, 23, 30, tzinfo=UTC))
    assert (run.state, run.name) == ("success", f"{DAG}/backfill__2026-02-01T23:30:00+00:00")
    assert f"{DAG}/{site.ways[-1]}" == run.name, "its tasks step back"
    (publication,) = run.publications.values()
    assert (publication.state.value, publication.build_id) == ("published", build.build_id)
    assert content(site, build, "Gaudi") == b"Gaudi of 2026-02-02"
    before = site.revision()
    again = site.clear(run, *site.dags[DAG].task_ids)  # as `--reprocess-behavior completed` does
    assert again.state == "success", again.tasks
    (publication,) = again.publications.values()
    assert (publication.state.value, publication.plan_try) == ("unchanged", 2)
    assert site.revision() == before
    assert site.leases() == []


def test_a_tarball_is_published_with_a_tag_and_a_second_run_changes_nothing(site: MiniSite) -> None:
    data, store = tree({"readme": b"first"}), site.opened.store("builds")
    store.put("root-1.tar.gz", data)
    form = {
        "repository": FQRN, "path": "/software/root/1", "source": f"{store.url}/root-1.tar.gz", "tag": "root-1",
        "sha256": hashlib.sha256(data).hexdigest(),
    }  # fmt: skip
    run = site.run("publication", **form)
    assert run.state == "success", run
    repository = site.opened.repository(FQRN)
    assert repository.revision.read("/software/root/1/readme") == b"first"
    assert repository.tag("root-1").revision == repository.manifest.revision
    again = site.run("publication", **form)
    assert again.state == "success", again
    assert {one.state.value for one in again.publications.values()} == {"unchanged"}
    assert site.revision() == repository.manifest.revision


def test_an_unknown_slot_or_repository_is_refused_by_name(site: MiniSite) -> None:
    slots = r"\['linked', 'main', 'required'\]"
    with pytest.raises(ParamValidationError, match=f"param slot: 'weekly' is not one of {slots}"):
        site.run("nightly_install", slot="weekly", build_date="2026-10-05")
    with pytest.raises(ParamValidationError, match=rf"param repository: 'none' is not one of \['{FQRN}'\]"):
        site.run("publication", repository="none", path="/a", source="s3://builds/a.tar.gz")
