"""The site as a trigger sees it, while somebody edits its configuration."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from include.settings.errors import MissingConnection, SettingsError
from tests.fakes.plainsite import plain_file
from tests.fakes.refused import refused
from triggers.night import configured


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "site.yaml"
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(file))
    for name in ("old", "new"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "object_store", "login": name}))
    write(file, "old")
    return file


def write(file: Path, connection: str, slot: str = "main") -> None:
    store = {"url": "s3://builds", "endpoint": "http://127.0.0.1:1", "connection": connection}
    plain_file(file.parent, [slot], store=store)


def test_clients_are_the_same_as_long_as_the_configuration_is_and_know_the_connection_of_a_new_one(site: Path) -> None:
    async def look() -> None:
        connect = configured("main")
        first = await asyncio.to_thread(connect)
        assert await asyncio.to_thread(connect) is first
        assert (await asyncio.to_thread(first.secrets.get, "old")).login == "old"
        write(site, "new")
        moved = await asyncio.to_thread(connect)
        assert moved is not first
        assert (await asyncio.to_thread(moved.secrets.get, "new")).login == "new"
        assert await asyncio.to_thread(connect) is moved

    asyncio.run(look())


def test_a_connection_that_is_not_there_and_a_slot_that_is_gone_are_said_by_name(site: Path) -> None:
    async def look() -> None:
        connect = configured("main")
        write(site, "nowhere")
        with refused(MissingConnection, connection_id="nowhere"):
            await asyncio.to_thread(lambda: connect().store("builds"))
        write(site, "old", slot="dev")
        with refused(SettingsError):
            await asyncio.to_thread(connect)

    asyncio.run(look())
