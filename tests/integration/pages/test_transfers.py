"""*Transfers* and *Transfer* over a real ledger: counts, what is stuck, lists behind numbers, and who sees what."""

from __future__ import annotations

import html
import re
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, insert

from include.ledger.engine import writing
from include.pages import transfers_page, transfers_rows, transfers_view as view
from include.pages.app import create_app
from include.pages.registry import PREFIX, STAGEOUT_API
from include.site.site import Site
from include.stageout.archive import archive_transfers
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.rest.app import create_api
from include.stageout.rest.remembered import RememberedCounts
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.sums import bucket_of, percentile_s
from include.stageout.tables import stageout_analytics, stageout_findings
from tests.fakes.places import put_in
from tests.fakes.transfers import NOW, recorded
from tests.fakes.transfers_site import OPERATOR, VIEWER, stageout_user, transfers_site
from tests.integration.pages.conftest import HOSTILE, dags

NEW, FAILED, CLEANED = TransferState.NEW, TransferState.FAILED, TransferState.CLEANED


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with transfers_site(tmp_path) as found:
        yield found


@pytest.fixture
def anybody(site: Site) -> TestClient:
    return TestClient(create_app(stageout_user, lambda: site, dags), base_url="http://127.0.0.1")


class Viewer:
    """The pages as a user sees them."""

    def __init__(self, client: TestClient, name: str) -> None:
        self._client, self._headers = client, {"authorization": f"Bearer {name}"}

    def __call__(self, path: str = "transfers", status: int = 200) -> str:
        answer = self._client.get(f"/{path}", headers=self._headers)
        assert answer.status_code == status, answer.text
        return str(answer.text)

    def whole(self, path: str) -> str:
        """The page when all its parts have an answer; each look waits for a while."""
        return next(page for page in (self(path) for _ in range(600)) if "no answer yet" not in page)


@pytest.fixture
def olga(anybody: TestClient) -> Viewer:
    return Viewer(anybody, OPERATOR)


@pytest.fixture
def ann(anybody: TestClient) -> Viewer:
    return Viewer(anybody, "ann")


def moved(site: Site, ids: list[int], state: TransferState, *, at: datetime = NOW, failure: str | None = None) -> None:
    """As if the components had moved them."""
    put_in(site.ledger, ids, state, at, failure=failure, reason=f"it is {HOSTILE}")


def listed(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'href="transfer\?id=(\d+)" id="t\d+"', page)]


def links(page: str) -> dict[str, tuple[str, int]]:
    """The numbers that lead to rows, by the id of their link."""
    found = re.findall(r'<a href="([^"]+)" id="([^"]+)" aria-label="[^"]*">(\d+)</a>', page)
    numbers = [(name, (html.unescape(href), int(number))) for href, name, number in found if not name.startswith("t")]
    return dict(numbers)


