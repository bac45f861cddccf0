"""The watch over the index of an open night: what it waits out, and what ends it; on folders and a ledger file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.nightlies.records import builds
from include.nightlies.rules.index import BuildIndex
from include.nightlies.rules.passes import Pass
from include.nightlies.steps.values import Night
from include.settings.errors import MissingConnection, SettingsError
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.plainsite import plain_file
from tests.fakes.refused import refused
from triggers import night as night_trigger
from triggers.night import FirstArtifactTrigger, NightTrigger, configured

DAY = date(2026, 11, 21)
ARTIFACT = {"project": "Gaudi", "platform": "x86_64", "url": "a.tar.gz", "size": 1, "sha256": "a" * 64}
OTHER = {**ARTIFACT, "project": "LHCb"}
SOON_S = 60.0


@dataclass
class Builder:
    """Writes the index and the configuration of a small site."""

    folder: Path

    def index(self, *artifacts: dict[str, Any], complete: bool = False, **more: Any) -> None:
        document = {"format": 1, "slot": "main", "build_id": "b1", "date": DAY.isoformat(), "complete": complete}
        self.write(json.dumps({**document, "artifacts": list(artifacts), **more}).encode())

    def write(self, data: bytes) -> None:
        path = self.folder / "builds" / "main" / DAY.isoformat() / "index.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_bytes(data)
        new.replace(path)

    def slots(self, *names: str, gather_s: float = 0.0) -> None:
        plain_file(self.folder, names, gather_s=gather_s)


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    (tmp_path / "builds").mkdir()
    made = Builder(tmp_path)
    made.slots("main")
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    return made


def watch(
    *changes: Callable[[], None],
    until: timedelta = timedelta(hours=1),
    after: timedelta | None = None,
    poll_s: float = 0.1,
    listen: str | None = None,
    **night: Any,
) -> dict[str, Any]:
    """What ends the watch. Each of `changes` is made once the watch waits, and says so, again."""
    now = datetime.now(UTC)
    turn = Pass("scheduled__1", until=now + until, after=None if after is None else now + after)
    trigger = NightTrigger(Night("night/1", "main", DAY, "test", **night).to_json(), turn.to_json(), poll_s, listen)
    said: list[str] = []
    left = list(changes)

    class Log:
        def info(self, form: str, *values: Any) -> None:
            said.append(form % values)
            if left:
                left.pop(0)()

        def debug(self, form: str, *values: Any) -> None:
            """Nobody reads it."""

    trigger._log = Log()  # type: ignore[assignment]

    async def first() -> dict[str, Any]:
        async for event in trigger.run():
            return {**event.payload, "said": said}
        raise AssertionError("no event")

    return asyncio.run(asyncio.wait_for(first(), SOON_S))


def test_what_is_new_begins_a_pass_and_a_complete_index_ends_the_night(builder: Builder) -> None:
    builder.index(ARTIFACT, {**ARTIFACT, "sha256": "b" * 64}, OTHER)
    event = watch()
    assert (event["turn"], "1 listed" in event["reason"]) == ("go", True), "an artifact with two sums goes in with none"
    builder.index(ARTIFACT, ARTIFACT, OTHER, complete=True)
    event = watch()
    assert (event["turn"], "2 listed" in event["reason"]) == ("last", True)


def test_a_night_begins_with_its_first_artifact_and_says_what_it_waits_for(builder: Builder) -> None:
    event = watch(builder.index, lambda: builder.index(ARTIFACT))
    assert event["turn"] == "go"
    assert "slot main has no build for 2026-11-21: nothing at" in event["said"][0]
    assert "0 listed" in event["said"][1]


def test_the_cutoff_ends_the_watch_whether_there_is_an_index_or_not(builder: Builder) -> None:
    event = watch(until=timedelta(seconds=0.3))
    assert event["turn"] == "last"
    assert "the night ends at its cut-off" in event["reason"]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"format": 1, "slot": "main", "arti',
        b"",
        b"\xff\xfe",
        b'{"format": 1, "slot": "other", "build_id": "b", "date": "2026-11-21", "complete": true, "artifacts": []}',
    ],
    ids=["truncated", "empty", "no text", "of another slot"],
)
def test_an_index_that_cannot_be_used_is_looked_at_again(builder: Builder, bad: bytes) -> None:
    builder.write(bad)
    event = watch(lambda: builder.index(ARTIFACT))
    assert event["turn"] == "go"
    assert "index file://" in event["said"][0]
    assert "checked again until" in event["said"][0]


def test_an_older_index_out_of_a_cache_takes_nothing_back(builder: Builder) -> None:
    builder.slots("main", gather_s=0.5)
    builder.index(ARTIFACT, OTHER, serial=2)
    event = watch(lambda: builder.index(ARTIFACT, serial=1))
    assert event["turn"] == "go"
    assert "2 listed" in event["reason"]
    assert "an older index than the last one was read, and is left aside" in event["reason"]


def test_an_index_from_a_clock_that_is_ahead_is_used_and_said(builder: Builder) -> None:
    builder.index(ARTIFACT, created=(datetime.now(UTC) + timedelta(days=1)).isoformat())
    event = watch()
    assert event["turn"] == "go"
    assert "Set the builder's clock" in event["reason"]


def test_a_slot_that_is_removed_ends_its_night_by_name(builder: Builder) -> None:
    builder.index()
    assert "unknown slot 'main'" in watch(lambda: builder.slots("other"))["error"]
    assert "unknown slot 'main'" in watch()["error"], "so it does for a triggerer that has just started"


@pytest.mark.parametrize("started", [False, True], ids=["under way", "just started"])
def test_a_configuration_that_is_just_being_edited_is_waited_out(builder: Builder, started: bool) -> None:
    builder.index()

    def broken() -> None:
        (builder.folder / "site.yaml").write_text("slots: {main: ")

    def mended() -> None:
        builder.slots("main")
        builder.index(ARTIFACT)

    if started:
        broken()
    event = watch(*([] if started else [broken]), mended)
    assert event["turn"] == "go"
    assert "site.yaml" in event["said"][0 if started else 1]


def test_a_build_id_of_another_day_is_waited_out_until_the_builder_corrects_it(builder: Builder) -> None:
    site = Site(load(), EnvSecrets({}))
    yesterday = BuildIndex("main", "b1", DAY - timedelta(days=1), complete=True, artifacts=())
    builds.record_build(site.ledger, yesterday, index_url="s3://builds/index.json", now=datetime.now(UTC))
    site.ledger.dispose()
    builder.index(ARTIFACT, complete=True)
    event = watch(lambda: builder.index(ARTIFACT, build_id="b2"))
    assert event["turn"] == "go"
    assert "build b1 of slot main is recorded for 2026-11-20 and now claims 2026-11-21" in event["said"][0]


def test_a_run_of_some_projects_is_one_pass_and_waits_for_the_whole_index(builder: Builder) -> None:
    builder.index(ARTIFACT)
    event = watch(lambda: builder.index(ARTIFACT, complete=True), projects=("Gaudi",))
    assert event["turn"] == "last"


def test_a_pass_after_one_that_came_to_nothing_rests_first(builder: Builder) -> None:
    builder.index(ARTIFACT)
    event = watch(after=timedelta(seconds=0.3))
    assert event["turn"] == "go"
    assert "the pass before failed" in event["said"][0]


def test_an_event_of_the_index_ends_a_pause_at_once(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    events = [7]
    asked: list[str] = []

    def count(dag_id: str) -> int:
        asked.append(dag_id)
        return events[0]

    def written() -> None:
        builder.index(ARTIFACT)
        events[0] += 1

    monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", count)
    monkeypatch.setattr(night_trigger, "FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr(night_trigger, "EVENT_S", 0.05)
    builder.index()
    event = watch(written, poll_s=60.0, listen="index_events_main")
    assert event["turn"] == "go"
    assert event["said"][1] == "the index was written; looking now"
    assert set(asked) == {"index_events_main"}


def test_where_nobody_tells_of_events_the_index_is_looked_at_as_before(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def away(dag_id: str) -> int:
        raise RuntimeError(f"{dag_id}: no answer")

    monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", away)
    builder.index()
    assert watch(lambda: builder.index(ARTIFACT), listen="index_events_main")["turn"] == "go"


def first_artifacts(count: int, *changes: Callable[[], None]) -> list[dict[str, Any]]:
    """So many events of the watcher; each change is made after an event, the first one at once."""
    trigger = FirstArtifactTrigger("main", 0.02)
    left = list(changes)

    async def some() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if left:
            asyncio.get_running_loop().call_later(0.2, left.pop(0))
        async for event in trigger.run():
            found.append(event.payload)
            if len(found) == count:
                return found
            if left:
                left.pop(0)()
        raise AssertionError("the watcher ended")

    return asyncio.run(asyncio.wait_for(some(), SOON_S))


def test_the_first_artifact_of_a_date_is_told_once_and_an_index_of_nothing_is_none(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.nightlies.steps.build_status.dates", lambda *_: (DAY, DAY + timedelta(days=1)))
    builder.index()
    tomorrow = Builder(builder.folder)

    def next_day() -> None:
        # told once: only what comes for the other date is told after it
        builder.index(ARTIFACT, OTHER)
        document = {"format": 1, "slot": "main", "build_id": "b2", "date": "2026-11-22", "complete": False}
        path = tomorrow.folder / "builds" / "main" / "2026-11-22" / "index.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**document, "artifacts": [ARTIFACT]}))

    events = first_artifacts(2, lambda: builder.index(ARTIFACT), next_day)
    assert events == [{"date": "2026-11-21"}, {"date": "2026-11-22"}]


def test_the_watcher_of_first_artifacts_outlives_whatever_is_wrong_for_a_while(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.nightlies.steps.build_status.dates", lambda *_: (DAY,))
    (builder.folder / "site.yaml").write_text("slots: {main: ")

    def mended() -> None:
        builder.write(b"{half")
        builder.slots("main")
        asyncio.get_running_loop().call_later(0.2, lambda: builder.index(ARTIFACT))

    assert first_artifacts(1, mended) == [{"date": "2026-11-21"}]


def test_clients_stay_as_long_as_the_configuration_and_know_the_connection_of_a_new_one(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewrite(connection: str, slot: str = "main") -> None:
        store = {"url": "s3://builds", "endpoint": "http://127.0.0.1:1", "connection": connection}
        plain_file(builder.folder, [slot], store=store)

    async def look() -> None:
        connect = configured("main")
        for name in ("old", "new"):
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "any", "login": name}))
            rewrite(name)
            site = await asyncio.to_thread(connect)
            assert await asyncio.to_thread(connect) is site
            assert (await asyncio.to_thread(site.secrets.get, name)).login == name
        rewrite("nowhere")
        with refused(MissingConnection, connection_id="nowhere"):
            await asyncio.to_thread(lambda: connect().store("builds"))
        rewrite("old", slot="dev")
        with refused(SettingsError):
            await asyncio.to_thread(connect)

    asyncio.run(look())
