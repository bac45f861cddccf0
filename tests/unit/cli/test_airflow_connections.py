"""`nightshift dags on`: which DAGs it unpauses, and that it changes nothing where one is not there."""

from __future__ import annotations

import pytest

from include.airflow_api import AirflowError
from include.cli.airflow_connections import unpause
from include.settings.load import load
from tests.fakes.refused import refused

READ = {"nightly_install_main": True, "night_watch": True, "preflight": True, "leases": False, "own": True}


class Airflow:
    """Airflow as far as pausing goes; the rest of the site's DAGs are read while they are waited for."""

    def __init__(self) -> None:
        self.dags = dict(READ)

    def wait_for_dag(self, dag_id: str, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.dags.setdefault(dag_id, dag_id != "intervene")

    def paused(self) -> dict[str, bool]:
        return self.dags

    def unpause(self, dag_id: str) -> None:
        self.dags = {**self.dags, dag_id: False}


def test_all_that_the_site_needs_is_unpaused_and_no_dag_of_others() -> None:
    airflow = Airflow()
    unpaused = unpause(airflow, load(), [])
    assert {"nightly_install_main", "night_watch", "preflight", "nightly_gc", "repository_care"} <= set(unpaused)
    assert not {"leases", "intervene", "own"} & set(unpaused), "they were not paused, or are none of the site's"
    assert [dag_id for dag_id, paused in airflow.dags.items() if paused] == ["own"]
    assert unpause(airflow, load(), []) == []


def test_dags_by_name_and_none_at_all_if_one_is_not_there() -> None:
    airflow = Airflow()
    with refused(AirflowError) as refusal:
        unpause(airflow, load(), ["own", "nightly_instal"])
    assert "has not read nightly_instal; it has:" in str(refusal.value)
    assert airflow.dags == READ
    assert unpause(airflow, load(), ["own", "leases"]) == ["own"]


@pytest.mark.parametrize("words", [["on"], ["on", "leases"]])
def test_it_says_whom_to_ask_where_no_airflow_is_known(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from include.cli.site import dags_group

    monkeypatch.setattr("include.cli.airflow_connections.lab_part", lambda _: None)
    monkeypatch.delenv("NIGHTSHIFT_AIRFLOW_CONNECTION", raising=False)
    done = CliRunner().invoke(dags_group, words)
    assert done.exit_code == 2
    assert "give --connection" in done.output