def test_a_part_without_an_answer_yet_is_asked_for_again_soon(olga: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, done, days = threading.Event(), threading.Event(), transfers_rows.days

    def slow(*arguments: Any, **options: Any) -> Any:
        assert hangs.wait(60)
        try:
            return days(*arguments, **options)
        finally:
            done.set()

    monkeypatch.setattr(transfers_rows, "days", slow)
    assert "no answer yet" in olga()
    assert f'data-every="{transfers_page.SOON_S}"' in olga("transfers/live")
    hangs.set()
    assert done.wait(60)
    page = olga.whole("transfers/live")
    assert "no answer yet" not in page
    assert f'data-every="{transfers_page.OVERVIEW_EVERY_S}"' in page


def test_every_number_leads_to_as_many_rows(site: Site, olga: Viewer) -> None:
    of_ann = recorded(site.ledger, 5, owner="ann")
    of_bob = recorded(site.ledger, 3, owner="bob", source="bari", destination="pisa")
    moved(site, of_ann[:2], FAILED, failure="quota")
    moved(site, of_ann[2:3], TransferState.RETRY_WAIT, failure="timeout")
    moved(site, of_bob[:2], CLEANED)
    page = olga.whole("transfers")
    numbers = links(page)
    assert {"state-new", "state-failed", "state-retry-wait", "failure-1", "failure-2"} <= numbers.keys()
    assert len(numbers) > 15
    for name, (href, number) in numbers.items():
        assert len(listed(olga(href))) == number, name
    assert numbers["state-new"][1] == 3
    assert "not retried" in page
    assert HOSTILE not in page


def test_throughput_is_shown_by_link_from_the_first_minute(site: Site, olga: Viewer, ann: Viewer) -> None:
    now = datetime.now(UTC)
    assert "No file that is not archived became complete in the last hour" in olga.whole("transfers")
    own = recorded(site.ledger, 4, owner="ann", size=6_000_000)
    others = recorded(site.ledger, 3, owner="bob", source="bari", destination="pisa")
    moved(site, own[:1], CLEANED, at=now - timedelta(hours=2))
    moved(site, own[1:3], CLEANED, at=now - timedelta(seconds=90))
    moved(site, others[:2], TransferState.KEPT, at=now - timedelta(minutes=20))
    rates, since = transfers_rows.link_rates(site.ledger, None, now=now)
    assert [(rate.source, rate.destination, rate.files, rate.bytes) for rate in rates] == [
        ("bari", "pisa", 2, 0), ("pisa", "bari", 2, 12_000_000),
    ]  # fmt: skip
    assert since == now - timedelta(hours=1)
    (rate,), since = transfers_rows.link_rates(site.ledger, "ann", now=now, limit=1)
    assert (rate.files, since) == (1, now - timedelta(seconds=90)), "of no more than were read"
    page = ann.whole("transfers?site=pisa")
    assert ">pisa to bari</a></th>" in page.partition('aria-label="Throughput by link"')[2]


def test_users_see_their_own_only(site: Site, ann: Viewer, olga: Viewer) -> None:
    own = recorded(site.ledger, 2, owner="ann")
    others = recorded(site.ledger, 3, owner="bob")
    moved(site, others[:1], FAILED, failure="quota")
    found = [
        {"found_at": NOW, "kind": "old-state", "transfer": one, "reason": "r", "outcome": "named"}
        for one in (own[0], others[0])
    ]
    found.append({"found_at": NOW, "kind": "unknown-file", "transfer": None, "reason": "of nobody", "outcome": "named"})
    writing(site.ledger, lambda connection: [connection.execute(insert(stageout_findings), row) for row in found])
    page = ann.whole("transfers")
    assert listed(page) == own[::-1]
    assert "bob" not in page
    assert "quota</th>" not in page
    assert re.findall(r'id="finding-\d+">(\d+)<', page) == [str(own[0])]
    assert "of nobody" not in page
    assert {number for _, number in links(page).values()} == {2}
    ann("transfers?user=bob", 400)
    ann(f"transfer?id={others[0]}", 400)
    whole = olga.whole("transfers")
    assert "of nobody" in whole
    assert re.findall(r'id="kind-([a-z-]+)">(\d)', whole) == [("old-state", "2"), ("unknown-file", "1")]
    assert re.findall(r'id="finding-\d+">(\d+)<', olga.whole("transfers?finding=unknown-file")) == []
    olga("transfers?finding=lost", 400)
    assert f"Transfer {others[0]}" in olga(f"transfer?id={others[0]}")


def test_the_list_goes_on_where_a_page_of_it_ended(site: Site, olga: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers_page, "PAGE", 2)
    expected = recorded(site.ledger, 5, owner="ann")[::-1]
    url, found, pages = "transfers?user=ann", [], 0
    while url and pages < 5:
        page = olga.whole(url)
        found += listed(page)
        older = re.search(r'<a href="([^"]+)" rel="next"', page)
        url, pages = html.unescape(older[1]) if older else "", pages + 1
    assert (found, pages) == (expected, 3)


def test_what_is_archived_is_shown_where_it_is_asked_for(site: Site, olga: Viewer) -> None:
    ids = recorded(site.ledger, 3, owner="ann")
    moved(site, ids[:2], CLEANED)
    archive_transfers(site.ledger, CLEANED, before=NOW + timedelta(hours=1), limit=10)
    assert listed(olga()) == ids[2:]
    assert listed(olga("transfers?archived=yes")) == ids[::-1]
    assert listed(olga("transfers?archived=yes&state=cleaned")) == ids[1::-1]


def test_a_transfer_has_every_move_with_its_reason(site: Site, ann: Viewer) -> None:
    (number,) = recorded(site.ledger, 1, owner="ann", size=1500, dataset="/a/b/USER")
    for minutes, (before, after) in enumerate([(NEW, TransferState.KILLED), (TransferState.KILLED, NEW)], start=1):
        move = TransferMove(number, before, after, f"why {after.value} {HOSTILE}")
        move_transfers(site.ledger, [move], StageoutComponent.PERSON, now=NOW + timedelta(minutes=minutes))
    page = ann(f"transfer?id={number}")
    assert "1 500 bytes" in page
    assert page.index("why killed") < page.rindex("why new")
    assert page.count("1 min 00 s") == 2
    assert HOSTILE not in page
    for wrong in ("transfer", "transfer?id=0", "transfer?id=x", "transfer?id=999"):
        ann(wrong, 400)


def test_an_empty_ledger_is_said_and_a_choice_that_cannot_be_is_refused(olga: Viewer) -> None:
    page = olga.whole("transfers")
    assert "There is no such transfer that is not archived." in page
    assert "There is no such transfer.</p>" in page
    assert "The last census found nothing" in page
    for query in ("state=lost", "archived=maybe", "name=/a", "job=7", "after=x", f"user={'x' * 2000}"):
        olga(f"transfers?{query}", 400)


@pytest.mark.parametrize(
    ("query", "killed", "resubmitted", "kept"),
    [("user=ann", [0, 1], [2], [0, 1, 2]), ("state=new", [0, 1], None, [0, 1]),
     ("state=failed,new&site=bari", [0, 1], [2], [0, 1, 2]), ("failure=quota", [], [2], [2]),
     ("state=cleaned", None, None, None), ("", None, None, None)],
)  # fmt: skip
def test_buttons_change_what_the_list_shows_and_can_be_changed(
    site: Site, ann: Viewer, query: str, killed: list[int] | None, resubmitted: list[int] | None, kept: list[int] | None
) -> None:
    ids = recorded(site.ledger, 4, owner="ann")
    recorded(site.ledger, 2, owner="bob")
    moved(site, ids[2:3], FAILED, failure="quota")
    moved(site, ids[3:], CLEANED)
    page = ann(f"transfers?{query}")
    found = dict(re.findall(r'<form class="change" action="([^"]+)".*?data-list="([^"]+)"', page, re.DOTALL))
    expected = {"kill": killed, "resubmit": resubmitted, "keep": kept}
    api = TestClient(create_api(stageout_user, lambda: site), base_url="http://127.0.0.1")
    for verb, chosen in expected.items():
        call = found.pop(f"stageout/v1/transfers/{verb}", None)
        if chosen is None:
            assert call is None
            continue
        path = f"{PREFIX}/{html.unescape(call or '')}".removeprefix(STAGEOUT_API)
        answer = api.get(path, headers={"authorization": "Bearer ann"}).json()
        assert sorted(row["id"] for row in answer["rows"]) == [ids[number] for number in chosen]
    assert not found


def test_a_workflow_shows_its_progress_what_keeps_it_and_what_helps(site: Site, ann: Viewer, olga: Viewer) -> None:
    query = "transfers?user=ann&workflow=workflow"
    now = datetime.now(UTC)
    ids = recorded(site.ledger, 10, owner="ann", dataset="/a/b/USER")
    others = recorded(site.ledger, 5, owner="bob")
    page = ann.whole(query)
    assert "0 of 10 files are complete" in page
    assert "the end is unknown" in page
    assert "What waits or failed" not in page
    moved(site, ids[:2], CLEANED, at=now - timedelta(minutes=5))
    moved(site, [*ids[2:3], *others], CLEANED, at=now - timedelta(hours=5))
    moved(site, ids[3:6], FAILED, failure="quota")
    moved(site, ids[6:7], TransferState.NEEDS_CREDENTIAL, failure="credential")
    archive_transfers(site.ledger, CLEANED, before=now - timedelta(hours=4), limit=10)
    values = transfers_rows.ended_lately(site.ledger, "ann", "workflow", now=now)
    assert values == (2, transfers_rows.LATELY)
    files, within = transfers_rows.ended_lately(site.ledger, "ann", "workflow", now=now, limit=2)
    assert (files, within) == (2, timedelta(minutes=5))
    progress = view.progress_of(
        {CLEANED: 3, FAILED: 3, NEW: 3, TransferState.NEEDS_CREDENTIAL: 1}, 2, timedelta(minutes=15)
    )
    assert (progress.files, progress.left, progress.left_s) == (10, 3, 1350.0)
    groups = transfers_rows.waiting_groups(site.ledger, "ann", "workflow")
    assert [(group.failure, group.files) for group in groups] == [("quota", 3), ("credential", 1)]
    assert transfers_rows.waiting_groups(site.ledger, "bob", "workflow") == []
    page = olga.whole(query)  # of another, so that nothing is remembered
    assert HOSTILE not in page
    assert "copies?user=ann&amp;workflow=workflow&amp;format=urls" in page
    whole = ann(f"transfer?id={ids[3]}")
    assert "Delete files of yours" in whole
    assert "not registered yet" in whole
    assert "<dt>Copy</dt>" in ann(f"transfer?id={ids[0]}")


def test_who_may_only_look_and_a_transfer_that_is_archived_have_no_buttons(
    site: Site, anybody: TestClient, ann: Viewer
) -> None:
    (number,) = recorded(site.ledger, 1, owner=VIEWER)
    vera = Viewer(anybody, VIEWER)
    for page in (vera(f"transfer?id={number}"), vera("transfers?state=new")):
        assert f"{number}" in page
        assert 'class="change"' not in page
    (number,) = recorded(site.ledger, 1, owner="ann")
    assert f'data-id="{number}"' in ann(f"transfer?id={number}")
    moved(site, [number], FAILED)
    archive_transfers(site.ledger, FAILED, before=NOW + timedelta(hours=1), limit=10)
    assert 'class="change"' not in ann(f"transfer?id={number}")


def test_hours_and_days_are_counted_by_the_end_of_transfers(site: Site) -> None:
    now = datetime(2026, 11, 23, 12, 30, tzinfo=UTC)
    ids = recorded(site.ledger, 6, owner="ann")
    moved(site, ids[:2], CLEANED, at=now - timedelta(minutes=5))
    moved(site, ids[2:3], TransferState.KEPT, at=now - timedelta(hours=2))
    moved(site, ids[3:4], FAILED, at=now - timedelta(hours=2))
    moved(site, ids[4:5], CLEANED, at=now - timedelta(hours=30))
    for owner, expected in ((None, [(1, 1), (0, 0), (2, 0)]), ("ann", [(1, 1), (0, 0), (2, 0)]), ("bob", [(0, 0)] * 3)):
        found = transfers_rows.hours(site.ledger, RememberedCounts(), owner, now=now, count=3)
        assert [(hour.complete, hour.failed) for hour in found] == expected
    sums = {
        "owner": "ann", "workflow": "w", "source": "pisa", "destination": "bari", "bytes": 10, "retries": 0,
        "waited_s": 0, "copied_s": 0, "verified_s": 0, "ended_s": 0, "day": now.replace(hour=0, minute=0),
    }  # fmt: skip
    days = [{**sums, "digest": str(number), "state": state, "files": files}
            for number, (state, files) in enumerate([("cleaned", 7), ("kept", 1), ("failed", 2)])]  # fmt: skip
    writing(site.ledger, lambda connection: connection.execute(insert(stageout_analytics), days))
    (day,) = transfers_rows.days(site.ledger, None, now=now)
    assert (day.complete, day.failed, day.bytes) == (8, 2, 20)
    assert transfers_rows.days(site.ledger, "bob", now=now) == ()


def test_what_is_held_of_a_user_is_looked_for_in_own_queues(site: Site) -> None:
    ids = [*recorded(site.ledger, 2, owner="ann"), *recorded(site.ledger, 2, source="bari", destination="pisa")]
    put_in(site.ledger, ids[1:3], NEW, NOW, reason="held: a storage is banned")
    recorded(site.ledger, 1, owner="bob")
    plans = []

    @event.listens_for(site.ledger, "before_cursor_execute")
    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT stageout_transfers.reason"):
            plans.append(str(connection.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()))

    assert transfers_rows.held(site.ledger, "ann") == [("held: a storage is banned", 2)]
    event.remove(site.ledger, "before_cursor_execute", explain)
    assert plans
    assert all("(state=? AND queue=?)" in plan for plan in plans), plans
    assert transfers_rows.held(site.ledger, "bob") == []


def test_analytics_have_times_until_registration_and_hide_what_belongs_to_others(
    site: Site, olga: Viewer, ann: Viewer
) -> None:
    day = "2026-11-23"
    for owner, minutes, files in (("ann", 1, 3), ("ann", 40, 1), ("bob", 90, 2)):
        ids = recorded(site.ledger, files, owner=owner, now=NOW, size=1000)
        done, ended = NOW + timedelta(minutes=minutes), NOW + timedelta(minutes=minutes + 1)
        put_in(site.ledger, ids, TransferState.COPIED, NOW)
        moves = [TransferMove(number, TransferState.COPIED, TransferState.DONE, "it is whole") for number in ids]
        move_transfers(site.ledger, moves, StageoutComponent.REPORTER, now=done)
        put_in(site.ledger, ids, CLEANED, ended)
        archive_transfers(site.ledger, CLEANED, before=ended + timedelta(hours=1), limit=10)
    failed = recorded(site.ledger, 1, owner="bob", now=NOW)
    put_in(site.ledger, failed, FAILED, NOW, failure="quota")
    archive_transfers(site.ledger, FAILED, before=NOW + timedelta(hours=1), limit=10)

    page = olga.whole(f"analytics?since={day}&until={day}")
    rows = [
        [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr><th scope=\"row\">.*?</tr>", page, re.DOTALL)
    ]
    table = {row[0]: row[1:] for row in rows}
    assert table["all"][:4] == ["6", "6.0 kB", "1", "0"]
    assert table["pisa to bari"] == table["all"]
    half, most = table["all"][4:6]
    assert half == "59 s"
    assert most.startswith("1 h ")
    assert table["quota"][0] == "1"
    assert page.count('role="figure"') == 3
    assert "analytics.csv?since=2026-11-23&amp;until=2026-11-24" in page

    own = ann.whole(f"analytics?since={day}&until={day}")
    assert "quota" not in own
    assert "By user" not in own
    assert "bob" not in own
    assert ann("analytics?user=bob", status=400)
    of_ann = olga.whole(f"analytics?user=ann&since={day}&until={day}")
    assert re.findall(r'<th scope="row">([^<]+)</th><td class="n">4</td>', of_ann) == ["all", "pisa to bari", "ann"]
    assert "is archived" in ann.whole("analytics?since=2026-01-01&until=2026-01-02")
    for query in ("since=2026-11-24&until=2026-11-23", "since=2020-01-01", "since=x", "site=nowhere"):
        assert olga(f"analytics?{query}", status=400)


@pytest.mark.parametrize("seconds", [0.2, 1, 59, 3600, 86_400 * 30])
def test_a_percentile_is_right_within_a_tenth(seconds: float) -> None:
    assert percentile_s({bucket_of(seconds): 5}, 0.95) == pytest.approx(max(1.0, seconds), rel=0.1)
    spread = Counter(bucket_of(float(number)) for number in range(1, 1001))
    for share in (0.5, 0.95):
        assert percentile_s(spread, share) == pytest.approx(1000 * share, rel=0.1)
    assert percentile_s({}, 0.5) is None
