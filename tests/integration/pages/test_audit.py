"""*Audit* over a real ledger: acts of every table in one order, narrowed, by pages, and for operators alone."""

from __future__ import annotations

import html
import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, func, select
from typer.testing import CliRunner

from include.aliencache.records import CacheRun, CacheRunKind, note_cache_run
from include.cli.main import assemble
from include.ledger import acts as ledger_acts
from include.ledger.acts import Act, ActKind, LedgerRestore, acts, note_act, record_restore
from include.ledger.engine import open_ledger, reading
from include.monitoring.audit import FREEZE, RESTORE, THAW, TRIM, AuditChoice, audit
from include.nightlies.steps.care import prune_tags, remove_unfinished
from include.nightlies.steps.values import Attempt
from include.provenance.interventions import freeze, thaw
from include.site.site import Site
from include.stageout.components.retry_manager import kill, resubmit
from tests.fakes.site import FQRN
from tests.fakes.transfers import recorded
from tests.fakes.transfers_site import OPERATOR
from tests.integration.cli.conftest import Commands
from tests.integration.pages.conftest import HOSTILE, NOW

HOUR = timedelta(hours=1)
RUN = "nightly_gc/scheduled__2026-11-21"


def done(number: int, *, who: str = "ann@airflow", kind: ActKind = ActKind.UNDO, run: str | None = RUN) -> Act:
    return Act(NOW + number * HOUR, kind, f"act {number}", who, f"reason {number}", run)


def seen(page: str) -> list[str]:
    return re.findall(r'<td class="reason">(act \d+)</td>', page)


@pytest.fixture
def operator(client: TestClient) -> TestClient:
    client.headers["authorization"] = f"Bearer {OPERATOR}"
    return client


def test_users_other_than_operators_are_refused(client: TestClient, site: Site) -> None:
    note_act(site.ledger, done(1))
    client.headers["authorization"] = "ann"
    answer = client.get("/audit")
    assert answer.status_code == 403
    assert "is for operators" in answer.text
    assert "act 1" not in answer.text


def test_acts_are_text_with_their_run_and_the_newest_come_first(operator: TestClient, site: Site) -> None:
    assert "No such act is recorded" in operator.get("/audit").text
    note_act(site.ledger, done(1))
    note_act(site.ledger, done(2, who=HOSTILE, run=None))
    page = operator.get("/audit").text
    assert seen(page) == ["act 2", "act 1"]
    assert 'href="../dags/nightly_gc/runs/scheduled__2026-11-21" target="_top"' in page
    assert HOSTILE not in page


def test_pages_of_acts_hold_each_once_also_of_the_same_moment(
    operator: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.pages.provenance.PAGE", 2)
    for number in range(5):
        note_act(site.ledger, Act(NOW, ActKind.TAGS, f"act {number}", "ann", "rule"))
    freeze(site, FQRN, reason="act 9", who="ann", until=None, now=NOW)
    address, read = "/audit", list[str]()
    while address:
        page = operator.get(address).text
        read += seen(page)
        link = re.search(r'href="(audit\?[^"]+)" rel="next"', page)
        address = f"/{html.unescape(link[1])}" if link else ""
    assert sorted(read) == [*(f"act {number}" for number in range(5)), "act 9"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("kind=undo", ["act 3", "act 1"]),
        ("who=bob", ["act 2"]),
        ("who=ann", ["act 3", "act 1"]),
        ("who=an", []),
        ("since=2026-11-22", []),
        ("until=2026-11-21", ["act 3", "act 2", "act 1"]),
        ("until=2026-11-20", []),
    ],
)
def test_acts_are_narrowed_by_kind_person_and_period(
    operator: TestClient, site: Site, query: str, expected: list[str]
) -> None:
    for act in (done(1), done(2, who="bob@machine", kind=ActKind.TAGS), done(3)):
        note_act(site.ledger, act)
    assert seen(operator.get(f"/audit?{query}").text) == expected


@pytest.mark.parametrize(
    "query", ["kind=unknown", "since=x", "below=x", "below=1~2", "below=2026-11-21T00:00:00~0~1", "until=9999-12-31"]
)
def test_a_choice_that_cannot_be_is_refused(operator: TestClient, query: str) -> None:
    assert operator.get(f"/audit?{query}").status_code == 400


def test_other_tables_of_the_ledger_are_in_the_same_list(site: Site) -> None:
    freeze(site, FQRN, reason="store moves", who="ann", until=None, now=NOW)
    note_act(site.ledger, done(1))
    thaw(site, FQRN, who="bob", now=NOW + 2 * HOUR)
    record_restore(site.ledger, LedgerRestore(NOW - HOUR, NOW + 3 * HOUR, "carl", "backup-1"))
    note_cache_run(site.ledger, CacheRun("west", CacheRunKind.TRIM, NOW + 4 * HOUR, True, {}))
    listed = audit(site.ledger, AuditChoice())
    assert [(entry.kind, entry.who) for entry in listed] == [
        (TRIM, ""), (RESTORE, "carl"), (THAW, "bob"), ("undo", "ann@airflow"), (FREEZE, "ann"),
    ]  # fmt: skip
    assert listed[0].dry_run
    assert listed[0].why == "trim of the cache"
    assert "not accepted yet" in listed[1].why
    assert listed[-1].why == "store moves"
    assert [entry.kind for entry in audit(site.ledger, AuditChoice(since=NOW + 3 * HOUR))] == [TRIM, RESTORE]


