"""Pools: sized by the site, written as Airflow's own import reads them."""

from __future__ import annotations

import configparser
import json
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.settings import app
from include.settings.load import load
from include.settings.pools import CAMPAIGN, consumer_timeout, pools

CONFIG = Path(__file__).parents[3] / "config/site.yaml"


def shown(*words: str, env: dict[str, str] | None = None) -> dict[str, dict[str, object]]:
    result = CliRunner().invoke(app, ["pools", "--json", *words], env={"NIGHTSHIFT_CONFIG": str(CONFIG), **(env or {})})
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_writes_what_airflow_s_import_reads() -> None:
    # As airflow/cli/commands/pool_command.py takes it: a name, and these three keys.
    for name, pool in shown().items():
        assert isinstance(name, str)
        assert pool.keys() == {"slots", "description", "include_deferred"}
        assert isinstance(pool["slots"], int)
    assert shown(env={"NIGHTSHIFT_WORKER_CORES": ""}).keys() == {pool.name for pool in pools(load(CONFIG, environ={}))}
    table = CliRunner().invoke(app, ["pools"], env={"NIGHTSHIFT_CONFIG": str(CONFIG)})
    assert all(name in table.stdout for name in shown())


@pytest.mark.parametrize(("words", "env"), [(("--cores", "48"), {}), ((), {"NIGHTSHIFT_WORKER_CORES": "48"})])
def test_the_cores_of_all_workers_size_their_pools(words: tuple[str, ...], env: dict[str, str]) -> None:
    found = shown(*words, env=env)
    assert (found["prepare"]["slots"], found["publish"]["slots"]) == (48, 48)
    assert found["control"] == shown("--cores", "1")["control"]


def test_the_executor_has_more_slots_than_the_pools_of_two_cores() -> None:
    """Otherwise tasks of a night wait for passes of stage-out to end."""
    airflow = configparser.ConfigParser(interpolation=None)
    airflow.read(CONFIG.parents[1] / "airflow.cfg")
    settings = load(CONFIG, environ={})
    # control is light, and most tasks that wait for an FTS server do so in the triggerer
    light = {"control", *settings.stageout.fts}
    slots = {pool.name: pool.slots for pool in pools(settings, cores=2) if pool.name not in light}
    assert airflow.getint("core", "parallelism") > sum(slots.values()), slots


def test_a_message_or_a_census_takes_no_slot_of_a_pass() -> None:
    settings = load(CONFIG, environ={})
    slots = {pool.name: pool.slots for pool in pools(settings)}
    assert slots["stageout"] > len(("submit", "follow", "finish")) * settings.stageout.shards


def test_the_broker_waits_longer_than_campaigns_and_read_backs_take() -> None:
    settings = load(CONFIG, environ={})
    assert consumer_timeout(settings) > CAMPAIGN
    stageout = settings.stageout.model_copy(update={"read_back_hours": 168})
    longer = settings.model_copy(update={"stageout": stageout})
    assert consumer_timeout(longer) > timedelta(hours=168)
