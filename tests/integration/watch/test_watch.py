"""One look over a site with a real gateway and ledger: who is told what, once, and the summary of a night."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.cli.repository.open import open_site as of_environment
from include.gateway.client.client import GatewayClient
from include.monitoring import store_checks
from include.monitoring.alerts import Runs, Tick, ticks
from include.monitoring.watch import Watched, watch
from include.nightlies.errors import ArtifactMissing
from include.nightlies.records import builds, publications as records
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.passes import Pass
from include.nightlies.rules.publication import Move, Phase, Planned, PublicationKey, State
from include.site.site import Site
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import FQRN
from tests.integration.cli.conftest import Commands, nightshift, repo
from tests.integration.notify.conftest import HookServer, hook_server

__all__ = ["hook_server", "repo"]
HOUR = timedelta(hours=1)


@pytest.fixture
def site(repo: Commands, tmp_path: Path, hook_server: HookServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A slot whose night began an hour and a half ago, and a service that is told."""
    began = datetime.now(UTC) - timedelta(minutes=90)
    file = tmp_path / "site.yaml"
    file.write_text(
        file.read_text()
        + f"""
slots:
  main:
    repository: {FQRN}
    store: files
    schedule: "{began.minute} {began.hour} * * *"
    cutoff: 2h
    summary_at: "{began + 3 * HOUR:%H:%M}"
notify:
  whitelist_days: 0
  apprise: {{connections: [hook]}}
"""
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "generic", "password": f"json://{hook_server.address}"})
    )
    found = of_environment()
    yield found
    found.ledger.dispose()


@dataclass
class Airflow:
    """Has a run of every night; which runs have ended."""

    ended: set[str] = field(default_factory=set)

    def runs_of(self, night: Tick) -> Runs:
        return Runs(there=True)

    def has_ended(self, run: str) -> bool:
        return run in self.ended


def keys(done: Watched, said: str = "TOLD") -> list[str]:
    return [message.key.partition(":")[0] for message, how in done.told if how.name == said]


def test_a_log_disk_that_is_nearly_full_is_told_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, logs = datetime.now(UTC), tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr(store_checks, "_device", lambda folder: int(folder == logs))

    def usage(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=(1 if folder == logs else 900) << 30, total=1000 << 30)

    monkeypatch.setattr(store_checks.shutil, "disk_usage", usage)
    done = watch(site, now=now, airflow=Airflow(), logs=logs)
    assert [message.key for message, how in done.told if how.name == "TOLD"] == ["preflight:disk:logs"]
    assert f"1.0 GiB of 1000.0 GiB are free for {logs}" in done.told[0][0].text
    assert keys(watch(site, now=now, airflow=Airflow(), logs=logs)) == []


def test_a_lease_that_stays_is_told_when_it_has_been_seen_for_long(site: Site, repo: Commands) -> None:
    now = datetime.now(UTC)
    with GatewayClient(repo.site.url, KEY_ID, SECRET) as client, client.lease(FQRN, "/a", hostname="somebody"):
        asked = {"airflow": Airflow()}
        assert keys(watch(site, now=now, **asked)) == []
        assert keys(watch(site, now=now + timedelta(minutes=14), **asked)) == []
        done = watch(site, now=now + timedelta(minutes=16), **asked)
    assert keys(done) == ["stuck-lease"]
    assert "'somebody'" in done.told[0][0].text