def test_people_and_tasks_are_named_with_what_they_did(site: Site) -> None:
    ids = recorded(site.ledger, 2)
    kill(site.ledger, by="ann", now=NOW, ids=ids)
    kill(site.ledger, by="ann", now=NOW, ids=ids)  # moves nothing
    resubmit(site.ledger, by="bob", now=NOW + HOUR, ids=ids[:1])
    listed = audit(site.ledger, AuditChoice())
    assert [(entry.kind, entry.who, entry.what) for entry in listed] == [
        ("transfers resubmitted", "bob", f"1 transfers: {ids[0]}"),
        ("transfers killed", "ann", f"2 transfers: {ids[0]}, {ids[1]}"),
    ]


def test_a_task_is_named_by_the_user_who_started_its_run(site: Site) -> None:
    attempt = Attempt(RUN, f"{RUN}/collect try 1", 1, lambda: NOW)
    assert attempt.act(ActKind.COLLECTION, "x", "y").who == f"{RUN}/collect try 1"
    by_ann = Attempt(RUN, f"{RUN}/collect try 1", 1, lambda: NOW, by="ann@airflow")
    act = by_ann.act(ActKind.COLLECTION, "x", "y", dry_run=True)
    assert (act.who, act.run, act.dry_run) == ("ann@airflow", RUN, True)
    assert prune_tags(site, attempt, FQRN, dry_run=None) is None
    assert remove_unfinished(site, attempt, FQRN, dry_run=True) == []
    assert audit(site.ledger, AuditChoice()) == []  # nothing was done


def test_commands_that_remove_are_in_the_audit_and_it_is_listed(site: Site, repo: Commands) -> None:
    def listed(*words: str) -> list[dict[str, object]]:
        result = CliRunner().invoke(assemble(["audit"]), ["audit", "--json", *words], catch_exceptions=False)
        documents: list[dict[str, object]] = json.loads(result.stdout)
        return documents

    repo("tag", "add", FQRN, "v1")
    repo("tag", "remove", FQRN, "v1", "--dry-run")
    assert listed() == []
    repo("tag", "remove", FQRN, "v1")
    (entry,) = listed("--kind", "tags removed", "--since", "1h")
    assert entry["what"] == f"{FQRN}: v1"
    assert "@" in str(entry["who"])
    assert listed("--who", "nobody-of-that-name") == []
    far = CliRunner().invoke(assemble(["audit"]), ["audit", "--since", "999999w"])
    assert far.exit_code == 2
    assert "more than a hundred years" in far.output


def test_an_act_that_the_ledger_cannot_take_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    empty = open_ledger(f"sqlite:///{tmp_path / 'empty.db'}")  # without tables
    with caplog.at_level("INFO"):
        note_act(empty, done(1))
    assert "audit: undo: act 1; by ann@airflow; because: reason 1" in caplog.text
    assert "in the log alone" in caplog.text
    empty.dispose()


def test_an_act_of_a_name_that_no_ledger_takes_does_not_end_its_command(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    note_act(site.ledger, done(1, who="ann\udcff"))
    assert "in the log alone" in caplog.text


def test_the_oldest_acts_go(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        with reading(site.ledger) as connection:
            return int(connection.scalar(select(func.count()).select_from(acts)) or 0)

    def at(moment: datetime) -> None:
        note_act(site.ledger, Act(moment, ActKind.TAGS, "act", "ann", "rule"))

    note_act(site.ledger, Act(NOW - ledger_acts.CLEANING_KEPT - HOUR, ActKind.CLEANING, "1 sources", "task", "rule"))
    at(NOW - ledger_acts.KEPT - HOUR)
    at(NOW - HOUR)
    assert count() == 3
    at(NOW)
    assert count() == 3
    note_act(site.ledger, Act(NOW, ActKind.CLEANING, "1 sources", "task", "rule"))
    assert count() == 3  # those of cleanings go sooner
    monkeypatch.setattr(ledger_acts, "MOST", 1)
    at(NOW + HOUR)
    assert count() == 2
    for number in range(3):  # however many passes clean, the acts of people stay
        note_act(site.ledger, Act(NOW + number * HOUR, ActKind.CLEANING, "1 sources", "task", "rule"))
    assert count() == 2
    assert [entry.kind for entry in audit(site.ledger, AuditChoice())] == [ActKind.TAGS.value]
    (cleaned,) = audit(site.ledger, AuditChoice(kind=ActKind.CLEANING.value))
    assert cleaned.at == NOW + 2 * HOUR


def test_a_trim_without_a_person_is_not_said_to_have_a_run(operator: TestClient, site: Site, repo: Commands) -> None:
    note_cache_run(site.ledger, CacheRun("west", CacheRunKind.TRIM, NOW, False, {}))
    page = operator.get("/audit").text
    assert ("not recorded" in page, "see the run" in page) == (True, False)
    listed = CliRunner().invoke(assemble(["audit"]), ["audit"], catch_exceptions=False).stdout
    assert "cache trimmed: west; by whom is not recorded: trim of the cache" in listed


def test_the_newest_acts_are_read_in_the_order_of_an_index(site: Site) -> None:
    asked: list[tuple[str, Any]] = []

    def heard(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        asked.append((statement, parameters))

    event.listen(site.ledger, "before_cursor_execute", heard)
    audit(site.ledger, AuditChoice())
    event.remove(site.ledger, "before_cursor_execute", heard)
    plans = {}
    with reading(site.ledger) as connection:
        for statement, parameters in asked:
            if "FROM " in statement:
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                plans[statement.partition("FROM ")[2].split()[0]] = " ".join(str(row[-1]) for row in rows)
    for table in ("acts", "interventions", "questions", "quality"):
        assert f"USING INDEX ix_{table}_" in plans[table], plans[table]
        assert "TEMP B-TREE" not in plans[table], plans[table]
