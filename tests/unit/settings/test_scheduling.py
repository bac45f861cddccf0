"""Pools, sized by the site and written as Airflow's own import reads them; schedules and the change of clocks."""

from __future__ import annotations

import configparser
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from include.cli.settings import app
from include.settings.load import load
from include.settings.scheduling import CAMPAIGN, FALLBACK, consumer_timeout, hour_before_first, left_out, pools

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


@pytest.mark.parametrize(
    ("schedule", "zone", "expected"),
    [
        ("30 2 * * *", "Europe/Zurich", "2027-03-28 02:30:00"),
        ("0 2 * * *", "Europe/Zurich", "2027-03-28 02:00:00"),
        ("*/15 * * * *", "Europe/Zurich", "2027-03-28 02:00:00"),
        ("30 2 * * 1", "Europe/Zurich", "None"),
        ("0 3 * * *", "Europe/Zurich", "None"),
        ("59 1 * * *", "Europe/Zurich", "None"),
        ("15 2 * * *", "Australia/Lord_Howe", "2027-10-03 02:15:00"),
        ("30 2 * * *", "UTC", "None"),
    ],
)
def test_a_schedule_in_the_gap_of_the_clock_change_is_found(schedule: str, zone: str, expected: str) -> None:
    assert str(left_out(schedule, zone, datetime(2026, 11, 21, 4, tzinfo=UTC))) == expected


def slots(*schedules: str | None) -> Any:
    return [SimpleNamespace(schedule=schedule, timezone="Europe/Zurich") for schedule in schedules]


@pytest.mark.parametrize(
    ("schedules", "when"),
    [
        ((None, "0 2 * * *", "30 22 * * 1-5"), ("30 21 * * *", "Europe/Zurich")),
        (("15 0 * * *", "0 6 * * *"), ("15 23 * * *", "Europe/Zurich")),
        (("*/5 * * * *",), FALLBACK),
        ((None,), None),
        ((), None),
    ],
)
def test_it_is_looked_an_hour_before_the_first_slot(schedules: tuple[str | None, ...], when: object) -> None:
    assert hour_before_first(slots(*schedules)) == when
