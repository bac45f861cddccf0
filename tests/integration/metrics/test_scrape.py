"""A page of figures of a site with a real gateway and ledger: what happened is on it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert, update

from include.cli.repository.open import open_site as of_environment
from include.cvmfs.collect.report import CollectionReport, LostObject
from include.cvmfs.commit.create import resign
from include.gateway.client.client import GatewayClient
from include.ledger.engine import writing
from include.monitoring import checks, metrics
from include.monitoring.checks import look_at_health
from include.monitoring.findings import Severity
from include.monitoring.metrics import Scrape
from include.monitoring.watch import lease_key
from include.nightlies.records.damage import note_collection
from include.nightlies.records.publications import new_row
from include.nightlies.records.tables import publications
from include.nightlies.rules.publication import Planned, PublicationKey
from include.notify import Message, NotifyEvent, claim, not_told, seen_since
from include.replicas.look import record
from include.replicas.states import ReplicaLook, ReplicaState
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.stageout.archive import archive_transfers
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.tables import stageout_transfers
from tests.fakes.ftsserver import FtsServer
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.places import put_in
from tests.fakes.site import FQRN, MASTER
from tests.fakes.transfers import recorded
from tests.fakes.transfers_site import transfers_site
from tests.integration.cli.conftest import Commands, repo

__all__ = ["repo"]
NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
HASH = "a" * 38


@pytest.fixture
def site(repo: Commands) -> Iterator[Site]:
    found = of_environment()
    yield found
    found.ledger.dispose()


def figures(site: Site) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    page = Scrape(lambda: site).page().decode()
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
    }


def published(site: Site, number: int, *, moved: datetime) -> None:
    row = new_row(PublicationKey(FQRN, f"/{number}", "night/run"), Planned(reason=""), 1, moved)
    row |= {"state": "published", "files": 5, "seconds": {"prepare": 2.0}, "updated_at": moved, "ended_at": moved}
    writing(site.ledger, lambda connection: connection.execute(insert(publications).values(row)))


def test_what_moved_within_a_day_is_on_the_page_and_older_publications_are_not(site: Site) -> None:
    published(site, 1, moved=NOW - 30 * HOUR)
    published(site, 2, moved=NOW - HOUR)
    found = figures(site)
    assert found["nightshift_publications", FQRN, "published"] == 1
    assert found["nightshift_publication_files", FQRN] == 5
    assert found["nightshift_publication_seconds", "prepare", FQRN] == 2.0


def test_the_days_of_the_whitelist_and_needed_dags_that_are_paused_are_on_the_page(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = figures(site)
    assert 20 < found["nightshift_whitelist_days", FQRN] < 31
    assert [key for key in found if key[0] == "nightshift_dag_paused"] == []  # Airflow is not to be asked
    states = {"leases": False, "repository_care": True}
    monkeypatch.setattr(checks, "site_api", lambda *_, **__: SimpleNamespace(paused=lambda: states))
    site.settings = site.settings.model_copy(update={"airflow_connection": "airflow"})
    found = figures(site)
    assert (found["nightshift_dag_paused", "leases"], found["nightshift_dag_paused", "repository_care"]) == (0, 1)


def test_a_whitelist_that_has_ended_stays_on_the_page(site: Site) -> None:
    resign(site.repository_store(FQRN), FQRN, MASTER, now=NOW - 48 * HOUR, validity=24 * HOUR)
    assert -2 < figures(site)["nightshift_whitelist_days", FQRN] < 0


def test_parts_and_what_is_ahead_are_read_side_by_side(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=20)
    health, ahead = metrics.look_at_health, metrics.look_ahead
    monkeypatch.setattr(metrics, "look_at_health", lambda site: (both.wait(), health(site))[1])
    monkeypatch.setattr(metrics, "look_ahead", lambda site: (both.wait(), ahead(site))[1])
    assert figures(site)["nightshift_part_up", "ledger", "ledger"] == 1


def test_a_store_that_does_not_answer_leaves_the_whitelist_out_and_the_page_is_there(site: Site) -> None:
    repository = site.settings.repositories[FQRN].model_copy(update={"public_url": "http://127.0.0.1:1/x"})
    site.settings = site.settings.model_copy(update={"repositories": {FQRN: repository}})
    found = figures(site)
    assert [key for key in found if key[0] == "nightshift_whitelist_days"] == []
    assert found["nightshift_part_up", "ledger", "ledger"] == 1


def test_leases_are_counted_and_the_oldest_has_its_age(repo: Commands, site: Site) -> None:
    assert figures(site)["nightshift_leases", FQRN] == 0
    with GatewayClient(repo.site.url, KEY_ID, SECRET) as client:
        held = client.acquire(FQRN, "/nightlies", hostname="somebody")
        (lease,) = client.leases()
        seen_since(site.ledger, lease_key(lease), NOW - HOUR, 2 * HOUR)
        found = figures(site)
        client.drop(held)
    assert found["nightshift_leases", FQRN] == 1
    assert 3600 <= found["nightshift_lease_oldest_seconds", FQRN] < 7200
    assert {key for key in found if key[0] == "nightshift_part_up"} >= {("nightshift_part_up", "ledger", "ledger")}
    assert [value for key, value in found.items() if key[0] == "nightshift_part_up"] == [1.0] * 3


def test_collections_are_summed_and_the_last_one_is_shown(site: Site) -> None:
    reports = [
        CollectionReport(FQRN, 1, ended=NOW - 24 * HOUR, objects_kept=50, deleted=7, bytes_deleted=700),
        CollectionReport(
            FQRN, 2, ended=NOW, objects_kept=60, deleted=3, bytes_deleted=300, once=4,
            failed={"data/xx": "refused"}, lost=[LostObject(f"data/aa/{HASH}", None)], seconds={"mark": 1.5},
        ),
    ]  # fmt: skip
    for report in [*reports, reports[-1]]:
        note_collection(site.ledger, report, now=NOW)
    found = figures(site)
    assert {key[0].removeprefix("nightshift_"): value for key, value in found.items() if "collection" in key[0]} == {
        "collections_total": 2,
        "collection_deleted_objects_total": 10,
        "collection_deleted_bytes_total": 1000,
        "collection_last_timestamp_seconds": pytest.approx(NOW.timestamp()),
        "collection_seconds": 1.5,
        "collection_kept_objects": 60,
        "collection_garbage_objects": 5,
        "collection_lost_objects": 1,
    }
    assert found["nightshift_damaged_objects", FQRN] == 1


def test_replicas_and_messages_that_were_not_sent_are_on_the_page(site: Site) -> None:
    look = ReplicaLook(
        repository=FQRN, replica="east", url="http://127.0.0.1:1", state=ReplicaState.BEHIND, reason="2 behind",
        looked_at=NOW - HOUR, state_since=NOW - 2 * HOUR, head_revision=4, revision=2, behind_since=NOW - 2 * HOUR,
    )  # fmt: skip
    record(site.ledger, [look])
    message = Message("run-failed:main", NotifyEvent.RUN_FAILED, "error", "night failed", "2 missing")
    assert claim(site.ledger, message, now=NOW, window=HOUR)
    not_told(site.ledger, message, "no answer")
    found = figures(site)
    assert 7200 <= found["nightshift_replica_lag_seconds", "east", FQRN] < 10_800
    assert found["nightshift_replica_trusted", "east", FQRN] == 1
    assert 3600 <= found["nightshift_replica_look_age_seconds", "east", FQRN] < 7200
    assert found["nightshift_notifications_failed",] == 1


def test_transfers_are_counted_by_state_and_the_oldest_due_one_has_its_age(site: Site) -> None:
    ids = recorded(site.ledger, 4, now=NOW - 2 * HOUR)
    values = {"state": "failed", "failure": "quota", "due_at": NOW - HOUR}
    where = stageout_transfers.c.id.in_(ids[:1])
    writing(site.ledger, lambda connection: connection.execute(update(stageout_transfers).where(where).values(values)))
    found = figures(site)
    assert (found["nightshift_transfers", "new"], found["nightshift_transfers", "failed"]) == (3, 1)
    assert found["nightshift_transfers", "active"] == 0
    assert 7200 <= found["nightshift_transfer_due_seconds", "new"] < 10_800
    assert found["nightshift_transfer_failures", "quota"] == 1


def test_sums_of_archived_transfers_are_by_link_and_state(site: Site) -> None:
    ids = recorded(site.ledger, 4, now=NOW - 2 * HOUR, size=1000)
    put_in(site.ledger, ids[:3], TransferState.COPIED, NOW - HOUR)
    done = [TransferMove(number, TransferState.COPIED, TransferState.DONE, "it is whole") for number in ids[:3]]
    move_transfers(site.ledger, done, StageoutComponent.REPORTER, now=NOW - HOUR)
    put_in(site.ledger, ids[:3], TransferState.CLEANED, NOW - HOUR)
    put_in(site.ledger, ids[3:], TransferState.FAILED, NOW - HOUR)
    for state in (TransferState.CLEANED, TransferState.FAILED):
        archive_transfers(site.ledger, state, before=NOW, limit=10)
    found, link = figures(site), ("bari", "pisa")  # labels by their names: destination, source
    assert found["nightshift_transfers_archived", *link, "cleaned"] == 3
    assert found["nightshift_transfer_archived_bytes", *link, "cleaned"] == 3000
    assert found["nightshift_transfers_archived", *link, "failed"] == 1
    for share in ("0.5", "0.95"):
        assert found["nightshift_transfer_registered_seconds", "bari", share, "pisa"] == pytest.approx(3600, rel=0.1)


def test_an_fts_server_is_a_part_where_there_are_storage_sites(tmp_path: Path) -> None:
    with FtsServer() as server, transfers_site(tmp_path) as plain:
        port = int(server.url.rpartition(":")[2])
        connection = {"conn_type": "fts", "host": "127.0.0.1", "port": port, "schema": "http"}
        site = Site(plain.settings, EnvSecrets({"AIRFLOW_CONN_FTS_DEFAULT": json.dumps(connection)}))
        assert fts_of(site) is Severity.OK
    assert fts_of(site) is Severity.ERROR
    site.ledger.dispose()


def fts_of(site: Site) -> Severity:
    (finding,) = [one for one in look_at_health(site).report.findings if one.check == "fts"]
    assert finding.subject == "fts_default"
    return finding.severity
