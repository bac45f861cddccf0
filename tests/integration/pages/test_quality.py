"""A build that the quality gate keeps back: on its page, in the list and in the summary, in the same words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from include.cli.nightly import app
from include.cli.repository.open import open_site as of_environment
from include.ledger.engine import reading
from include.monitoring.metrics import of_nights
from include.monitoring.render import read_summary
from include.monitoring.summary import NightState
from include.nightlies.records import links, quality
from include.nightlies.records.links import LinkRecord
from include.nightlies.records.quality import QualityRecord, QualityVerdict
from include.nightlies.rules.publication import Move, Phase, State
from include.pages.nights_rows import kept_back, newest_builds, verdicts
from include.quality.results import folder_of_run, write_docs
from include.settings.prepare import Suite
from include.site.site import Site
from tests.fakes.site import FQRN
from tests.integration.pages.conftest import DAY, NOW, RUN, Night

FAULT = "A/x86: 1 empty libraries: lib/<b>.so"


@pytest.fixture
def site(site: Site, tmp_path: Path) -> Iterator[Site]:
    file = tmp_path / "site.yaml"
    file.write_text(
        file.read_text().replace("store: files, schedule", "quality: {growth: warn}, store: files, schedule")
    )
    site.ledger.dispose()
    found = of_environment()
    assert found.settings.slot("main").quality is not None
    yield found
    found.ledger.dispose()


def judged(site: Site, suite: Suite, day: date = DAY, verdict: QualityVerdict = QualityVerdict.BLOCKED) -> None:
    found = QualityRecord(
        RUN, suite, "main", f"b{day:%d}", verdict, FAULT, "", 2, NOW, day, (FAULT, "B/x86: its tree holds no file")
    )  # fmt: skip
    quality.record(site.ledger, found)


def page(client: TestClient, query: str) -> str:
    return cast("str", client.get(f"/nights?{query}").text)


def test_a_blocked_build_has_a_red_head_its_rows_and_what_to_do(client: TestClient, site: Site, night: Night) -> None:
    night.listed("A/x86", "B/x86")
    for name in ("A/x86", "B/x86"):
        night.published(name)
    assert '<span class="good" title="All that is required is there.">whole</span>' in page(client, "")
    assert CliRunner().invoke(app, ["summary", "--slot", "main", "--date", str(DAY)]).exit_code == 0

    judged(site, Suite.PUBLISHED)
    whole = page(client, f"slot=main&date={DAY}")
    assert '<span class="bad">blocked by quality</span>' in whole
    assert "All that is required is there" not in whole
    for text in ("lib/&lt;b&gt;.so", "B/x86: its tree holds no file", "start?action=accept&amp;slot=main", RUN):
        assert text in whole, text
    assert "not kept on this machine" in whole
    folder = folder_of_run(site.settings.paths.var, "main", RUN)
    write_docs(folder, {Suite.PUBLISHED: "<p>found</p>"}, quality.of_run(site.ledger, RUN).values(), keep=2)
    link = f"quality/main/{folder.name}/index.html"
    assert f'href="{link}"' in page(client, f"slot=main&date={DAY}")
    assert client.get(f"/{link}").status_code == 200
    assert '<span class="bad" title="The quality gate keeps build b21 back' in page(client, "")
    done = CliRunner().invoke(app, ["summary", "--slot", "main", "--date", str(DAY)])
    assert (done.exit_code, "B/x86: its tree holds no file" in done.output) == (1, True)

    judged(site, Suite.PUBLISHED, verdict=QualityVerdict.ACCEPTED)
    assert '<span class="good">whole</span>' in page(client, f"slot=main&date={DAY}")


def test_a_blocked_index_is_in_the_list_and_no_build_that_never_arrived(
    client: TestClient, site: Site, night: Night
) -> None:
    day = date(2026, 11, 22)
    night.listed("A/x86")
    night.published("A/x86")
    judged(site, Suite.INDEX, day)
    listed = page(client, "slot=main")
    assert listed.index("b22") < listed.index("b21")
    assert '<span class="bad">blocked</span>' in listed
    whole = page(client, f"slot=main&date={day}")
    assert "the quality gate blocks the index of build b22; nothing of it is taken" in whole
    assert "never arrived" not in whole
    assert "Its index lists nothing" not in whole
    assert "No build of this date" not in whole
    assert "The quality gate ended each run before it took an artifact." in whole


def test_a_run_that_only_judged_leads_to_its_night(client: TestClient, site: Site) -> None:
    judged(site, Suite.INDEX)
    assert "blocked by quality" in page(client, f"run={RUN.replace('+', '%2B')}")


def test_the_list_has_the_verdicts_of_the_summaries(site: Site) -> None:
    first = Night(site, day=date(2026, 11, 10))
    first.listed("A/x86", "B/x86")
    first.published("A/x86")
    first.published("B/x86")
    lost = Night(site, day=date(2026, 11, 11))
    lost.listed("A/x86")
    lost.published("A/x86")
    failed = Night(site, day=date(2026, 11, 12))
    failed.listed("A/x86")
    failed.moved(failed.planned("A/x86"), Move(State.FAILED, Phase.PREPARE, "why"))
    Night(site, day=date(2026, 11, 13)).listed("A/x86")
    early = Night(site, day=date(2026, 11, 14))
    early.listed("A/x86", complete=False)
    early.published("A/x86")
    judged(site, Suite.INDEX, date(2026, 11, 15))
    slots = site.settings.slots
    shown = kept_back(site.ledger, slots, newest_builds(site.ledger), after=None, more=False)
    found = verdicts(site.ledger, slots, shown)
    assert {day: verdict.state for (_, day), verdict in found.items()} == {
        date(2026, 11, 10): NightState.WHOLE,
        date(2026, 11, 11): NightState.INCOMPLETE,
        date(2026, 11, 12): NightState.INCOMPLETE,
        date(2026, 11, 13): NightState.OPEN,
        date(2026, 11, 14): NightState.OPEN,
        date(2026, 11, 15): NightState.BLOCKED,
    }
    for (slot, day), verdict in found.items():
        assert verdict == read_summary(site.ledger, slots[slot], day, now=NOW).verdict


def test_the_figures_have_the_newest_night_the_age_of_its_links_and_the_last_verdicts(site: Site, night: Night) -> None:
    Night(site, day=DAY - timedelta(days=1)).listed("A/x86", "B/x86", "C/x86", "D/x86")
    night.listed("A/x86", "B/x86", "C/x86")
    night.published("A/x86", run="d/first")
    night.moved(night.planned("A/x86", run="d/again"), Move(State.FAILED, Phase.PREPARE, "no"))
    night.published("B/x86")
    latest = LinkRecord("link", FQRN, "/nightlies/main/latest", "main", "b19", DAY, "moved", "whole", "d/r1", 7, NOW)
    links.record(site.ledger, [latest, replace(latest, build_date=DAY - timedelta(days=2))])
    links.record(site.ledger, [replace(latest, build_id="b21", build_date=DAY, state="stayed")])
    suite = next(iter(Suite))
    judged(site, suite)
    judged(site, suite, verdict=QualityVerdict.PASSED, day=DAY + timedelta(days=1))
    with reading(site.ledger) as connection:
        metrics = list(of_nights(connection, site.settings.slots, NOW + timedelta(days=3)))
    values = {
        (sample.name.removeprefix("nightshift_"), *sample.labels.values()): sample.value
        for metric in metrics for sample in metric.samples
    }  # fmt: skip
    days = 86_400.0
    assert values == {
        ("night_artifacts", "main", "failed"): 1, ("night_artifacts", "main", "published"): 1,
        ("night_artifacts", "main", "not begun"): 1, ("night_build_age_seconds", "main"): 3 * days,
        ("link_build_age_seconds", "main", latest.path): 3 * days,
        ("quality_verdict", "main", suite.value, "passed"): 1,
    }  # fmt: skip


def test_the_calendar_has_the_verdict_of_each_night_and_leads_to_it(client: TestClient, site: Site) -> None:
    today = datetime.now(UTC).date()
    whole, open_ = Night(site, day=today - timedelta(days=2)), Night(site, day=today)
    whole.listed("A/x86")
    whole.published("A/x86")
    open_.listed("A/x86", "B/x86")
    open_.planned("A/x86")
    Night(site, day=today - timedelta(days=40)).listed("A/x86")
    judged(site, next(iter(Suite)), day=today - timedelta(days=1))
    for query in ("", "slot=main"):
        shown = next(text for text in (page(client, query) for _ in range(600)) if "no answer yet" not in text)
        labels = dict(re.findall(r'href="(nights[^"]+)" title="[^"]+" aria-label="main ([^"]+)"', shown))
        assert sorted(labels.values()) == [
            f"{today - timedelta(days=2)}: whole", f"{today - timedelta(days=1)}: blocked by quality", f"{today}: open",
        ]  # fmt: skip
        assert all(f"date={label[:10]}" in href for href, label in labels.items())
