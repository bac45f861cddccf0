"""Judgements of clocks, room, leases and pools."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.airflow_api import AirflowApi
from include.gateway.client.leases import LeaseInfo
from include.ledger.migrate import migrate
from include.monitoring import airflow_checks, store_checks
from include.monitoring.checks import judged_lease
from include.monitoring.findings import Severity
from include.monitoring.store_checks import judged_skew, judged_space, room, written
from include.nightlies.records import builds, publications
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import Figures, Move, Phase, Planned, PublicationKey, State
from include.settings.load import load
from include.settings.model import SiteSettings
from include.settings.scheduling import PoolSettings, pools
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.plainsite import FQRN, plain_site

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("seconds", "severity"),
    [(0.9, Severity.OK), (-4.9, Severity.OK), (5, Severity.WARNING), (-299, Severity.WARNING), (300, Severity.ERROR)],
)
def test_clocks_may_differ_by_seconds_and_not_by_minutes(seconds: float, severity: Severity) -> None:
    found = judged_skew("store s", seconds)
    assert found.severity is severity
    assert ("NTP" in found.cure) is (severity is not Severity.OK)


@pytest.mark.parametrize(
    ("free", "severity"), [(200 * GIB, Severity.OK), (50 * GIB, Severity.WARNING), (GIB, Severity.ERROR)]
)
def test_room_is_needed(free: int, severity: Severity) -> None:
    found = judged_space({"logs": Path("/a/logs"), "var": Path("/a")}, free, 1000 * GIB)
    assert (found.severity, found.subject) == (severity, "logs, var")
    assert "free for /a/logs, /a; limits: 2 GiB for an error, 10% for a warning" in found.seen
    assert ("empty log" in found.cure) is (severity is not Severity.OK)


@pytest.fixture
def site(tmp_path: Path) -> SiteSettings:
    """A site that writes to many folders."""
    file = tmp_path / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{tmp_path}/ledger/l.db"\npaths: {{var: "{tmp_path}/var"}}\n'
        f'gateway: {{state: "{tmp_path}/gateway/state.db"}}\n'
        f'stores: {{cvmfs: {{url: "file://{tmp_path}/cv%20mfs"}}, builds: {{url: "s3://builds"}}}}\n'
    )
    return load(file, environ={})


def test_every_folder_that_is_written_to_is_looked_at(
    site: SiteSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}/spool")
    monkeypatch.setenv("AIRFLOW_HOME", f"{tmp_path}/airflow")
    expected = {
        "var": "var", "logs": "airflow/logs", "ledger": "ledger", "gateway state": "gateway", "spool": "spool",
        "store cvmfs": "cv mfs",
    }  # fmt: skip
    assert written(site, site.stores) == {name: tmp_path / folder for name, folder in expected.items()}
    assert written(site, [], tmp_path / "other")["logs"] == tmp_path / "other"
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", "/var/log/airflow")
    assert written(site, [])["logs"] == Path("/var/log/airflow")


def test_each_file_system_is_one_finding_that_names_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    monkeypatch.setattr(store_checks, "_device", lambda folder: 2 if "small" in folder.parts else 1)

    def usage(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=GIB if "small" in folder.parts else 50 * GIB, total=100 * GIB)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    there = {"var": tmp_path / "var", "logs": tmp_path / "small/not/yet", "ledger": tmp_path / "ledger"}
    found = {one.subject: one.severity for one in room(there)}
    assert found == {"var, ledger": Severity.OK, "logs": Severity.ERROR}


def test_a_lease_is_told_with_whose_it_is_and_when_it_was_renewed() -> None:
    ours = LeaseInfo("r.example.org", "/a", "key", NOW + timedelta(seconds=20), "night/run-1/publish try 1")
    assert "a task of ours" in judged_lease(ours, NOW, 120).seen
    assert "100 s ago" in judged_lease(ours, NOW, 120).seen
    other = LeaseInfo("r.example.org", "/a", "key", NOW + timedelta(seconds=500), "somebody")
    assert "another user, 'somebody' with key key, renewed about 0 s ago" in judged_lease(other, NOW, 120).seen


def test_pools_that_are_missing_or_small_are_named() -> None:
    wanted = [PoolSettings(name, 4, "") for name in ("prepare", "publish", "control", "more")]
    found = list(airflow_checks.judged_pools(wanted, {"prepare": 4, "publish": 3, "control": 0}))
    assert [one.severity for one in found] == [Severity.OK, Severity.WARNING, Severity.ERROR, Severity.ERROR]
    assert all(one.cure for one in found[1:])


def test_dags_that_have_to_run_by_themselves_and_are_paused_are_named_with_what_does_not_happen() -> None:
    site = SiteSettings.model_validate(
        {
            "stores": {"s": {"url": "file:///s"}},
            "repositories": {
                "r.example.org": {"store": "s", "public_url": "file:///s", "public_key": "k", "gateway": "g"}
            },
            "slots": {
                "main": {"repository": "r.example.org", "store": "s", "schedule": "0 2 * * *"},
                "early": {"repository": "r.example.org", "store": "s", "begins": "artifact"},
                "hand": {"repository": "r.example.org", "store": "s"},
            },
        },
        context={"root": Path("/")},
    )
    wanted = airflow_checks.needed(site)
    assert list(wanted) == [
        "nightly_install_early", "index_events_early", "nightly_install_main", "night_watch", "preflight",
        "nightly_gc", "leases", "repository_care",
    ]  # fmt: skip
    found = list(airflow_checks.judged_paused(wanted, dict.fromkeys(wanted, False) | {"night_watch": True}))
    (warning,) = [one for one in found if one.severity is not Severity.OK]
    assert (warning.subject, warning.severity) == ("night_watch", Severity.WARNING)
    assert warning.cure.endswith("nightshift dags on night_watch")
    # one that Airflow has not read yet
    assert [one.severity for one in airflow_checks.judged_paused({"leases": "x"}, {})] == [Severity.WARNING]
    assert "nightly_install_early" not in airflow_checks.needed(site, ["main"])
    assert set(airflow_checks.started_by_hand(site)) == {
        "nightly_install_hand", "nightly_install", "undo_build", "intervene", "publication", "rollback",
    }  # fmt: skip


def test_a_queue_without_a_worker_would_keep_its_tasks_and_a_broker_that_is_not_known_is_not_asked() -> None:
    (unasked,) = airflow_checks.look_at_workers(SiteSettings(), {})
    assert unasked.severity is Severity.WARNING
    served, idle = airflow_checks.judged_queues({"publish": 2, "benchmark": 0})
    assert (served.subject, served.severity) == ("publish", Severity.OK)
    assert (idle.subject, idle.severity) == ("benchmark", Severity.ERROR)


@pytest.mark.parametrize(
    ("hours", "severity"), [(None, Severity.ERROR), (0.5, Severity.ERROR), (25.9, Severity.ERROR), (26, Severity.OK)]
)
def test_rabbitmq_has_to_wait_for_the_longest_task(hours: float | None, severity: Severity) -> None:
    found = airflow_checks.judged_timeout(SiteSettings(consumer_timeout_hours=hours))
    assert found.severity is severity
    assert ("93600000" in found.cure) is (severity is Severity.ERROR)


@pytest.fixture
def with_ledger(tmp_path: Path) -> Iterator[Site]:
    opened = plain_site(tmp_path)
    migrate(opened.ledger)
    yield opened
    opened.ledger.dispose()


def record(with_ledger: Site, day: int, *, publish: bool) -> None:
    """A build of one artifact: 120 s of preparing, 30 s under the lease and in the commit."""
    artifacts = (Artifact("A", "x86", "A.tar", 10, f"{day}" * 32),)
    index = BuildIndex("main", f"b{day}", date(2026, 11, day), complete=True, artifacts=artifacts, rejected=())
    build = builds.record_build(with_ledger.ledger, index, index_url="u", now=NOW)
    key = PublicationKey(FQRN, f"/{day}/A", f"run{day}")
    planned = Planned(artifact=build.artifacts[0].id, sha256=f"{day}" * 32, reason="new")
    publications.plan(with_ledger.ledger, key, planned, try_number=1, now=NOW)
    moves = [Move(State.PREPARING, Phase.PREPARE, "begins")]
    if publish:
        moves += [
            Move(State.PREPARED, Phase.PREPARE, "prepared", Figures(seconds={"prepare": 120.0})),
            Move(State.PUBLISHING, Phase.PUBLISH, "begins"),
            Move(State.PUBLISHED, Phase.PUBLISH, "published", Figures(seconds={"lease": 10.0, "commit": 20.0})),
        ]
    for move in moves:
        publications.move(with_ledger.ledger, key, move, try_number=1, now=NOW)


def test_what_takes_longest_comes_first() -> None:
    work = [{"prepare": 60.0, "lease": 2.0, "commit": 8.0}] * 8 + [{"prepare": 90.0}]
    assert airflow_checks.night_bounds(work, {"prepare": 2, "publish": 4}) == [
        ("preparing in 2 slots", 285.0), ("the longest artifact", 90.0), ("publishing in 4 slots", 20.0),
    ]  # fmt: skip
    assert airflow_checks.night_bounds(work, {"prepare": 8, "publish": 4})[0] == ("the longest artifact", 90.0)


def test_the_last_build_of_which_something_was_published_is_taken(with_ledger: Site) -> None:
    record(with_ledger, 17, publish=False)
    (finding,) = airflow_checks.look_at_bounds(with_ledger, "main")
    assert finding.seen.startswith("not known")
    assert (finding.severity, finding.cure) == (Severity.OK, "")
    record(with_ledger, 18, publish=True)
    record(with_ledger, 19, publish=False)
    (finding,) = airflow_checks.look_at_bounds(with_ledger, "main")
    assert finding.seen.startswith("1 artifacts of build b18 of 2026-11-18 take at least: the longest artifact 2.5 min")


def test_dags_and_pools_of_every_page_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {f"dag_{number:03}": number % 2 == 0 for number in range(250)}
    wanted = pools(site := load(environ={"NIGHTSHIFT_AIRFLOW_CONNECTION": "api"}))
    slots = {f"another_{number:03}": 1 for number in range(250)} | {pool.name: pool.slots for pool in wanted}
    listed = {
        "dags": [{"dag_id": dag_id, "is_paused": paused} for dag_id, paused in states.items()],
        "pools": [{"name": name, "slots": number} for name, number in slots.items()],
    }

    def page(_: AirflowApi, method: str, path: str, *, params: dict[str, Any]) -> dict[str, Any]:
        assert method == "GET"
        name, first = path.removeprefix("/api/v2/"), params.get("offset", 0)
        return {name: listed[name][first : first + params["limit"]], "total_entries": len(listed[name])}

    monkeypatch.setattr(AirflowApi, "_json", page)
    assert AirflowApi("http://airflow", "checks", "password").paused() == states
    secrets = EnvSecrets({"AIRFLOW_CONN_API": "http://checks:password@airflow"})
    assert {one.severity for one in airflow_checks.look_at_pools(site, secrets)} == {Severity.OK}
