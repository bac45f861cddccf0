"""*Publications* over a real ledger."""

from __future__ import annotations

import html
import re

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from include.ledger.engine import writing
from include.nightlies.records.tables import publications
from include.nightlies.rules.publication import Move, Phase
from include.pages import publications_page
from include.site.site import Site
from tests.fakes.site import FQRN
from tests.integration.pages.conftest import DAY, HOSTILE, Night

OTHER = "other.example.org"


class NoRoom(OSError):
    """A failure whose text is hostile."""


def fill(night: Night) -> None:
    """Two runs of three artifacts: published, failed, planned; then the first again."""
    night.listed("A/x86", "B/x86", "C/x86")
    night.published("A/x86", run="d/first")
    night.moved(night.planned("B/x86", "d/first"), Move.failed(Phase.PREPARE, NoRoom(HOSTILE)))
    night.planned("C/x86", "d/first")
    night.published("A/x86", run="d/second")


def names(page: str) -> list[str]:
    history = page.partition("<h2>History</h2>")[2]
    return re.findall(r'<th scope="row">([^<]+)</th>', history)


def test_rows_lead_to_log_artifact_run_night_and_provenance(client: TestClient, night: Night) -> None:
    empty = client.get("/publications").text
    assert "The ledger has no such publication" in empty
    assert "By day" not in empty
    fill(night)
    page = client.get("/publications").text
    assert names(page) == ["A/x86", "C/x86", "B/x86", "A/x86"]
    assert 'href="../dags/d/runs/second/tasks/artifact.publish/mapped/3?try_number=1" target="_top"' in page
    assert 'href="https://builds.example.org/0.tar" target="_top"' in page
    assert 'href="../dags/d/runs/first" target="_top"' in page
    assert f'href="nights?slot=main&amp;date={DAY}"' in page
    assert f'href="provenance?repository={FQRN}&amp;path=%2Fnightlies%2Fmain%2F{DAY}%2FA%2Fx86"' in page
    # what failed is escaped and counted by its class
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    link = re.search(r'href="(publications\?state=failed[^"]+)" id="code-1">([^<]+)</a></th>', page)
    assert link is not None
    assert names(client.get(f"/{html.unescape(link[1])}").text) == ["B/x86"]


def test_the_history_is_narrowed_and_a_choice_that_is_not_known_is_refused(client: TestClient, night: Night) -> None:
    fill(night)
    for query, expected in (
        (f"repository={FQRN}", ["A/x86", "C/x86", "B/x86", "A/x86"]),
        ("state=published", ["A/x86", "A/x86"]),
        (f"repository={FQRN}&state=planned", ["C/x86"]),
        ("state=unchanged", []),
        ("code=unheard-of", []),
    ):
        assert names(client.get(f"/publications?{query}").text) == expected, query
    for query in ("repository=unknown", "state=lost", "below=-1", "below=x"):
        assert client.get(f"/publications?{query}").status_code == 400


def test_the_history_goes_on_where_a_page_of_it_ended(
    client: TestClient, night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publications_page, "PAGE", 3)
    night.listed("A/x86")
    for number in range(7):
        night.published("A/x86", run=f"d/run{number}")
    for query in ("", "state=published", f"repository={FQRN}"):
        url, runs, pages = f"publications?{query}", [], 0
        while url:
            page = client.get(f"/{url}").text
            runs += re.findall(r'href="\.\./dags/d/runs/(run\d)" target', page)
            older = re.search(r'<a href="([^"]+)" rel="next"', page)
            url, pages = html.unescape(older[1]) if older else "", pages + 1
        assert (runs, pages) == ([f"run{number}" for number in range(6, -1, -1)], 3), query


def test_figures_are_of_the_newest_and_of_the_chosen_repository(site: Site, client: TestClient, night: Night) -> None:
    fill(night)
    assert len(publications_page.newest_figures(site.ledger, None, limit=2)) == 2
    assert len(publications_page.newest_figures(site.ledger, FQRN)) == 4
    assert publications_page.newest_figures(site.ledger, OTHER) == []
    page = client.get("/publications").text
    assert "Figures of the newest 4 publications" in page
    assert '<td class="n">1.500</td>' in page  # the mean time of `prepare`
    # what is not of a night is shown with its path
    writing(site.ledger, lambda connection: connection.execute(update(publications).values(artifact=None)))
    assert names(client.get("/publications?state=planned").text) == [f"/nightlies/main/{DAY}/C/x86"]
