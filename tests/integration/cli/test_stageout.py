"""`nightshift stageout` with a ledger of its own: lists that are good and bad, status, kill, resubmit, close, sums."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from include.cli.stageout import app
from include.ledger.engine import open_ledger
from include.stageout.archive import archive_transfers
from include.stageout.states import TransferState
from tests.fakes.ftsserver import FtsServer
from tests.fakes.places import put_in

SITE = """
ledger: "sqlite:///{folder}/ledger.db"
sites:
  pisa: {{read: &pisa [{{prefix: /store, url: "davs://pisa.example.org/cms"}}], third_party: *pisa}}
  bari: {{read: &bari [{{prefix: /store, url: "davs://bari.example.org/cms"}}], third_party: *bari}}
"""
HEAD = "source,source_name,destination,destination_name,size,dataset,user_job"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "site.yaml").write_text(SITE.format(folder=tmp_path))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    monkeypatch.delenv("NIGHTSHIFT_LEDGER_URL", raising=False)
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    monkeypatch.setenv("COLUMNS", "300")  # messages are not folded
    return tmp_path


@pytest.fixture
def ledger(folder: Path) -> Engine:
    return open_ledger(f"sqlite:///{folder}/ledger.db")


def stageout(*words: str, code: int = 0, text: str | None = None) -> Result:
    result = CliRunner().invoke(app, list(words), input=text, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def as_json(*words: str, code: int = 0, text: str | None = None) -> Any:
    return json.loads(stageout(*words, "--json", code=code, text=text).stdout)


def line(number: int, user: str = "ann", **fields: str) -> str:
    plain = {
        "source": "pisa", "source_name": f"/store/temp/user/{user}/{number}", "destination": "bari",
        "destination_name": f"/store/user/{user}/{number}", "size": "7", "dataset": "", "user_job": str(number % 2),
    }  # fmt: skip
    return ",".join((plain | fields).values())


@pytest.fixture
def submitted() -> list[int]:
    """The ids of three transfers of a workflow, the newest first."""
    stageout("submit", "-", "-w", "w1", text="\n".join([HEAD, *map(line, range(3))]))
    return [row["id"] for row in as_json("status", "--list")["transfers"]]


def test_a_list_is_checked_then_recorded_and_recorded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "list.csv"
    file.write_text("\n".join([HEAD, *map(line, range(3))]))
    assert (
        "3 files can be transferred; nothing is recorded"
        in stageout("submit", str(file), "-w", "w1", "--dry-run").stdout
    )
    assert as_json("status") == {"transfers": {}, "archived": {}}
    assert "3 files are recorded" in stageout("submit", str(file), "-w", "w1").stdout
    assert "3 files were recorded before" in stageout("submit", str(file), "-w", "w1").stdout
    assert as_json("status", "-w", "w1")["transfers"] == {"new": 3}
    assert as_json("status", "--owner", "bob")["transfers"] == {}
    assert as_json("status", "--all")["transfers"] == {"new": 3}
    # a long list is several requests
    monkeypatch.setattr("include.cli.file_lists.MAX_FILES", 2)
    document = as_json("submit", "-", "-w", "w1", "--key", "k", text="\n".join([HEAD, *map(line, range(3, 6))]))
    assert [(row["key"], row["files"]) for row in document["requests"]] == [("k", 2), ("k.1", 1)]


def test_each_fault_is_named_by_its_line_and_nothing_is_recorded(folder: Path) -> None:
    lines = [
        HEAD, line(0), line(1, source="rome"), line(0), line(2, destination_name="/store/user/bob/2"), "a,b",
        line(3, size="-1"), line(4, source_name="davs://pisa.example.org/cms/4"),
    ]  # fmt: skip
    done = stageout("submit", "-", "-w", "w1", code=2, text="\n".join(lines))
    shown = [text.removeprefix("nightshift: ") for text in done.stderr.splitlines()]
    assert [text.partition(":")[0] for text in shown[:-1]] == [f"line {number}" for number in (3, 4, 5, 6, 7, 8)]
    assert "the source site 'rome' is not in the configuration" in shown[0]
    assert "it has the same destination as line 2" in shown[1]
    assert "is not below /store/user/ann" in shown[2]
    assert shown[-1].startswith("6 lines have faults; nothing is recorded")
    assert as_json("status")["transfers"] == {}
    faults = as_json("submit", "-", "-w", "w1", code=2, text="\n".join(lines))["faults"]
    assert [fault["line"] for fault in faults] == [3, 4, 5, 6, 7, 8]
    # what is wrong with the whole request is named once
    done = stageout("submit", "-", "-w", " ", code=2, text="\n".join([HEAD, line(0), line(1)]))
    assert done.stderr.count("`workflow` is not a text") == 1
    assert "the list has no files" in stageout("submit", "-", "-w", "w1", code=2, text="").stderr
    assert "No such file" in stageout("submit", str(folder / "absent"), "-w", "w1", code=2).stderr


def test_transfers_are_listed_by_page_and_shown_with_their_history(submitted: list[int], ledger: Engine) -> None:
    first = as_json("status", "--list", "--limit", "2")
    rest = as_json("status", "--list", "--limit", "2", "--after", str(first["after"]))
    assert [row["id"] for row in first["transfers"] + rest["transfers"]] == submitted
    assert rest["after"] is None
    assert [row["user_job"] for row in as_json("status", "-w", "w1", "--job", "1")["transfers"]] == ["1"]
    (named,) = as_json("status", "--name", "/store/user/ann/2")["transfers"]
    assert named["id"] == submitted[0]
    stageout("kill", str(submitted[0]))
    shown = stageout("status", str(submitted[0])).stdout
    assert "new -> killed, by the person: killed by ann@" in shown
    assert as_json("status", str(submitted[0]))["history"][0]["state"] == "killed"
    assert "list transfers with" in stageout("status", "999", code=2).stderr
    assert "there is no state 'lost'" in stageout("status", "--state", "lost", code=2).stderr


def test_transfers_are_killed_and_resubmitted_by_id_and_by_workflow(submitted: list[int]) -> None:
    assert as_json("kill", str(submitted[0])) == {"killed": submitted[:1], "killing": []}
    assert "check owner and name" in stageout("kill", "-w", "w1", "--owner", "bob", code=2).stderr
    assert as_json("kill", "-w", "w1")["killed"] == sorted(submitted[1:])
    assert as_json("status")["transfers"] == {"killed": 3}
    assert as_json("resubmit", str(submitted[1])) == {"resubmitted": [submitted[1]]}
    assert "2 transfers of ann are new again" in stageout("resubmit", "-w", "w1").stdout
    assert as_json("keep", "-w", "w1") == {"kept": sorted(submitted)}
    for command in ("kill", "resubmit", "keep"):
        assert "name transfers by their ids, or a workflow" in stageout(command, code=2).stderr


def test_a_closed_workflow_gets_no_further_files(submitted: list[int]) -> None:
    assert stageout("close", "w1").stdout == "workflow w1 of ann is closed\n"
    assert stageout("close", "w1").stdout == "workflow w1 of ann is already closed\n"
    assert "closed at" in stageout("status", "-w", "w1").stdout
    done = stageout("submit", "-", "-w", "w1", code=2, text="\n".join([HEAD, line(7)]))
    assert "is not opened again" in done.stderr
    assert "check owner and name" in stageout("close", "w2", code=2).stderr


def test_links_are_shown_with_the_limits_that_fts_decided(
    submitted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FtsServer() as server:
        monkeypatch.setenv("AIRFLOW_CONN_FTS_DEFAULT", json.dumps({"conn_type": "fts", "host": server.url}))
        row = {"source_se": "davs://pisa.example.org", "dest_se": "davs://bari.example.org", "active": 7}
        server.answer("GET", "/optimizer/current", 200, [{**row, "datetime": "2026-11-23T10:00:00"}])
        (link,) = as_json("status", "--links")["links"]
        assert link == {"source": "pisa", "destination": "bari", "files": 3, "active": 7,
                        "decided_at": "2026-11-23T10:00:00+00:00"}  # fmt: skip
        server.answer("GET", "/optimizer/current", 403, {"status": "403 Forbidden", "message": "no"})
        done = stageout("status", "--links")
    assert "pisa -> bari           3 files  no limit is known" in done.stdout
    assert "limits of fts_default are unknown" in done.stderr


def test_archived_transfers_are_counted_and_exported(submitted: list[int], ledger: Engine, folder: Path) -> None:
    ended = datetime(2026, 11, 23, 12, tzinfo=UTC)
    put_in(ledger, submitted[:2], TransferState.CLEANED, ended)
    archive_transfers(ledger, TransferState.CLEANED, before=ended, limit=10)
    assert as_json("status") == {"transfers": {"new": 1}, "archived": {"cleaned": 2}}
    words = ("export", "--since", "2026-11-01", "--until", "2026-11-23")
    (row,) = csv.DictReader(stageout(*words).stdout.splitlines())
    assert (row["day"], row["owner"], row["files"], row["bytes"]) == ("2026-11-23", "ann", "2", "14")
    stageout(*words, "--output", str(folder / "sums.csv"))
    assert (folder / "sums.csv").read_text() == stageout(*words).stdout
    assert len(stageout("export", "--since", "2026-11-24").stdout.splitlines()) == 1
    assert "is not a date" in stageout("export", "--since", "yesterday", code=2).stderr


def test_a_census_names_what_is_stuck(submitted: list[int], ledger: Engine) -> None:
    assert "the ledger has no such job" in stageout("dead", "no-such-job", code=2).stderr
    assert stageout("census").stdout == "nothing is stuck\n"
    assert as_json("census", "--last") == []
    put_in(ledger, submitted[:1], TransferState.DONE, datetime.now(UTC) - timedelta(days=9))
    (found,) = [row for row in as_json("census", code=1) if row["kind"] == "old-state"]
    assert (found["transfer"], found["outcome"]) == (submitted[0], "reported")
    assert f"transfer {submitted[0]}: done since" in stageout("census", "--last", code=1).stdout


def test_where_the_files_are_is_a_list_for_the_next_job(submitted: list[int], ledger: Engine) -> None:
    newest, *others = submitted
    now = datetime.now(UTC)
    put_in(ledger, others, TransferState.CLEANED, now)
    listed = stageout("copies", "w1", code=1)
    assert listed.stderr == "nightshift: 1 files have no verified copy\n"
    files = json.loads(listed.stdout)
    assert [(file["id"], file["state"]) for file in files] == [
        (newest, "new"), *((number, "cleaned") for number in others)
    ]  # fmt: skip
    assert {file["url"] for file in files} == {None, *(f"davs://bari.example.org/cms/user/ann/{n}" for n in range(2))}
    assert (files[1]["site"], files[1]["size"], files[1]["registered"]) == ("bari", 7, False)
    put_in(ledger, submitted, TransferState.CLEANED, now)
    archive_transfers(ledger, TransferState.CLEANED, before=now + timedelta(days=1), limit=1)
    urls = stageout("copies", "w1", "--urls").stdout.splitlines()
    assert urls == [f"davs://bari.example.org/cms/user/ann/{number}" for number in (2, 1, 0)]
    assert stageout("copies", "none").stdout == "[]\n"


def test_what_the_ledger_has_is_registered_in_rucio_only_where_there_is_one(folder: Path, submitted: list[int]) -> None:
    words = ("register", "--since", "2026-11-01", "--dry-run")
    assert "set `kind: rucio` in `stageout.catalogue`" in stageout(*words, code=2).stderr
    (folder / "site.yaml").write_text(
        SITE.format(folder=folder) + "stageout: {catalogue: {kind: rucio, connection: rucio}}\n"
    )
    assert stageout(*words).stdout == "0 files of 0 blocks would be registered, 0 are refused\n"
    wide = line(9, dataset="/A/b#1")
    refused = stageout("submit", "-", "-w", "w2", text="\n".join([HEAD, wide]), code=2)
    assert "line 2: it could not be registered: the name '/A/b#1' has characters" in refused.stderr


def test_files_are_retracted_only_with_yes_and_what_is_not_is_named(submitted: list[int], ledger: Engine) -> None:
    numbers = [str(number) for number in submitted]
    put_in(ledger, submitted[:1], TransferState.KEPT, datetime.now(UTC))
    shown = stageout("retract", *numbers, "--reason", "damaged", code=1)
    assert "0 files would be retracted; run it again with --yes" in shown.stdout
    assert f"nightshift: transfer {numbers[0]}: not retracted: it is in no data set" in shown.stderr
    assert f"nightshift: transfer {numbers[1]}: not retracted: it is new" in shown.stderr
    assert "Missing option '--reason'" in stageout("retract", numbers[0], code=2).output
