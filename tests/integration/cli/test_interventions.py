"""`nightshift freeze`, `thaw` and `preflight`, at a site with a real gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from include.cvmfs.coordination.freeze import KEY
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import FQRN
from tests.integration.cli.conftest import Commands, as_json, nightshift


def test_a_frozen_repository_is_changed_by_nobody_until_it_is_thawed(repo: Commands) -> None:
    tree = repo.tree()
    assert nightshift("freeze", "--list").stdout == f"{FQRN}: not frozen\n"
    with repo.site.client().lease(FQRN, "/sw", hostname="night/r/publish"):
        said = nightshift("freeze", FQRN, "-m", "audit").stdout
        assert f"still at work, to its end: /sw held by 'night/r/publish' with key {KEY_ID}" in said
    nightshift("thaw", FQRN)
    said = nightshift("freeze", FQRN, "--reason", "disks are moved", "--until", "4h").stdout
    assert f"{FQRN} is frozen since" in said
    assert "no lease is open" in said
    again = nightshift("freeze", FQRN, "-m", "disks are moved and more").stdout
    assert "until it is thawed: disks are moved and more" in again
    assert f"{FQRN} is already frozen" in nightshift("freeze", FQRN, "-m", "disks are moved and more").stdout

    refused = repo("publish", FQRN, "/sw/app/v1", tree, code=2).stderr
    assert "disks are moved and more" in refused
    assert f"nightshift thaw {FQRN}" in refused
    assert "disks are moved" in repo("tag", "add", FQRN, "t", code=2).stderr
    (listed,) = as_json("freeze", "--list")
    assert listed["frozen"]["reason"] == "disks are moved and more"

    assert "is thawed; it was frozen since" in nightshift("thaw", FQRN).stdout
    assert nightshift("thaw", FQRN).stdout == f"{FQRN} is not frozen\n"
    repo("publish", FQRN, "/sw/app/v1", tree)
    assert [one["kind"] for one in as_json("freeze", "--history")] == ["thaw", "freeze", "freeze", "thaw", "freeze"]


def test_what_makes_no_freeze_freezes_nothing(repo: Commands) -> None:
    for words, told in (
        ((FQRN,), "--reason"),
        (("--reason", "why"), "name the repository"),
        ((FQRN, "-m", "why", "--until", "2026-11-22T06:00"), "time zone"),
        ((FQRN, "-m", "why", "--until", "soon"), "no time"),
        ((FQRN, "-m", "why", "--until", "2001-01-01T00:00Z"), "later time"),
        ((FQRN, "-m", " "), "reason"),
        (("nothing.example.org", "-m", "why"), "unknown repository"),
    ):
        result = nightshift("freeze", *words, code=2)
        assert told in " ".join(result.stderr.replace("│", " ").split())
    assert not repo.site.store.exists(KEY)


def test_a_site_that_is_well_is_ready_for_a_night_and_nothing_is_left_behind(repo: Commands) -> None:
    before = {meta.key for meta in repo.site.store.list()}
    report = as_json("preflight")
    assert report["ready"], report
    seen = {(one["check"], one["subject"]): one for one in report["findings"]}
    assert seen["gateway", f"{FQRN} key {KEY_ID}"]["seen"] == "a lease was taken and given back"
    assert seen["roles", f"{FQRN} as publisher"]["severity"] == "ok"
    assert seen["repository", FQRN]["seen"] == "revision 0, by the public URL and in the store"
    assert seen["whitelist", FQRN]["severity"] == "ok"
    assert seen["leases", FQRN]["seen"] == "none is open"
    assert {meta.key for meta in repo.site.store.list()} == before
    assert "a night can run" in nightshift("preflight").stdout
    assert "unknown slot" in nightshift("preflight", "--slot", "nope", code=2).stderr


def test_everything_that_is_wrong_is_named_at_once_with_its_cure(
    repo: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nightshift("freeze", FQRN, "-m", "audit")
    port = repo.site.url.rstrip("/").rpartition(":")[2].partition("/")[0]
    wrong = {"conn_type": "http", "host": "127.0.0.1", "port": int(port), "login": KEY_ID, "password": "not it"}
    monkeypatch.setenv("AIRFLOW_CONN_GATEWAY_TEST", json.dumps(wrong))
    (tmp_path / "keys" / f"{FQRN}.pub").unlink()
    file = tmp_path / "site.yaml"
    file.write_text(file.read_text() + "airflow_connection: not_there\n")
    report = as_json("preflight", code=1)
    found = {one["subject"]: one for one in report["findings"] if one["severity"] != "ok"}
    assert "key" in found[f"{FQRN} key {KEY_ID}"]["seen"]
    assert "gateway_test" in found[f"{FQRN} key {KEY_ID}"]["cure"]
    assert "not_there" in found["not_there"]["cure"]
    wrong_things = {one["check"]: one["severity"] for one in report["findings"] if one["severity"] != "ok"}
    assert wrong_things["freeze"] == "warning"
    assert wrong_things["repository"] == "error"
    assert all(one["cure"] for one in found.values())
    shown = nightshift("preflight", code=1).stdout
    assert "a night would fail" in shown
    assert "not it" not in shown + json.dumps(report)


def test_a_gateway_that_is_away_is_one_finding_and_the_rest_is_looked_at(
    repo: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {"conn_type": "http", "host": "127.0.0.1", "port": 1, "login": KEY_ID, "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_GATEWAY_TEST", json.dumps(away))
    report = as_json("preflight", code=1)
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    assert {one["check"] for one in errors} == {"gateway", "leases"}
    assert all("Start the gateway" in one["cure"] for one in errors)
