"""Requests for transfers by the REST API: recorded once, refused with a code and a hint, bounded in every way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import select

from include.ledger.engine import reading
from include.site.site import Site
from include.stageout import files
from include.stageout.requests import UserCaps
from include.stageout.rest import app, limits
from include.stageout.tables import stageout_requests, stageout_transfers
from tests.fakes.transfers import count_rows
from tests.integration.rest.conftest import ApiUser, file, refusal, wanted


def test_every_path_needs_a_login(anybody: TestClient) -> None:
    routes = [route for route in anybody.app.routes if isinstance(route, APIRoute)]  # type: ignore[attr-defined]
    assert "/openapi.json" in [route.path for route in routes]
    assert len(routes) == len(anybody.app.routes)  # type: ignore[attr-defined]
    for route in routes:
        for method in route.methods:
            path = route.path.replace("{", "").replace("}", "")
            assert refusal(anybody.request(method, path)) == (401, "http-401"), route.path


def test_a_body_is_not_read_before_the_login(anybody: TestClient) -> None:
    def endless() -> Any:
        while True:
            yield b"[" * 1024
            raise AssertionError("the body is read")

    assert anybody.post("/requests", content=endless()).status_code == 401


def test_files_are_recorded_for_the_user_of_the_login(ann: ApiUser, site: Site) -> None:
    full = file(1, size=5, checksum="adler32:0a1b2c3d", dataset="/a/b/USER", kind="log", user_job="7", activity="x")
    answer = ann.post("/requests", wanted(file(0), full))
    assert (answer.status_code, answer.json()) == (201, {"request": 1, "files": 2, "repeated": False})
    with reading(site.ledger) as connection:
        assert connection.execute(select(stageout_requests)).one().owner == "ann"
    assert count_rows(site.ledger, stageout_transfers) == 2


def test_the_same_request_again_changes_nothing(ann: ApiUser, site: Site) -> None:
    document = wanted()
    del document["key"]
    first = ann.post("/requests", document, **{"Idempotency-Key": "k1"})
    again = ann.post("/requests", wanted())
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "repeated": True}
    assert refusal(ann.post("/requests", wanted(file(5)))) == (409, "stageout-request-changed")
    assert count_rows(site.ledger, stageout_transfers) == 1


def test_a_checksum_in_another_spelling_is_the_same_request(ann: ApiUser, site: Site) -> None:
    first = ann.post("/requests", wanted(file(checksum="ADLER32:A1B2C3D")))
    again = ann.post("/requests", wanted(file(checksum="adler32:0a1b2c3d")))
    assert (first.status_code, again.status_code) == (201, 200)
    with reading(site.ledger) as connection:
        assert connection.scalar(select(stageout_transfers.c.checksum)) == "adler32:0a1b2c3d"


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        (wanted(file(source_name="davs://other.example.org/x")), 400, "stageout-file-refused"),
        (wanted(file(), file()), 400, "stageout-file-refused"),
        ({**wanted(), "files": []}, 400, "stageout-file-refused"),
        (wanted(file(destination_name="/store/user/bob/x")), 403, "stageout-outside-name-space"),
        (wanted(file(destination_name="/store/user/ann")), 403, "stageout-outside-name-space"),
        (wanted(file(destination_name="/store/user/annabel/x")), 403, "stageout-outside-name-space"),
        (wanted(file(size="5")), 400, "stageout-body-invalid"),
        (wanted(file(size=1.5)), 400, "stageout-body-invalid"),
        (wanted(file(metadata={"x": "y"})), 400, "stageout-body-invalid"),
        (wanted(owner="bob"), 400, "stageout-body-invalid"),
        (wanted(key=None), 400, "stageout-body-invalid"),
        ({}, 400, "stageout-body-invalid"),
        ([], 400, "stageout-body-invalid"),
    ],
)
def test_what_is_wrong_is_refused_as_a_whole(ann: ApiUser, site: Site, document: Any, status: int, code: str) -> None:
    assert refusal(ann.post("/requests", document)) == (status, code)
    assert count_rows(site.ledger, stageout_transfers) == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"NaN", b"null", b"\xff", b"[" * 100_000, b'{"a":' * 50_000, b'{"key": "\\ud800"}',
     b'{"files": [{"size": 1' + b"0" * 6000],
)  # fmt: skip
def test_a_body_that_is_no_json_or_too_deep_is_refused(ann: ApiUser, body: bytes) -> None:
    assert refusal(ann.send(body)) == (400, "stageout-body-invalid")


def test_a_body_of_another_type_is_refused(ann: ApiUser) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert refusal(ann.send(json.dumps(wanted()).encode(), kind)) == (400, "stageout-body-invalid")
        assert refusal(ann.send(b"", kind, "/workflows/w/kill")) == (400, "stageout-body-invalid")


def test_a_large_body_is_refused_and_not_read_to_its_end(ann: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(ann.post("/requests", wanted(file(metadata="x" * 10_000_000)))) == (413, "stageout-body-too-large")
    monkeypatch.setattr(limits, "MOST_BYTES", 100)
    assert refusal(ann.send(b" " * 101)) == (413, "stageout-body-too-large")


def test_two_keys_are_refused(ann: ApiUser) -> None:
    answer = ann.post("/requests", wanted(), **{"Idempotency-Key": "k2"})
    assert refusal(answer) == (400, "stageout-body-invalid")


def test_a_request_has_a_limited_number_of_files(ann: ApiUser, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 20)
    names = [file(number) for number in range(21)]
    assert refusal(ann.post("/requests", wanted(*names))) == (400, "stageout-file-refused")
    assert ann.post("/requests", wanted(*names[:-1])).status_code == 201
    assert count_rows(site.ledger, stageout_transfers) == 20


def test_files_of_one_user_are_capped(ann: ApiUser, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "UserCaps", lambda *_: UserCaps(files=2, files_per_hour=100))
    assert ann.post("/requests", wanted(file(0), file(1))).status_code == 201
    answer = ann.post("/requests", wanted(file(2), key="k2"))
    assert refusal(answer) == (429, "stageout-user-capped")
    assert "2 files are on the way, of 2 at most" in answer.json()["message"]
    assert ann.post("/requests", wanted(file(0), file(1))).status_code == 200, "the same again"
    assert count_rows(site.ledger, stageout_transfers) == 2


def test_a_destination_of_another_transfer_is_a_conflict(ann: ApiUser) -> None:
    ann.post("/requests", wanted())
    assert refusal(ann.post("/requests", wanted(key="k2"))) == (409, "stageout-destination-taken")


def test_calls_of_one_user_are_limited(ann: ApiUser, bob: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BURST", 3.0)
    monkeypatch.setattr(limits, "CALLS_PER_S", 0.001)
    answers = [ann.get("/openapi.json") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert refusal(answers[-1]) == (429, "stageout-too-many-calls")
    assert answers[-1].headers["retry-after"]
    assert bob.get("/openapi.json").status_code == 200


def test_unknown_paths_and_failures_are_json(ann: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(ann.get("/nowhere")) == (404, "http-404")
    assert refusal(ann.get("/requests")) == (405, "http-405")
    monkeypatch.setattr(app, "record_request", lambda *_, **__: 1 // 0)
    assert refusal(ann.post("/requests", wanted())) == (500, "internal-error")


def test_a_ledger_that_is_away_is_said(ann: ApiUser, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.ledger.dispose()
    broken = site.ledger.url.set(database="/proc/none/ledger.db")
    from sqlalchemy import create_engine

    monkeypatch.setitem(vars(site), "ledger", create_engine(broken))
    answer = ann.post("/requests", wanted())
    assert refusal(answer) == (503, "ledger-unavailable")
    assert "ledger.db" not in answer.text


def test_a_user_whose_name_is_no_folder_cannot_submit(anybody: TestClient) -> None:
    for name in ("..", "a/b"):
        answer = ApiUser(anybody, name).post("/requests", wanted(file(destination_name="/store/user/a/b/x")))
        assert refusal(answer) == (403, "stageout-outside-name-space")


def test_the_openapi_document_has_all_paths_and_forms(ann: ApiUser) -> None:
    document = ann.get("/openapi.json").json()
    body = document["paths"]["/requests"]["post"]
    assert {"200", "201", "400", "401", "403", "409", "413", "429", "503"} <= body["responses"].keys()
    references = json.dumps(document).split('"$ref": "#/components/schemas/')[1:]
    assert {one.partition('"')[0] for one in references} <= document["components"]["schemas"].keys()
