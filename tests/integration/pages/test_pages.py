"""Every route is behind the login; what a page shows is the ledger's, escaped, and asks nobody else."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import update

from include.nightlies.records import builds, links as linked, progress, publications as records
from include.nightlies.records.links import LinkRecord
from include.nightlies.records.publications import publication
from include.nightlies.records.tables import artifacts, publications
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import Figures, Move, Phase, Planned, PublicationKey, State
from include.pages import nights_rows as rows
from include.pages.registry import PAGES
from include.provenance.interventions import freeze
from include.quality.results import folder_of_run
from include.site.site import Site
from tests.fakes.site import FQRN
from tests.integration.cli.conftest import Commands
from tests.integration.pages.conftest import DAY, HOSTILE, NOW, PAUSED, RUN, Night

NIGHT = f"/nights?slot=main&date={DAY}"
FORM = "/start?action=undo&slot=main&build_id=b21&projects=A"


def test_every_route_without_a_login_answers_401(anybody: TestClient) -> None:
    routes = [one for one in anybody.app.routes if isinstance(one, APIRoute)]  # type: ignore[attr-defined]
    assert len(routes) == len(anybody.app.routes) == 2 * len(PAGES) + 4  # type: ignore[attr-defined]
    for route in routes:
        answer = anybody.get(route.path.format(name="shell.js", slot="main", run="0" * 32, campaign="c"))
        assert (answer.status_code, answer.json()) == (401, {"detail": "Not authenticated"}), route.path


def test_a_page_allows_no_script_in_it_and_nothing_from_elsewhere(client: TestClient) -> None:
    answer = client.get("/nights")
    policy = dict(one.strip().split(" ", 1) for one in answer.headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    assert not re.search(r"<script(?![^>]* src=)|<[^>]+ (style|on\w+)=", answer.text)
    # Airflow may have a base path
    assert not re.search(r'(?:href|src|action)="/', answer.text + client.get(NIGHT).text + client.get(FORM).text)
    loaded = re.findall(r'<(?:script|link)[^>]+(?:src|href)="([^"]+)"', answer.text)
    assert [one for one in loaded if not one.startswith(("static/", "data:,"))] == []
    for url in loaded[1:]:
        assert client.get(f"/{url}").status_code == 200


def test_only_plotly_and_files_of_the_pages_are_served(client: TestClient) -> None:
    answer = client.get("/static/plotly.min.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    assert len(answer.content) > 1_000_000
    for name in ("..%2fapp.py", "app.py", "nights.html"):
        assert client.get(f"/static/{name}").status_code == 404


def test_the_data_docs_of_a_run_are_served_and_nothing_beside_them(client: TestClient, site: Site) -> None:
    var = site.settings.paths.var
    folder = folder_of_run(var, "main", RUN)
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("<h1>Quality</h1>")
    (folder / ".index.1").write_text("not whole yet")
    (var / "index.html").write_text("not of a run")
    (folder / "night.html").symlink_to(var / "index.html")
    answer = client.get(f"/quality/main/{folder.name}/index.html")
    assert (answer.status_code, answer.text) == (200, "<h1>Quality</h1>")
    assert answer.headers["content-security-policy"].startswith("default-src 'none';")
    beside = (
        f"main/{folder.name}/.index.1", f"main/{folder.name}/night.html", f"main/{folder.name}/growth.html",
        f"main/{folder.name}%00/index.html", "main/../index.html", "main/..%2f..%2f/index.html",
        "%2e%2e/%2e%2e/index.html", f"../quality/{folder.name}/index.html", f"unknown/{folder.name}/index.html",
    )  # fmt: skip
    assert {client.get(f"/quality/{path}").status_code for path in beside} == {404}


def test_the_list_goes_on_where_a_page_of_it_ended(client: TestClient, site: Site) -> None:
    for number in range(1, 24):
        Night(site, day=DAY.replace(month=10, day=number)).listed("A/x86")
    first = client.get("/nights").text
    older = re.search(r'href="([^"]+)" rel="next"', first)
    assert older is not None
    second = client.get("/" + older[1].replace("&amp;", "&")).text
    dates = [re.findall(r'<th scope="row"><a [^>]+>([\d-]+)', page) for page in (first, second)]
    assert [len(one) for one in dates] == [20, 3]
    assert sorted(dates[0] + dates[1]) == [f"2026-10-{number:02}" for number in range(1, 24)]


def test_a_night_is_in_the_list_and_its_cells_link_to_log_artifact_and_provenance(
    client: TestClient, night: Night
) -> None:
    assert "The ledger has no build" in client.get("/nights").text
    assert "No build of this date is known" in client.get(NIGHT).text
    night.listed("A/x86", "B/x86")
    night.published("A/x86")
    page = client.get("/nights").text
    assert f'href="nights?slot=main&amp;date={DAY}"' in page
    assert '<th scope="col" class="n">published</th>' in page
    page = client.get(NIGHT).text
    run = "../dags/nightly_install_main/runs/scheduled__2026-11-21T02%3A00%3A00%2B00%3A00"
    assert f'href="{run}/tasks/artifact.publish/mapped/3?try_number=1" target="_top"' in page
    assert 'href="https://builds.example.org/0.tar" target="_top"' in page
    assert "provenance?repository=" in page
    assert "7 files, 2.5 MB" in page
    assert "1 of 2 artifacts have ended" in page
    assert "listed, and no run has taken it yet" in page
    night.moved(night.planned("B/x86"), Move.failed(Phase.PREPARE, ValueError("no room on the disk")))
    page = client.get(NIGHT).text
    assert '<span class="bad">failed</span>' in page
    assert "no room on the disk" in page
    # the same as a tab of its run
    assert f"Night of main, {DAY}" in client.get("/nights", params={"run": RUN}).text
    assert "has not recorded an artifact" in client.get("/nights", params={"run": "leases/x"}).text


def test_a_running_preparation_shows_how_far_it_is(client: TestClient, site: Site, night: Night) -> None:
    before = Night(site, day=DAY.replace(day=20))
    before.listed("A/x86")
    before.published("A/x86", run="d/before")
    night.listed("A/x86")
    key = night.planned("A/x86")
    night.moved(key, Move(State.PREPARING, Phase.PREPARE, "try 1"))
    page = client.get(NIGHT).text
    assert '<span class="busy">preparing</span>' in page
    found = publication(site.ledger, key)
    assert found is not None
    seen = progress.NotedProgress(found.id, 1, NOW, 1234, 1_000_000, 500, NOW.replace(second=30))
    progress.note(site.ledger, seen)
    page = client.get(NIGHT).text
    assert "1 234 files, 1.0 MB read, about 45 s left" in page
    assert '<progress max="1" value="0.400"' in page


def test_a_night_begins_with_its_states_and_its_timeline(client: TestClient, site: Site, night: Night) -> None:
    night.listed("A/x86", "B/x86", "C/x86")
    key = night.published("A/x86")
    night.moved(night.planned("B/x86"), Move.failed(Phase.PREPARE, ValueError("no room")))
    page = client.get(NIGHT).text
    assert 'aria-label="A/x86: published"' in page
    assert re.search(r'<a class="bad" href="#b21--B--x86" aria-label="B/x86: failed"', page)
    assert 'id="b21--B--x86"' in page
    assert re.search(r'<span class="bad">\N{BALLOT X}</span> 1 failed', page)
    (figure,) = [json.loads(html.unescape(text)) for text in re.findall(r'data-figure="([^"]+)"', page)]
    names = [trace["name"] for trace in figure["data"]]
    assert "publish" not in names, "the run recorded no length of it"
    row = publication(site.ledger, key)
    assert row is not None
    with site.ledger.begin() as connection:
        values = {"changeset": "c" * 64, "seconds": {"prepare": 30.0, "commit": 2.0}, "lease_held_s": 1.5}
        connection.execute(update(publications).where(publications.c.id == row.id).values(**values))
    made = builds.ChangesetRecord("c" * 64, FQRN, "/a", "a" * 64, "0" * 40, 0, None, "{}", NOW + timedelta(seconds=30))
    builds.save_changeset(site.ledger, made)
    page = client.get(NIGHT).text
    (figure,) = [json.loads(html.unescape(text)) for text in re.findall(r'data-figure="([^"]+)"', page)]
    assert {trace["name"] for trace in figure["data"]} == {"waits", "prepare", "publish", "not recorded", "lease"}
    assert re.search(r'A/x86</th><td><time[^>]+>03:00:00</time></td>\s*<td class="n">\s*208.0 s', page)


def test_the_end_of_a_night_is_expected_by_the_nights_before_it(client: TestClient, site: Site, night: Night) -> None:
    night.listed("A/x86", "B/x86")
    night.published("A/x86")
    for number in (1, 2):
        before = Night(site, day=DAY - timedelta(days=number))
        before.listed("A/x86", "B/x86")
        before.published("A/x86", run=f"d/{number}")
        before.moved(
            before.planned("B/x86", f"d/{number}"), Move.failed(Phase.PREPARE, ValueError("no room")), minutes=20
        )
        again = before.planned("B/x86", f"d/again-{number}")
        before.moved(again, Move.failed(Phase.PREPARE, ValueError("no room")), minutes=40)
    assert rows.earlier_courses(site.ledger, "main", DAY) == [[240.0, 1200.0], [240.0, 1200.0]]
    page = next(text for _ in range(100) if "night-expected" in (text := client.get(NIGHT).text))
    assert "as in the last 2 nights of the slot" in page


def test_two_builds_are_compared_by_artifacts_sizes_and_files(
    client: TestClient, site: Site, night: Night, repo: Commands
) -> None:
    before = Night(site, day=DAY - timedelta(days=1))
    before.listed("A/x86", "B/x86", "D/x86", "same/x86")
    night.listed("C/x86", "A/x86", "D/x86", "same/x86")
    for day, project in product((before, night), "AD"):
        build = builds.build(site.ledger, "main", f"b{day.day:%d}")
        assert build is not None
        record = build.artifact(project, "x86")
        assert record is not None
        with site.ledger.begin() as connection:
            values = {"sha256": f"{day.day:%d}" * 32}
            connection.execute(update(artifacts).where(artifacts.c.id == record.id).values(**values))
        folder = repo.tree(str(day.day), **{"only": "x", f"at-{day.day}": "y", "text": str(day.day)})
        key = PublicationKey(FQRN, f"/nightlies/main/{day.day}/{project}/x86", f"d/{day.day}")
        if (project, day) != ("D", before):
            repo("publish", FQRN, key.destination, folder)
        records.plan(site.ledger, key, Planned(record.id, f"{day.day:%d}" * 32), try_number=1, now=NOW)
        figures = Figures(files=3, bytes=1000 * day.day.day * (project == "A"))
        unchanged = Move(State.UNCHANGED, Phase.PREPARE, "is there", figures)
        day.moved(key, Move(State.PREPARING, Phase.PREPARE, "try 1"), unchanged)
    link = re.search(r'id="night-compare" href="([^"#]+)', client.get(NIGHT).text)
    assert link is not None
    url = f"/{html.unescape(link[1])}"
    page = client.get(url).text
    table = page.partition('aria-label="Difference of two builds"')[2].partition("</table>")[0]
    shown = [re.sub(r"<[^>]+>|\s+", " ", row).split()[:3] for row in table.split("<tr>")[2:]]
    assert shown == [
        ["A/x86", "~", "changed"],
        ["B/x86", "\N{MINUS SIGN}", "gone"],
        ["C/x86", "+", "new"],
        ["D/x86", "~", "changed"],
    ]
    assert "20.0 kB before, 21.0 kB now. 1 artifacts are the same" in page
    assert "+1.0 kB" in table
    page = next(text for _ in range(200) if "no answer yet" not in (text := client.get(f"{url}&files=A/x86").text))
    assert re.search(r"</span> 1 added, .* 1 changed, .* 1 removed", page)
    assert f"<code>+ /at-{DAY}</code>" in page
    page = next(text for _ in range(200) if "no answer yet" not in (text := client.get(f"{url}&files=D/x86").text))
    assert f"/nightlies/main/{before.day}/D/x86 is not in the repository any more" in page
    answer = client.get(f"{NIGHT}&compare={HOSTILE}")
    assert (answer.status_code, "parameter compare" in answer.text) == (400, True)


def test_news_are_the_part_that_changes_and_come_only_when_it_did(client: TestClient, night: Night) -> None:
    night.listed("A/x86")
    url = f"/nights/live?slot=main&date={DAY}"
    first = client.get(url)
    assert "<html" not in first.text
    assert first.text.strip() in client.get(NIGHT).text
    again = client.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    night.published("A/x86")
    assert client.get(url, headers={"If-None-Match": first.headers["etag"]}).status_code == 200


def test_a_link_says_where_it_leads_and_why_it_stays(client: TestClient, site: Site, night: Night) -> None:
    night.listed("A/x86")
    latest = "/nightlies/main/latest"
    known = LinkRecord("link", FQRN, latest, "main", "b20", DAY.replace(day=20), "moved", "whole", "d/r1", 7, NOW)
    later = replace(known, build_id="b21", build_date=DAY, state="stayed", reason="B/x86 is missing", run_id="d/r2")
    linked.record(site.ledger, [known, later])
    page = client.get(NIGHT).text
    assert re.search(rf'<th scope="row">{latest}</th><td><a href="[^"]+2026-11-20">b20 of 2026-11-20</a></td>', page)
    assert "stayed (for b21)" in page
    assert "B/x86 is missing" in page
    assert 'href="../dags/d/runs/r2" target="_top"' in page
    linked.record(site.ledger, [replace(known, state="removed", run_id="d/r3")])
    assert re.search(rf'<th scope="row">{latest}</th><td>nothing</td>', client.get(NIGHT).text)


def test_a_freeze_and_an_open_lease_are_shown(client: TestClient, site: Site, night: Night) -> None:
    night.listed("A/x86")
    holder = f"{RUN}/artifact.publish[3] try 1"
    with site.gateway(FQRN) as gateway:
        lease = gateway.acquire(FQRN, "/nightlies/main", hostname=holder)
        freeze(site, FQRN, reason="a disk is replaced", who="ann", until=None, now=datetime.now(UTC))
        page = client.get(NIGHT).text
        gateway.drop(lease)
    assert '<span class="bad">frozen</span>' in page
    assert "by ann, until it is thawed: a disk is replaced" in page
    assert '<th scope="row">/nightlies/main</th>' in page
    assert "artifact.publish/mapped/3?try_number=1" in page


def test_hostile_names_and_reasons_are_text(client: TestClient, site: Site, night: Night) -> None:
    artifact = Artifact(HOSTILE, "x86", f"javascript:alert(1)//{HOSTILE}", 1, "a" * 64)
    index = BuildIndex("main", f"b{HOSTILE}", DAY, True, (artifact,))
    builds.record_build(site.ledger, index, index_url="u", now=NOW)
    for url in ("/nights", NIGHT, f"/provenance?repository={HOSTILE}&path=/{HOSTILE}", f"/nights?run={HOSTILE}"):
        page = client.get(url).text
        assert "<script>alert" not in page, url
        assert "&lt;script&gt;alert" in page, url
    assert 'href="javascript' not in client.get(NIGHT).text


def test_a_parameter_that_cannot_be_is_refused_by_name(client: TestClient) -> None:
    for url, what in (
        ("/nights?slot=main&date=yesterday", "parameter date"),
        ("/nights?slot=unknown&date=2026-11-21", "parameter slot"),
        ("/nights?until=2026-11-21&below=-1", "parameter below"),
        ("/provenance?repository=r", "parameter path"),
        ("/start?action=drop", "parameter action"),
    ):
        answer = client.get(url)
        assert answer.status_code == 400, url
        assert what in answer.text


def test_a_form_goes_to_airflow_or_says_why_its_run_would_not_begin_and_what_helps(client: TestClient) -> None:
    page = client.get(FORM).text
    assert 'action="../api/v2/dags/undo_build/dagRuns"' in page
    assert 'name="projects" value="A" data-kind="names"' in page
    assert 'name="dry_run" data-kind="boolean" checked' in page
    form = "/start?action=freeze&repository=nights.example.org"
    assert 'id="refusal"' not in client.get(form).text
    PAUSED.add("intervene")  # noted while the form is open: the script asks for the live part before it starts a run
    for page in (client.get(form).text, client.get(form.replace("/start", "/start/live")).text):
        assert 'id="refusal">The DAG intervene is paused, and a run of it would stay queued.' in page
        assert "nightshift dags on intervene" in page
    client.headers["authorization"] = "Bearer a-viewer"
    page = client.get(form).text
    assert "Your role may not start the DAG intervene." in page
    assert "paused" not in page


def test_the_builds_of_one_date_are_listed_the_newest_first_and_each_once(client: TestClient, site: Site) -> None:
    for number in range(1, 24):
        artifact = Artifact("A", "x86", "https://builds.example.org/0.tar", 1000, "a" * 64)
        index = BuildIndex("main", f"b{number:02}", DAY, True, (artifact,))
        builds.record_build(site.ledger, index, index_url="https://builds.example.org/index.json", now=NOW)
    first = client.get("/nights").text
    older = re.search(r'href="([^"]+)" rel="next"', first)
    assert older is not None
    second = client.get("/" + older[1].replace("&amp;", "&")).text
    listed = [build for page in (first, second) for build in re.findall(r'id="build-main-(b\d\d)"', page)]
    assert listed == [f"b{number:02}" for number in range(23, 0, -1)]


def test_a_night_leads_to_those_beside_it(client: TestClient, site: Site) -> None:
    days = [DAY + timedelta(days=number) for number in (-9, -2, 0, 3, 8)]
    for day in days:
        Night(site, day=day).listed("A/x86")
    page = client.get(NIGHT).text
    beside = re.findall(r'href="nights\?slot=main&amp;date=([\d-]+)" rel="(prev|next)"', page)
    assert beside == [(str(days[1]), "prev"), (str(days[3]), "next")]
