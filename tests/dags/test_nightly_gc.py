"""`nightly_gc` through whole runs: retention, its question, the collection, and what refuses or delays it."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from include.cvmfs.collect.collect import GarbageCollection
from include.cvmfs.coordination.generation import CollectionPhase, look
from include.cvmfs.errors import CollectionRefused
from include.nightlies.errors import NotWell
from include.nightlies.records import damage, questions
from include.nightlies.removal.retention import plan_retention, remove_expired
from include.nightlies.rules.approval import Answer
from include.nightlies.steps.care import collect_garbage, file_name
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.publish import publish_batch, reserve_run
from include.nightlies.steps.values import Attempt, Night
from include.settings.traits import record_traits
from include.storage.kinds import Traits
from operators.care import CvmfsCollectOperator
from operators.lease_task import Killed
from operators.undo import PlanRetentionOperator
from tests.dags.conftest import FQRN, MiniSite, Run, anna, reconfigured
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

pytestmark = pytest.mark.server("weed")
FOLDER = "/nightlies/kept"
SLOT = f"""slots:
  kept: {{repository: {FQRN}, store: builds, retries: 0,
    retention: {{keep_last: 1, minimum: 1, rebuild_days: 0, approve_above: 1}}}}
"""
OURS, BROKEN = "nights__example__org", "broken__example__org"
DAYS = itertools.count(2)
WISH = {"grace_days": None, "audited": None, "accept": "", "all_orphans": True, "dry_run": False}
TASKS = ("replicas", "prune_tags", "plan", "remove", "collect", "check", "report")


@pytest.fixture(scope="module")
def prepared(site: MiniSite) -> Iterator[MiniSite]:
    """The same site with the signing key, a slot with retention, no grace, and a repository that is not there."""
    text = (site.folder / "site.yaml").read_text().replace("gateway: {", f"gateway: {{keys: {site.folder}/signing, ", 1)
    text = text.replace("    limits:", "    collection: {grace_days: 0, careful: false, audited: 20}\n    limits:", 1)
    found = f'    store: cvmfs\n    public_url: "{site.gateway_url}"\n    public_key: "{site.folder}/repository.pub"\n'
    broken = f"repositories:\n  broken.example.org:\n{found}    gateway: gateway\n"
    text = text.replace("slots:\n", SLOT, 1).replace("repositories:\n", broken, 1)
    with reconfigured(site, text, "nightly_gc") as made:
        _keeps_conditions(made, True)
        yield made


@pytest.fixture
def collected(prepared: MiniSite, monkeypatch: pytest.MonkeyPatch) -> MiniSite:
    """It holds one build of the slot, whatever a test before left."""
    for name, value in prepared.environment.items():
        monkeypatch.setenv(name, value)
    if not _builds(prepared):
        _night(prepared)
    now = datetime.now(UTC)
    remove_expired(prepared.opened, attempt("before a test"), plan_retention(prepared.opened, "kept", now=now))
    return prepared


def _night(site: MiniSite) -> str:
    """Publish the build of the next day by the steps of its night; its name."""
    day = date(2026, 11, next(DAYS))
    made = Build(day.isoformat(), slot="kept").add("A", "x86_64", tree({"file": os.urandom(2000)}))
    site.drop(made)
    night = Night(f"nightly_install/manual__{day}", "kept", day, "test")
    own = attempt(night.run)
    (batch,) = plan_night(site.opened, own, night, max_mapped=1).batches
    assert not prepare_batch(site.opened, own, batch).failures
    reserve_run(site.opened, own, [batch])
    assert not publish_batch(site.opened, own, batch).failures
    return _builds(site)[-1]


def _keeps_conditions(site: MiniSite, seen: bool) -> None:
    traits = Traits(put_if_absent=True, replace=seen, bulk_delete=True)
    record_traits(site.opened.ledger, site.opened.settings.store("cvmfs"), traits, now=datetime.now(UTC))


def _collect(site: MiniSite, **form: Any) -> Run:
    return site.run("nightly_gc", **{"repositories": [FQRN], **form})


def _states(run: Run, group: str = OURS) -> dict[str, str]:
    return {name: run.tasks[f"{group}.{name}"] for name in TASKS}


def _file(site: MiniSite, run: str, suffix: str) -> Path:
    return site.folder / "collections" / FQRN / "reports" / f"{file_name(run)}{suffix}"


def _report(site: MiniSite, run: Run) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(_file(site, run.name, ".json").read_text()))


def _object(site: MiniSite, build: str) -> str:
    entry = site.opened.head(FQRN).revision.lookup(f"{FOLDER}/{build}/A/x86_64/file")
    assert entry is not None
    assert entry.hash is not None
    return entry.hash.key


def _builds(site: MiniSite) -> list[str]:
    tree = site.opened.head(FQRN).revision
    found = tree.listing(FOLDER) if tree.lookup(FOLDER) else ()
    return sorted(entry.name for entry in found if entry.name[0] != ".")


def _stored(site: MiniSite) -> set[str]:
    return {one.key for one in site.opened.repository_store(FQRN).list("data/")}


def test_a_dry_run_reports_and_changes_nothing(collected: MiniSite) -> None:
    _night(collected)
    before, stored = collected.revision(), _stored(collected)
    run = _collect(collected, dry_run=True)
    assert run.state == "success", run
    assert (run.tasks[f"{OURS}.plan"], run.tasks[f"{OURS}.remove"]) == ("success", "skipped")
    assert set(_states(run, BROKEN).values()) == {"skipped"}
    report = _report(collected, run)
    assert (report["dry_run"], report["deleted"]) == (True, 0)
    assert report["condemned"] > 0
    assert (collected.revision(), _stored(collected)) == (before, stored)


def test_an_expired_build_goes_with_its_objects_and_the_next_run_has_nothing_to_do(collected: MiniSite) -> None:
    expired, newest = _object(collected, _builds(collected)[0]), _night(collected)
    run = _collect(collected)
    assert run.state == "success", run
    expected = dict.fromkeys(TASKS, "success") | {"prune_tags": "skipped"}
    assert _states(run) == expected
    assert _builds(collected) == [newest]
    report = _report(collected, run)
    assert report["ok"]
    assert report["deleted"] > 0
    assert expired in _stored(collected)  # trunk-previous names the revision before the removal
    assert _file(collected, run.name, ".deleted").read_text().startswith("# Garbage Collection started")
    assert "read back: " in _file(collected, run.name, ".txt").read_text()
    newest = _night(collected)
    later = _collect(collected)
    assert later.state == "success", later
    assert expired not in _stored(collected)
    assert _object(collected, newest) in _stored(collected)
    again = _collect(collected)
    assert again.state == "success", again
    assert (_states(again)["collect"], _states(again)["check"], _states(again)["report"]) == (
        "skipped", "skipped", "success",
    )  # fmt: skip
    assert not _file(collected, again.name, ".json").exists()
    assert not _file(collected, again.name, ".deleted").exists()


def test_more_builds_than_the_limit_go_after_a_yes_only_and_a_no_keeps_no_garbage(collected: MiniSite) -> None:
    builds = [*_builds(collected), _night(collected), _night(collected)]
    with anna(collected, "Reject") as person:
        rejected = _collect(collected)
    (shown,) = person.seen
    assert shown.subject == f"Remove 2 expired builds from {FQRN}?"
    assert f"{FOLDER}/{builds[0]}" in shown.body
    assert (_states(rejected)["remove"], _states(rejected)["collect"]) == ("skipped", "success")
    assert _builds(collected) == builds
    with anna(collected, "Approve"):
        agreed = _collect(collected)
    assert agreed.state == "success", agreed
    assert _builds(collected) == builds[-1:]
    (question,) = questions.of_run(collected.opened.ledger, agreed.name)
    assert (question.answer, question.repository) == (Answer.APPROVED, FQRN)


def test_a_repository_that_fails_leaves_the_other_alone(collected: MiniSite) -> None:
    newest = _night(collected)
    run = _collect(collected, repositories=None)
    assert run.state == "failed"
    assert (_states(run, BROKEN)["plan"], _states(run, BROKEN)["collect"]) == ("failed", "upstream_failed")
    assert _states(run)["collect"] == _states(run)["report"] == "success"
    assert _builds(collected) == [newest]


def test_where_the_collection_would_be_refused_the_task_before_the_removal_fails(collected: MiniSite) -> None:
    _night(collected)
    _keeps_conditions(collected, False)
    try:
        with refused(CollectionRefused, hint="try it with: nightshift settings check --stores"):
            PlanRetentionOperator(task_id="plan", repository=FQRN).execute(task_context())
    finally:
        _keeps_conditions(collected, True)


def test_what_a_preserved_revision_has_lost_fails_the_task_after_its_report(collected: MiniSite) -> None:
    store, key = collected.opened.repository_store(FQRN), _object(collected, _night(collected))
    data = store.get(key)
    store.delete([key])
    try:
        with refused(NotWell, repository=FQRN):
            CvmfsCollectOperator(task_id="collect", repository=FQRN, all_orphans=True).execute(task_context())
        assert [one.key for one in damage.of_repository(collected.opened.ledger, FQRN)] == [key]
    finally:
        store.put(key, data)
        damage.forget(collected.opened.ledger, FQRN, [key])
    report = json.loads(_file(collected, "night/run-1", ".json").read_text())
    assert [one["key"] for one in report["lost"]] == [key]


def test_a_task_that_is_killed_before_its_sweep_gives_its_claim_back(
    collected: MiniSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    _night(collected)
    operator = CvmfsCollectOperator(task_id="collect", repository=FQRN)
    operator._at_work = True
    phases = []

    def killed(_: GarbageCollection) -> bool:
        phases.append(_phase(collected))
        operator.on_kill()
        return True

    monkeypatch.setattr(GarbageCollection, "condemn", killed)
    with pytest.raises(Killed):
        collect_garbage(collected.opened, Attempt("run", "holder", 1, lambda: datetime.now(UTC)), FQRN, WISH)
    assert (phases, _phase(collected)) == ([CollectionPhase.MARKING], CollectionPhase.IDLE)


def _phase(site: MiniSite) -> CollectionPhase:
    found = look(site.opened.repository_store(FQRN)).generation
    assert found is not None
    return found.phase


def test_the_report_of_a_collection_is_one_click_away(collected: MiniSite) -> None:
    (link,) = collected.dags["nightly_gc"].get_task(f"{OURS}.collect").operator_extra_links
    key = SimpleNamespace(dag_id="nightly_gc", run_id="r+1", task_id=f"{OURS}.collect", map_index=-1)
    assert link.get_link(None, ti_key=key).endswith(f"/dags/nightly_gc/runs/r%2B1/tasks/{OURS}.collect")


def test_the_settings_decide_when_it_runs_and_for_which_repositories(collected: MiniSite) -> None:
    dag = collected.dags["nightly_gc"]
    assert dag.timetable.can_be_scheduled
    assert not dag.catchup
    assert {one.partition(".")[0] for one in dag.task_ids} == {"begin", OURS, BROKEN}


def test_neither_a_collection_nor_its_removals_take_a_slot_of_publications(collected: MiniSite) -> None:
    pools = {task.task_id.partition(".")[2]: task.pool for task in collected.dags["nightly_gc"].tasks}
    assert "publish" not in pools.values()
    assert {name for name, pool in pools.items() if pool == "collect"} == {"prune_tags", "remove", "collect"}
