"""`nightshift site`, the page *Sites* and the figures of sites: one deployment with two folders as sites."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update
from typer.testing import CliRunner, Result

from include.cli.repository.open import open_site
from include.cli.site import app
from include.federation.records import site_states
from include.ledger.engine import reading
from include.monitoring.metrics import Scrape
from include.pages.app import create_app
from tests.fakes.transfers_site import stageout_user
from tests.integration.cli.conftest import Commands
from tests.integration.pages.conftest import dags

Site = Callable[..., Result]
DATA = bytes(range(256)) * 100
FORGED = "read " + json.dumps(
    {"file": "/store/a", "failed": False, "sites": ["south"], "failures": {"north cut": 3}, "received": 2_000_000,
     "waited_s": 1.5, "requests": 7, "retries": 2}
)  # fmt: skip


def figures(scrape: Scrape) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(scrape.page().decode())
        for sample in family.samples
    }


@pytest.fixture
def site(repo: Commands) -> Site:
    """The command at a deployment whose sites are the folders `north` and `south`."""
    folder = repo.site.folder
    probe = {"file": "/store/known", "size": len(DATA), "checksum": f"{zlib.adler32(DATA):08x}"}
    sites = {}
    for name in ("north", "south"):
        (folder / "var/sites" / name).mkdir(parents=True)
        (folder / "var/sites" / name / "known").write_bytes(DATA)
        rules = [{"prefix": "/store", "url": f"file://{folder}/var/sites/{name}"}]
        sites[name] = {"read": rules, "write": rules, "third_party": rules, "probe": probe}
    with (folder / "site.yaml").open("a") as file:
        file.write(f"\nsites: {json.dumps(sites)}\n")

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_site_is_probed_held_and_released(site: Site, repo: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FTS_DEFAULT", json.dumps({"conn_type": "fts", "host": "http://127.0.0.1:1"}))
    opened = open_site()
    assert "not judged yet" in site("status").stdout
    assert "north: first byte: 0.0" in site("probe").stdout
    assert "nothing failed" in site("status").stdout
    known = repo.site.folder / "var/sites/north/known"
    known.write_bytes(DATA[1:] + b"x")
    assert "north is degraded now: checksum: content" in site("probe", code=1).stdout
    assert "now" not in site("probe", "north", code=1).stdout, "a second look right after it counts no more"
    with reading(opened.ledger) as connection:
        connection.execute(update(site_states).values(checked_at=datetime.now(UTC) - timedelta(minutes=15)))
        connection.commit()
    assert "north is failed now" in site("probe", "north", code=1).stdout
    assert "failed" in site("status", "north", code=1).stdout
    shown = json.loads(site("status", "--json", code=1).stdout)
    assert (shown["north"]["state"], shown["south"]["state"]) == ("failed", "ok")
    assert "degraded" in site("release", "north", "-m", "it is mended").stdout
    assert "is held" in site("hold", "north", "-m", "disks are moved").stdout
    assert "held by" in site("status", "north", code=1).stdout
    assert "is released" in site("release", "north").stdout
    assert "site-hold-refused" not in site("release", "south", code=2).stdout
    assert "elsewhere" in site("probe", "elsewhere", code=2).output
    opened.ledger.dispose()


def test_reports_of_readers_are_taken_and_shown(site: Site, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"begin\n2026-11-28 03:00:00 {FORGED}\nend\n")
    assert site("readings", str(log)).stdout == "1 files read, 1 failures at sites\n"
    log.write_text('read {"file": broken\n')
    assert "1 damaged lines" in site("readings", str(log)).output
    opened = open_site()
    assert opened.settings.sites
    seen = figures(Scrape(lambda: opened))
    assert seen["nightshift_site_readers_good", "south"] == 1
    assert seen["nightshift_site_readers_failed", "north"] == 1
    assert seen["nightshift_site_readers_bytes", "south"] == 2_000_000
    assert seen["nightshift_site_state", "north", "ok"] == 1
    opened.ledger.dispose()


def test_the_page_has_states_history_and_reports(
    site: Site, repo: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FTS_DEFAULT", json.dumps({"conn_type": "fts", "host": "http://127.0.0.1:1"}))
    site("probe")
    (repo.site.folder / "var/sites/north/known").unlink()
    site("probe", code=1)
    log = tmp_path / "job.log"
    log.write_text(FORGED)
    site("readings", str(log))
    site("hold", "south", "-m", "<b>moves</b>")
    opened = open_site()
    client = TestClient(create_app(stageout_user, lambda: opened, dags), base_url="http://127.0.0.1")
    page = client.get("/sites", headers={"authorization": "Bearer olga"}).text
    assert "first byte: missing" in page
    assert "&lt;b&gt;moves&lt;/b&gt;" in page
    assert "2.0 MB" in page
    assert "State of each site over the last seven days" in page
    assert page.index("<td>held</td>") < page.index("<td>degraded</td>")  # the newest first
    figures_ = figures(Scrape(lambda: opened))
    assert figures_["nightshift_site_probe_good", "first byte", "north"] == 0
    assert figures_["nightshift_site_state", "south", "held"] == 1
    opened.ledger.dispose()
