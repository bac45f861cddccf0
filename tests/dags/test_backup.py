"""The DAG `backup`, through whole runs: a backup is in its store, checked, and old ones are deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from include.backup.create import backup_store, names_in
from include.monitoring.airflow_checks import needed
from tests.dags.conftest import MiniSite, reconfigured
from tests.site import connection

pytestmark = pytest.mark.server("weed")


@pytest.fixture(scope="module")
def backed_up(site: MiniSite) -> Iterator[MiniSite]:
    """The site with a folder for two backups."""
    settings = yaml.safe_load((site.folder / "site.yaml").read_text())
    settings["stores"]["backups"] = {"url": f"file://{site.folder}/backups"}
    settings["backup"] = {"store": "backups", "connection": "backup", "keep": 2}
    site.environment["AIRFLOW_CONN_BACKUP"] = connection("", "correct horse battery")
    with reconfigured(site, yaml.safe_dump(settings), "backup") as made:
        yield made


@pytest.fixture(autouse=True)
def _environment(backed_up: MiniSite, _environment_of_the_site: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in backed_up.environment.items():
        monkeypatch.setenv(name, value)


def test_runs_keep_the_newest_backups_of_the_site(backed_up: MiniSite) -> None:
    store = backup_store(backed_up.opened.settings, backed_up.opened.secrets)
    before: list[str] = []
    for count in (1, 2, 2):
        run = backed_up.run("backup")
        assert run.tasks == {"create": "success"}, run
        names = names_in(store)
        assert len(names) == count
        assert names[0] not in before
        before = [*names]
    assert "backup" in needed(backed_up.opened.settings)
