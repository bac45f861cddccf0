"""*Repositories* over a real ledger, store and gateway."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from include.cvmfs.collect.report import CollectionReport
from include.nightlies.records import links as linked
from include.nightlies.records.damage import note_collection
from include.nightlies.records.links import TAG, LinkRecord
from include.pages import repositories_page
from include.provenance.records import ChangeKind, begun, note
from include.replicas.look import record
from include.replicas.states import ReplicaLook, ReplicaState
from include.site.site import Site
from tests.fakes.site import FQRN
from tests.integration.cli.conftest import Commands
from tests.integration.pages.conftest import DAY, HOSTILE, NOW, RUN, Night


def changed(site: Site, revision: int, path: str = "/a", **more: Any) -> None:
    """A revision changed a path."""
    at = NOW + timedelta(hours=revision)
    one = begun(site, FQRN, revision=revision, run_id=RUN, holder=f"{RUN}/links try 1", at=at)
    note(site, replace(one, path=path, **more))


def collected(site: Site, *, deleted: int, hour: int) -> None:
    """A collection ended."""
    report = CollectionReport(FQRN, number=hour)
    report.ended, report.objects_kept, report.deleted, report.once = NOW.replace(hour=hour), 1200, deleted, 7
    note_collection(site.ledger, report, now=NOW)


def answered(client: TestClient, url: str = "/repositories") -> str:
    """The page once the store has answered."""
    for _ in range(200):
        repositories_page = client.get(url).text
        if "has not answered yet" not in repositories_page:
            return repositories_page
    raise AssertionError("the store did not answer")


def figures(repositories_page: str) -> list[Any]:
    return [json.loads(html.unescape(one)) for one in re.findall(r'data-figure="([^"]+)"', repositories_page)]


def test_a_new_repository_shows_what_its_store_has(client: TestClient) -> None:
    repositories_page = answered(client)
    assert f"Repository {FQRN}" in repositories_page
    assert re.search(r"<dd>\d+ in the store; none by the ledger", repositories_page)
    assert re.search(r"<dt>Size</dt><dd>\d+ files, ", repositories_page)
    assert re.search(r'<span class="good">ends <time', repositories_page)
    assert "No lease is open" in repositories_page
    for said in ("no revision of it", "no artifact that was published", "no tag of it", "No collection of it"):
        assert said in repositories_page
    assert figures(repositories_page) == []


def test_a_store_that_is_away_leaves_what_the_ledger_has(client: TestClient, site: Site) -> None:
    changed(site, 41)
    settings = site.settings.stores["files"]
    vars(site.settings)["stores"]["files"] = settings.model_copy(update={"url": "http://127.0.0.1:9"})
    repositories_page = answered(client)
    assert "The store cannot be reached: " in repositories_page
    assert "unknown in the store; 41 by the ledger" in repositories_page


def test_a_whitelist_that_has_ended_is_said(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(days=4000)

    monkeypatch.setattr("include.pages.app.datetime", Later)
    assert "Readers refuse what the store has: " in answered(client)


def test_revisions_lead_to_their_run_its_log_and_their_path(client: TestClient, site: Site, night: Night) -> None:
    night.listed("A/x86")
    night.published("A/x86")
    changed(site, 6)
    changed(site, 7, "/nightlies/main/latest", kind=ChangeKind.LINK, leads_to="b")
    changed(site, 7, "/nightlies/main/b")
    repositories_page = answered(client)
    assert "1 tree, 1 link" in repositories_page
    run = "../dags/nightly_install_main/runs/scheduled__2026-11-21T02%3A00%3A00%2B00%3A00"
    assert f'href="{run}/tasks/links?try_number=1" target="_top"' in repositories_page
    assert f'href="provenance?repository={FQRN}&amp;path=%2Fnightlies%2Fmain%2Fb"' in repositories_page
    revisions, sizes = figures(repositories_page)
    assert revisions["data"][0]["y"] == [6, 7]
    assert sizes["data"][0]["x"] == [f"{DAY}"]


def test_points_of_many_revisions_are_evenly_spaced_and_end_with_the_newest(site: Site) -> None:
    for revision in range(3, 24):
        changed(site, revision)
    assert [revision for _, revision in repositories_page.revisions_over_time(site.ledger, FQRN, points=7)] == list(
        range(5, 24, 3)
    )
    assert len(repositories_page.revisions_over_time(site.ledger, FQRN)) == 21


def test_the_size_over_time_is_that_of_the_revisions_in_the_store(
    client: TestClient, site: Site, repo: Commands
) -> None:
    roots = []
    for number in (1, 2):
        repo("publish", FQRN, f"/size/{number}", repo.tree(f"size-{number}", file="x" * 1000 * number))
        head = site.head(FQRN).manifest
        roots.append(head)
        changed(site, head.revision, f"/size/{number}", root_hash=str(head.root))
    changed(site, roots[-1].revision + 1, "/collected", root_hash="0" * 40)
    changed(site, roots[-1].revision + 2, "/link", kind=ChangeKind.LINK)
    sizes = repositories_page.sizes_over_time(site, FQRN)
    assert [size.revision for size in sizes] == [head.revision for head in roots]
    assert sizes[1].bytes - sizes[0].bytes == 2000
    assert (sizes[1].files - sizes[0].files, sizes[0].catalogs > 1) == (2, True), "with the mark of its catalog"
    page = next(text for _ in range(200) if "Size of 2 revisions" in (text := client.get("/repositories").text))
    (growth,) = [figure for figure in figures(page) if figure["data"][0]["name"] == "size"]
    assert growth["data"][0]["y"] == [size.bytes for size in sizes]
    assert "+2.0 kB" in page


def test_collections_tags_and_replicas_are_shown(client: TestClient, site: Site) -> None:
    collected(site, deleted=5, hour=1)
    collected(site, deleted=31, hour=2)
    made = LinkRecord(TAG, FQRN, "main-1", "main", "b1", DAY, "moved", "the build is whole", RUN, 9, NOW)
    linked.record(site.ledger, [made, replace(made, state="removed", reason=HOSTILE, run_id="d/later")])
    repositories_page = answered(client)
    assert "31 objects deleted" in repositories_page
    assert "1 200 were kept by the last collection" in repositories_page
    assert HOSTILE not in repositories_page
    assert html.escape(HOSTILE, quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in repositories_page
    assert "the build is whole" not in repositories_page  # only the last decision of a tag
    assert figures(repositories_page)[-1]["data"][2]["y"] == [5, 31]


def test_of_replicas_only_those_that_are_configured_are_shown_and_of_repositories_all(
    client: TestClient, site: Site
) -> None:
    look = ReplicaLook(
        repository=FQRN, replica="gone", url="http://r", state=ReplicaState.BEHIND, reason="revision 3", looked_at=NOW,
        state_since=NOW, head_revision=9, revision=3, behind_since=NOW - timedelta(hours=2),
    )  # fmt: skip
    record(site.ledger, [look])
    assert "The settings name no replica of it" in answered(client)
    vars(site.settings)["repositories"]["b.example.org"] = site.settings.repositories[FQRN]
    changed(site, 12)
    collected(site, deleted=5, hour=1)
    repositories_page = client.get("/repositories").text
    assert f'<a href="repositories?repository={FQRN}">{FQRN}</a></th>\n<td class="n">12</td>' in repositories_page
    assert "<td>never</td>" in repositories_page
    assert client.get("/repositories?repository=unknown").status_code == 400
