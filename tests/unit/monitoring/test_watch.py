"""Every run that failed sends one message for each cause, however it began, and none that another part sends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.ledger.metadata import metadata
from include.monitoring.alerts import Runs, Tick, alerts_of, ticks
from include.monitoring.render import read_summary
from include.monitoring.watch import FailedRun, TaskFault, note_fault, tell_failed_run, watch
from include.nightlies.errors import ArtifactMissing
from include.nightlies.records import builds, publications as records
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import Move, Phase, Planned, PublicationKey, State
from include.notify import DeliveryOutcome, Message, Notifier, NotifyError, NotifyEvent, undelivered
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FQRN = "r.example.org"
SITE = f"""
ledger: "sqlite:///@/ledger.db"
stores: {{files: {{url: "file://@"}}}}
repositories:
  {FQRN}: {{store: files, public_url: "file://@", public_key: "@/key.pub", gateway: gateway}}
slots:
  main: {{repository: {FQRN}, store: files, schedule: "0 2 * * *", cutoff: "08:00"}}
"""


class Told(list[Message]):
    """A fake of what sends messages; `fails` makes it fail, `configured` says whether it is a way at all."""

    fails = False
    configured = True

    def send(self, message: Message) -> None:
        if self.fails:
            raise NotifyError("HTTP 500")
        self.append(message)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()

    def notifier(site: Site) -> Notifier:
        return Notifier(site.settings.notify, site.ledger, {"fake": told.send} if told.configured else {})

    monkeypatch.setattr(Notifier, "of", staticmethod(notifier))
    return told


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    file = tmp_path / "site.yaml"
    file.write_text(SITE.replace("@", str(tmp_path)))
    on_site = Site(load(file), EnvSecrets({}))
    metadata.create_all(on_site.ledger)
    yield on_site
    on_site.ledger.dispose()


def fails(
    site: Site, dag_id: str, run_id: str, *faults: TaskFault, by_itself: bool = False, now: datetime = NOW
) -> None:
    run = FailedRun(dag_id, run_id, by_itself, "task_failure", "last")
    for fault in faults:
        note_fault(site, run.name, fault, now=now)
    tell_failed_run(site, run, now=now, log_of=lambda name: f"http://airflow/{name}")


def failed_artifact(site: Site, run: str, day: datetime, name: str = "A") -> None:
    artifact = Artifact(name, "x86", f"{name}.tar", 10, "a" * 64)
    index = BuildIndex("main", str(day.date()), day.date(), complete=True, artifacts=(artifact,), rejected=())
    build = builds.record_build(site.ledger, index, index_url="u", now=NOW)
    key = PublicationKey(FQRN, f"/{day.date()}/{name}", run)
    planned = Planned(artifact=build.artifacts[0].id, sha256="a" * 64, reason="p")
    records.plan(site.ledger, key, planned, try_number=1, now=NOW)
    failed = Move(State.FAILED, Phase.PLAN, "no tarball", error=ArtifactMissing("a", "b"))
    records.move(site.ledger, key, failed, try_number=1, now=NOW)


def test_a_run_by_hand_is_told_once_with_the_first_fault_and_its_page(site: Site, told: Told) -> None:
    by_hand = ("publication", "undo_build", "nightly_install", "repository_care", "leases")
    runs = [(dag_id, "manual__1") for dag_id in by_hand]
    for dag_id, run_id in (*runs, ("nightly_install_main", "backfill__2026-11-02T02:00:00+00:00")):
        fault = TaskFault("find", "build-unknown", "find: no build")
        fails(site, dag_id, run_id, fault, TaskFault("gate", "artifacts-missing", "gate: 1"))
        message = told[-1]
        assert message.title == f"run {run_id} of {dag_id} failed: build-unknown"
        assert "find: no build" in message.text
        assert message.links == {"run": f"http://airflow/{dag_id}/{run_id}"}
        fails(site, dag_id, run_id, fault)
    assert len(told) == len(by_hand) + 1
    # of a run whose tasks left no reason, Airflow's is shown
    fails(site, "publication", "manual__2")
    message = told[-1]
    assert "Its task `last` failed last. Airflow's reason: task_failure." in message.text


def test_a_store_that_is_away_is_one_cause_whatever_runs_it_hits(site: Site, told: Told) -> None:
    for day in (1, 2, 3):
        fault = TaskFault("find_build", "store-unavailable", f"no answer {day}")
        fails(site, "nightly_install_main", f"backfill__{day}", fault)
    (message,) = told
    assert message.key == "run-failed:nightly_install_main:store-unavailable"
    assert "nightshift preflight" in message.cure


def test_a_dag_that_runs_by_itself_tells_each_cause_once_and_another_cause_again(site: Site, told: Told) -> None:
    fails(site, "preflight", "scheduled__1", TaskFault("look", "preflight-failed", "2 errors"), by_itself=True)
    assert told == [], "its task has told it"
    left = TaskFault("end", "leases-left", "end: r.example.org: no answer")
    for number in range(3):
        fails(site, "leases", f"scheduled__{number}", left, by_itself=True)
    assert len(told) == 1
    damage = TaskFault(
        "care.check", "repository-problems", "care.check[0]: repository r.example.org: 1 problem: lost catalog", FQRN
    )
    tags = TaskFault("care.prune_tags", "KeyError", "no key")
    fails(site, "repository_care", "scheduled__1", damage, tags, by_itself=True)
    assert [message.key for message in told[1:]] == [
        "run-failed:repository_care:care.prune_tags:KeyError",
        "run-failed:repository_care:care.check:repository-problems",
    ]
    assert "lost catalog" in told[-1].text


def test_an_artifact_of_a_backfill_is_told_as_the_watch_tells_it(site: Site, told: Told) -> None:
    old = NOW - timedelta(days=9)
    failed_artifact(site, "nightly_install_main/backfill__1", old)
    gate = TaskFault("gate", "artifacts-missing", "gate: 1 missing")
    fails(site, "nightly_install_main", "backfill__1", gate)
    (message,) = told
    assert message.title == "night of main, 2026-11-12: A/x86 failed: artifact-missing"
    assert "no tarball" in message.text
    fails(site, "nightly_install_main", "backfill__1", gate)
    assert len(told) == 1


def test_the_watch_and_a_run_of_its_night_tell_no_cause_twice(site: Site, told: Told) -> None:
    (tick,) = ticks(site.settings.slot("main"), NOW)
    run_id = tick.first_runs[0]

    class Airflow:
        def runs_of(self, night: Tick) -> Runs:
            return Runs(there=True, failed=(run_id,) if night == tick else ())

        def has_ended(self, run: str) -> bool:
            return True

    # a task of its own fails before the cut-off, then what is missing at the cut-off is another cause
    early = tick.at + timedelta(minutes=5)
    fails(
        site, "nightly_install_main", run_id, TaskFault("find_build", "index-invalid", "it is truncated"),
        by_itself=True, now=early,
    )  # fmt: skip
    assert [message.key for message in told] == [f"run-failed:nightly_install_main/{run_id}"]
    seen = read_summary(site.ledger, site.settings.slot("main"), tick.date, now=early)
    assert [one.key for one in alerts_of(tick, seen, Airflow().runs_of(tick), early, late=timedelta(hours=1))] == [
        told[0].key
    ]
    failed_artifact(site, f"nightly_install_main/{run_id}", NOW)
    fails(site, "nightly_install_main", run_id, TaskFault("gate", "artifacts-missing", "1 missing"), by_itself=True)
    assert len(told) == 2
    watch(site, now=NOW, airflow=Airflow())
    assert [message.key.partition(":")[0] for message in told] == ["run-failed", "failed", "deadline"]


def test_the_deadline_that_a_last_pass_missed_is_told_as_the_watch_tells_it(site: Site, told: Told) -> None:
    (tick,) = ticks(site.settings.slot("main"), NOW)
    fails(
        site, "nightly_install_main", tick.first_runs[0], TaskFault("gate", "artifacts-missing", "no build"),
        by_itself=True,
    )  # fmt: skip
    assert [message.key for message in told] == [f"deadline:main:{tick.date}"]


def test_a_message_that_could_not_be_sent_is_sent_by_the_next_watch(site: Site, told: Told) -> None:
    told.fails = True
    fails(site, "publication", "manual__1", TaskFault("plan", "source-not-allowed", "plan: not of a store"))
    assert told == []
    told.fails = False
    watch(site, now=NOW)
    assert [message.key for message in told if message.key.startswith("run-")] == ["run-failed:publication/manual__1"]
    watch(site, now=NOW)
    assert len([message for message in told if message.key.startswith("run-")]) == 1


def test_a_way_that_is_added_later_sends_what_nobody_was_notified_of(site: Site, told: Told) -> None:
    told.configured = False
    fails(site, "publication", "manual__1", TaskFault("plan", "source-not-allowed", "plan: not of a store"))
    (tick,) = ticks(site.settings.slot("main"), NOW)
    failed_artifact(site, f"nightly_install_main/{tick.first_runs[0]}", NOW)
    for hours in range(3):
        outcomes = watch(site, now=NOW + timedelta(hours=hours)).told
        assert {outcome for _, outcome in outcomes} <= {DeliveryOutcome.NOBODY}
    (alert,) = undelivered(site.ledger, NOW - timedelta(hours=1), NotifyEvent.RUN_FAILED)
    assert alert.last_seen_at == NOW
    told.configured = True
    watch(site, now=NOW + timedelta(hours=3))
    assert sorted(message.event.value for message in told) == ["deadline", "failed", "run-failed"]
    watch(site, now=NOW + timedelta(hours=4))
    assert len(told) == 3