def test_the_summary_is_sent_once_at_its_hour_and_says_what_the_ledger_says(
    site: Site, hook_server: HookServer, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    tick = ticks(site.settings.slot("main"), now)[0]
    artifacts = tuple(Artifact(name, "x86", f"{name}.tar", 10, "a" * 64) for name in ("A", "B"))
    index = BuildIndex(slot="main", build_id="b1", date=tick.date, complete=True, artifacts=artifacts, rejected=())
    build = builds.record_build(site.ledger, index, index_url="u", now=now)
    key = PublicationKey(FQRN, "/d/A", "nightly_install_main/run")
    records.plan(site.ledger, key, Planned(build.artifacts[0].id, "a" * 64, "p"), try_number=1, now=now)
    records.move(site.ledger, key, Move(State.FAILED, Phase.PLAN, "no such tarball"), try_number=1, now=now)
    later = tick.at + 3 * HOUR + timedelta(minutes=1)
    asked = {"airflow": Airflow()}
    hook_server.answers = [204, 204, 500]
    first = watch(site, now=later, **asked)
    assert first.summaries == [f"main {tick.date}: 1 failed, 1 open"]
    assert sorted(keys(first)) == ["deadline", "failed"]
    assert keys(first, "FAILED") == ["summary"]
    second = watch(site, now=later + timedelta(minutes=10), **asked)
    assert keys(second) == ["summary"]
    assert watch(site, now=later + timedelta(minutes=20), **asked).summaries == []
    folder = tmp_path / "var" / "summaries" / "main"
    kept = json.loads((folder / f"{tick.date}.json").read_text())
    assert {one["project"]: one["fate"] for one in kept["lines"]} == {"A": "failed", "B": "open"}
    assert "no such tarball" in (folder / f"{tick.date}.html").read_text()
    shown = nightshift("nightly", "summary", "--date", str(tick.date), "--slot", "main", code=1).stdout
    assert "2 required and missing: A/x86, B/x86." in shown
    assert "no such tarball" in shown


def test_what_a_pass_left_failed_is_told_when_the_pass_ends_once_and_a_later_failure_alone(
    site: Site, hook_server: HookServer
) -> None:
    now = datetime.now(UTC)
    tick = ticks(site.settings.slot("main"), now)[0]
    artifacts = tuple(Artifact(name, "x86", f"{name}.tar", 10, name.lower() * 64) for name in ("A", "B", "C"))
    index = BuildIndex(slot="main", build_id="b1", date=tick.date, complete=False, artifacts=artifacts, rejected=())
    build = builds.record_build(site.ledger, index, index_url="u", now=now)
    passes = [
        f"nightly_install_main/{run}" for run in (tick.first_runs[0], Pass(tick.first_runs[0]).run_id(tick.date, 2))
    ]

    def fails(number: int, run: str, to: State = State.FAILED) -> None:
        record = build.artifacts[number]
        key = PublicationKey(FQRN, f"/d/{record.artifact.project}", run)
        about = {"artifact": record.id, "sha256": record.artifact.sha256}
        records.plan(site.ledger, key, Planned(**about, reason="p"), try_number=1, now=now)
        records.move(
            site.ledger, key, Move(to, Phase.PLAN, "no tarball", error=ArtifactMissing("a", "b")), try_number=1, now=now
        )

    airflow = Airflow()
    fails(0, passes[0])
    # another try may come while the pass runs
    assert keys(watch(site, now=now, airflow=airflow)) == []
    airflow.ended.add(passes[0])
    assert keys(watch(site, now=now, airflow=airflow)) == ["failed"]
    assert keys(watch(site, now=now + timedelta(minutes=5), airflow=airflow)) == []
    sent = json.loads(hook_server.calls[-1].body)
    assert sent["message"].startswith("A/x86: no tarball\n")
    assert "last pass tries all of it again" in sent["message"]
    fails(1, passes[1])
    airflow.ended.add(passes[1])
    hook_server.answers = [500]
    assert keys(watch(site, now=now, airflow=airflow), "FAILED") == ["failed"]
    assert keys(watch(site, now=now, airflow=airflow)) == ["failed"]
    assert json.loads(hook_server.calls[-1].body)["title"].endswith("B/x86 failed: artifact-missing")
    fails(0, passes[1], State.UNCHANGED)
    assert keys(watch(site, now=now, airflow=airflow)) == []


def test_a_whitelist_that_has_ended_is_told_though_nothing_can_be_read_any_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from include.site import site as composition

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=4000)

    monkeypatch.setattr(composition, "datetime", Later)
    done = watch(site, now=datetime.now(UTC), airflow=Airflow())
    (message,) = [one for one, _ in done.told if one.key.startswith("whitelist")]
    assert message.key == f"whitelist:{FQRN}:ended"
    assert "nightshift repo resign" in message.cure
    assert done.faults == []
