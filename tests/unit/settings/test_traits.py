"""A ledger in a file is refused where tasks run on more than one host."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.ledger.errors import LedgerError
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.settings.traits import airflow_executor, open_site_ledger


@pytest.mark.parametrize(
    ("executor", "served"),
    [("CeleryExecutor", False), ("LocalExecutor,KubernetesExecutor", False), ("LocalExecutor", True)],
)
def test_sqlite_serves_the_workers_of_one_host_alone(tmp_path: Path, executor: str, served: bool) -> None:
    (tmp_path / "site.yaml").write_text(f'ledger: "sqlite:///{tmp_path}/ledger.db"\n')
    site = load(tmp_path / "site.yaml", environ={})
    if served:
        open_site_ledger(site, EnvSecrets({}), {"AIRFLOW__CORE__EXECUTOR": executor}).dispose()
    else:
        with pytest.raises(LedgerError) as caught:
            open_site_ledger(site, EnvSecrets({}), {"AIRFLOW__CORE__EXECUTOR": executor})
        assert f"SQLite does not serve the workers of {executor}" in str(caught.value)
    assert (tmp_path / "ledger.db").exists() is served


def test_the_executor_is_that_of_the_environment_or_of_airflows_file(tmp_path: Path) -> None:
    file = tmp_path / "airflow.cfg"
    assert airflow_executor({"AIRFLOW_HOME": str(tmp_path)}) == ""
    file.write_text("[core]\nexecutor = CeleryExecutor\nfernet_key = 100%\n")
    assert airflow_executor({"AIRFLOW_HOME": str(tmp_path)}) == "CeleryExecutor"
    assert airflow_executor({"AIRFLOW_CONFIG": str(file)}) == "CeleryExecutor"
    assert airflow_executor({"AIRFLOW_CONFIG": str(file), "AIRFLOW__CORE__EXECUTOR": "Local"}) == "Local"
    file.write_text("no section\n")
    assert airflow_executor({"AIRFLOW_HOME": str(tmp_path)}) == ""
    assert airflow_executor({}) == ""
