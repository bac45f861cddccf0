"""Whole nights, backfills, undos and publications by `dag.test()`: each way through their DAGs once."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.sdk.exceptions import ParamValidationError
from airflow.utils.session import create_session
from sqlalchemy import select

from include.cvmfs.format.paths import link_target
from include.nightlies.rules.passes import Pass
from sensors.build import BuildSensor
from tests.dags.conftest import FQRN, MiniSite, Run, meanwhile
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")


DAG = "nightly_install_main"
NOBODY_WAITS_MIN = 60


def built(date: str, *projects: str, complete: bool = False) -> Build:
    made = Build(date, index={"complete": complete})
    for project in projects:
        made.add(project, "x86_64", tree({f"lib/{project}.so": project.encode() * 100}))
    return made


def test_a_night_publishes_every_artifact_and_a_second_run_finds_all_of_it_unchanged(site: MiniSite) -> None:
    build = built("2026-11-08", "Gaudi", "LHCb", complete=True)
    site.drop(build)
    # its build date is its logical date in the zone of the slot: half past eleven of UTC is the next day in Zurich
    first = site.run(DAG, logical_date=datetime(2026, 11, 7, 23, 30, tzinfo=UTC))
    assert first.state == "success", first
    assert {one.build_id for one in first.publications.values()} == {"b20261108"}
    assert first.states() == {"Gaudi/x86_64": "published", "LHCb/x86_64": "published"}
    repository = site.opened.repository(FQRN)
    for project in ("Gaudi", "LHCb"):
        path = build.destination(project, "x86_64")
        assert repository.revision.read(f"{path}/lib/{project}.so") == project.encode() * 100
    assert all(one.verified_at for one in first.publications.values())
    assert site.leases() == []
    before = site.revision()
    second = site.run("nightly_install", slot="main", build_date="2026-11-08")
    assert second.state == "success", second
    assert set(second.states().values()) == {"unchanged"}
    assert site.revision() == before
    assert {one.files for one in second.publications.values()} == {one.files for one in first.publications.values()}


def test_a_dry_run_says_what_would_be_published_and_writes_nothing(site: MiniSite) -> None:
    site.drop(built("2026-11-04", "Gaudi", "LHCb", complete=True))
    before, puts = site.revision(), {meta.key for meta in site.opened.repository_store(FQRN).list()}
    run = site.run("nightly_install", slot="main", build_date="2026-11-04", dry_run=True)
    assert run.state == "success", run
    assert run.tasks["gate"] == "skipped"
    assert {one.reason.partition(",")[0] for one in run.publications.values()} == {"dry run: would publish 2 files"}
    assert site.revision() == before
    assert {meta.key for meta in site.opened.repository_store(FQRN).list()} == puts
    assert site.leases() == []


def test_a_run_that_may_wait_takes_the_build_when_it_comes(site: MiniSite) -> None:
    with meanwhile(BuildSensor, lambda: site.drop(built("2026-11-06", "Gaudi", "LHCb", complete=True))):
        run = site.run(DAG, build_date="2026-11-06", wait_minutes=5)
    assert run.state == "success", run
    assert len(run.publications) == 2


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
    late = built("2026-09-01", "Gaudi", "Late").lose("Late", "x86_64")
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

    site.drop(built("2026-09-01", "Gaudi", "Late", "Boole").lose("Late", "x86_64"))
    second = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert second.state == "success", second
    assert second.states() == {"Boole/x86_64": "published"}
    assert [second.tasks[name] for name in ("gate", "links", "announce")] == ["skipped"] * 3
    assert second.tasks["next_pass"] == "success"

    site.drop(built("2026-09-01", "Gaudi", "Late", "Boole", "Rec").lose("Late", "x86_64"))
    again = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert again.states() == {"Rec/x86_64": "published"}
    assert again.tasks["next_pass"] == "skipped", "the run of pass 3 is there"

    before = site.revision()
    site.drop(built("2026-09-01", "Gaudi", "Late", "Boole", "Rec", complete=True))
    last = site.run(DAG, build_date="2026-09-01", **{"pass": conf["pass"]})
    assert last.state == "success", last
    taken = dict.fromkeys(("Boole/x86_64", "Gaudi/x86_64", "Rec/x86_64"), "unchanged")
    assert last.states() == {**taken, "Late/x86_64": "published"}
    assert site.revision() == before + 2  # its place, and its tree
    assert last.tasks["gate"] == last.tasks["announce"] == "success"
    assert last.tasks["next_pass"] == "skipped"
    assert site.leases() == []


GOOD = tree({"lib/good.so": b"good" * 100})


def test_what_failed_is_mended_cleared_with_what_follows_it_and_goes_in(site: MiniSite) -> None:
    build = Build("2026-10-24").add("Bad", "x86_64", GOOD).add("Good", "x86_64", GOOD)
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


def _linked(day: int, *projects: str, **index: object) -> Build:
    build = Build(f"2026-11-{day:02}", slot="linked", index=index)
    for project in projects:
        build.add(project, "x86_64", tree({"file": f"{project} of {day}".encode()}))
    return build


def _night(site: MiniSite, build: Build) -> Run:
    site.drop(build)
    return site.run("nightly_install", slot="linked", build_date=build.date)


def _latest(site: MiniSite) -> str:
    entry = site.opened.head(FQRN).revision.lookup(f"{FOLDER}/latest")
    return link_target(f"{FOLDER}/latest", entry.symlink) if entry else ""


def test_a_night_a_partial_one_and_one_build_undone(site: MiniSite) -> None:
    first = _night(site, _linked(2, "A", "B"))
    assert first.state == "success", first
    ended = [first.tasks[name] for name in ("inherited", "links", "announce")]
    assert ended == ["skipped", "success", "success"]
    assert _latest(site) == f"{FOLDER}/b20261102"

    second = _night(site, _linked(3, "B", partial=True, base={"build_id": "b20261102", "date": "2026-11-02"}))
    assert second.state == "success", second
    assert second.tasks["inherited"] == "success"
    assert second.states() == {"A/x86_64": "published", "B/x86_64": "published"}
    reader = site.opened.repository(FQRN)
    assert reader.revision.read(f"{FOLDER}/b20261103/A/x86_64/file") == b"A of 2"
    assert reader.revision.read(f"{FOLDER}/b20261103/B/x86_64/file") == b"B of 3"
    assert _latest(site) == f"{FOLDER}/b20261103"
    assert {"linked-b20261102", "linked-b20261103"} <= {one.name for one in reader.tags()}

    before = site.revision()
    form = {"slot": "linked", "build_id": "b20261103", "reason": "it crashes", "move_links": True, "approval": False}
    looked = site.run("undo_build", **form)
    assert looked.state == "success"
    assert looked.tasks["undo"] == "skipped"
    assert site.revision() == before
    undone = site.run("undo_build", **form, dry_run=False)
    assert undone.state == "success"
    assert site.revision() == before + 1
    assert _latest(site) == f"{FOLDER}/b20261102"
    assert site.opened.head(FQRN).revision.lookup(f"{FOLDER}/b20261103") is None
    assert site.leases() == []


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
    where = (TaskInstance.run_id == run.name.partition("/")[2], TaskInstance.task_id == task_id)
    with create_session() as session:
        return int(session.scalars(select(TaskInstance.try_number).where(*where)).one())


def _publish(site: MiniSite, path: str, source: str, **more: object) -> Run:
    return site.run("publication", repository=FQRN, path=path, source=source, **more)


def test_a_tarball_is_published_with_a_tag_and_a_second_run_changes_nothing(site: MiniSite) -> None:
    data, store = tree({"readme": b"first"}), site.opened.store("builds")
    store.put("root-1.tar.gz", data)
    source = f"{store.url}/root-1.tar.gz"
    same = {"tag": "root-1", "sha256": hashlib.sha256(data).hexdigest()}
    run = _publish(site, "/software/root/1", source, **same)
    assert run.state == "success", run
    repository = site.opened.repository(FQRN)
    assert repository.revision.read("/software/root/1/readme") == b"first"
    assert repository.tag("root-1").revision == repository.manifest.revision
    again = _publish(site, "/software/root/1", source, **same)
    assert again.state == "success", again
    assert {one.state.value for one in again.publications.values()} == {"unchanged"}
    assert site.revision() == repository.manifest.revision


def test_a_folder_is_looked_at_by_a_dry_run_and_published_by_a_run(site: MiniSite) -> None:
    folder, before = site.folder / "trees" / "data" / "1", site.revision()
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"from a folder")
    dry = _publish(site, "/data/1", folder.as_uri(), dry_run=True)
    assert dry.state == "success", dry
    assert "would publish 2 files" in next(iter(dry.publications.values())).reason
    assert site.revision() == before
    run = _publish(site, "/data/1", folder.as_uri())
    assert run.state == "success", run
    assert site.opened.repository(FQRN).revision.read("/data/1/deep/file") == b"from a folder"


def test_what_cannot_be_planned_fails_before_anything_is_done(site: MiniSite) -> None:
    run = _publish(site, "/a/../b", f"{site.opened.store('builds').url}/any.tar.gz")
    assert (run.state, run.tasks["plan"]) == ("failed", "failed")
    assert run.publications == {}


def test_an_unknown_slot_or_repository_is_refused_by_name(site: MiniSite) -> None:
    slots = r"\['linked', 'main', 'required'\]"
    with pytest.raises(ParamValidationError, match=f"param slot: 'weekly' is not one of {slots}"):
        site.run("nightly_install", slot="weekly", build_date="2026-10-05")
    with pytest.raises(ParamValidationError, match=rf"param repository: 'none' is not one of \['{FQRN}'\]"):
        site.run("publication", repository="none", path="/a", source="s3://builds/a.tar.gz")
