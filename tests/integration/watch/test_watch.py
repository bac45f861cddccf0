"""One look over a site with a real gateway and ledger: who is told what, once, and the summary of a night."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.cli.repo_open import connections as of_environment
from include.gateway.client import GatewayClient
from include.nightlies import builds, records
from include.nightlies.index import Artifact, BuildIndex
from include.nightlies.records import PublicationKey
from include.nightlies.states import Phase, State
from include.publishers.connect import Connections
from include.watch.alerts import Runs, ticks
from include.watch.watch import Watched, watch
from tests.fakes.site import FQRN
from tests.fakes.worker import KEY_ID, SECRET
from tests.integration.cli.test_interventions import nightshift
from tests.integration.cli.test_repo_commands import Commands, repo
from tests.integration.notify.conftest import HookServer, hook_server

__all__ = ["hook_server", "repo"]
HOUR = timedelta(hours=1)


@pytest.fixture
def site(
    repo: Commands, tmp_path: Path, hook_server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connections]:
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
  webhook: {{connection: hook, retries: 0}}
"""
    )
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "http", "host": hook_server.url}))
    found = of_environment()
    yield found
    found.ledger.dispose()


def keys(done: Watched, said: str = "TOLD") -> list[str]:
    return [message.key.partition(":")[0] for message, how in done.told if how.name == said]


def test_a_night_that_no_one_began_is_told_once(site: Connections, hook_server: HookServer) -> None:
    now = datetime.now(UTC)
    today = ticks(site.site.slot("main"), now)[0].date
    done = watch(site, now=now, runs_of=lambda tick: Runs(there=tick.date != today, failed=False))
    assert keys(done) == ["not-started"]
    assert keys(watch(site, now=now, runs_of=lambda tick: Runs(there=tick.date != today, failed=False))) == []
    assert [json.loads(body)["event"] for _, body in hook_server.calls] == ["not-started"]
    assert done.faults == []


def test_a_lease_that_stays_is_told_when_it_has_been_seen_for_long(site: Connections, repo: Commands) -> None:
    now = datetime.now(UTC)
    with GatewayClient(repo.site.url, KEY_ID, SECRET) as client, client.lease(FQRN, "/a", hostname="somebody"):
        asked = {"runs_of": lambda tick: Runs(there=True, failed=False)}
        assert keys(watch(site, now=now, **asked)) == []
        assert keys(watch(site, now=now + timedelta(minutes=14), **asked)) == []
        done = watch(site, now=now + timedelta(minutes=16), **asked)
    assert keys(done) == ["stuck-lease"]
    assert "'somebody'" in done.told[0][0].text


def test_the_summary_is_sent_once_at_its_hour_and_says_what_the_ledger_says(
    site: Connections, hook_server: HookServer, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    tick = ticks(site.site.slot("main"), now)[0]
    artifacts = tuple(Artifact(name, "x86", f"{name}.tar", 10, "a" * 64) for name in ("A", "B"))
    index = BuildIndex(slot="main", build_id="b1", date=tick.date, complete=True, artifacts=artifacts, rejected=())
    build = builds.record_build(site.ledger, index, index_url="u", now=now)
    key = PublicationKey(FQRN, "/d/A", "nightly_install_main/run")
    records.plan(
        site.ledger, key, artifact=build.artifacts[0].id, artifact_sha256="a" * 64, try_number=1, now=now, reason="p"
    )
    records.move(site.ledger, key, State.FAILED, phase=Phase.PLAN, try_number=1, now=now, reason="no such tarball")
    later = tick.at + 3 * HOUR + timedelta(minutes=1)
    asked = {"runs_of": lambda _: Runs(there=True, failed=False)}
    hook_server.answers = [204, 204, 500]
    first = watch(site, now=later, **asked)
    assert first.summaries == [f"main {tick.date}: 1 failed, 1 open"]
    assert sorted(keys(first)) == ["deadline", "run-failed"]
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
