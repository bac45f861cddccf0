"""The client against a server over HTTP: jobs, bans, priorities, and what networks and servers do to them."""

from __future__ import annotations

import gzip
import logging
import time
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest

from include.fts import transport
from include.fts.client import FtsClient
from include.fts.errors import (
    FTS_JOB_INVALID,
    FTS_REPLY_UNEXPECTED,
    TOKEN_UNPROTECTED,
    FtsError,
    FtsForbidden,
    FtsReplyLost,
    FtsUnreachable,
    JobExists,
    SubmitUnclear,
)
from include.fts.jobs import FtsFile, FtsJob, JobParams
from include.fts.states import FileState, JobState
from include.fts.transport import BearerToken
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.ftsserver import FtsServer, Scripted
from tests.fakes.loopback import Heard
from tests.fakes.refused import refused

UNKNOWN = str(uuid.UUID(int=7))


def _job(*names: str, **params: Any) -> FtsJob:
    files = (FtsFile(f"https://a.example.org/{one}", f"https://b.example.org/{one}", 5) for one in names or ("f",))
    return FtsJob(tuple(files), JobParams(**params))


def test_many_jobs_are_asked_for_in_few_short_requests(client: FtsClient, server: FtsServer) -> None:
    job_ids = [client.submit(_job()) for _ in range(250)]
    server.asked.clear()
    assert list(client.status(job_ids).jobs) == job_ids
    assert server.count("GET", "/jobs/") == 3
    assert max(len(one.path) for one in server.asked) < 4000


def test_files_are_canceled_one_by_one(client: FtsClient, server: FtsServer) -> None:
    job_id = client.submit(_job("f", "g"))
    assert client.cancel_files(job_id, [1001]) == {1001: FileState.CANCELED}
    assert client.cancel_files(job_id, [1001, 999]) == {1001: FileState.CANCELED, 999: None}
    assert len(client.cancel_files(job_id, range(1000, 1400))) == 400
    server.answer("DELETE", "/files/", 200, ["CANCELED"])
    with refused(FTS_REPLY_UNEXPECTED, job_id=job_id):
        client.cancel_files(job_id, [1000, 1001])


def test_a_lost_reply_to_a_submission_is_followed_up_by_its_name(
    client: FtsClient, proxy: FaultProxy, server: FtsServer
) -> None:
    name = client.whoami().job_name("b7.1")
    proxy.cut(method="POST", after_forwarding=True)
    with refused(SubmitUnclear, job_id=name.job_id, retryable=True):
        client.submit(_job(), name)
    assert server.count("POST", "/jobs") == 1
    assert client.status([name.job_id]).jobs[name.job_id].job_state is JobState.SUBMITTED
    with refused(JobExists, job_id=name.job_id, status=409):
        client.submit(_job(), name)


@pytest.mark.parametrize("body", [b"<html>done</html>", b'{"job_id": 7}', b'{"job_id": "' + b"0" * 36 + b'"}', b"[]"])
def test_a_submission_with_a_reply_that_names_no_job_is_unclear(
    client: FtsClient, server: FtsServer, body: bytes
) -> None:
    server.answer("POST", "/jobs", 200, body)
    with refused(SubmitUnclear, status=200):
        client.submit(_job())


def test_a_submission_that_did_not_leave_is_not_unclear() -> None:
    pauses: list[float] = []
    with FtsClient("http://127.0.0.1:1", pause=pauses.append) as client, refused(FtsUnreachable, outage=True):
        client.submit(_job())
    assert len(pauses) == 2


def test_what_only_asks_is_asked_again(client: FtsClient, proxy: FaultProxy) -> None:
    job_id = client.submit(_job())
    proxy.cut(method="GET", times=2)
    assert client.status([job_id]).jobs
    proxy.cut(method="GET", times=None)
    with refused(FtsReplyLost):
        client.status([job_id])


def test_a_reply_that_is_cut_in_the_middle_is_asked_for_again(client: FtsClient, proxy: FaultProxy) -> None:
    job_id = client.submit(_job())
    proxy.cut(method="GET", body_bytes=40)
    assert client.status([job_id]).jobs
    assert proxy.count("GET", "/jobs/") == 2


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>hello</html>", b"{", b"null", b'"text"', b"{}", b"[" * 100_000, b"\xff\xfe", b"1" * 10_000,
    ],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_what_is_no_reply_about_jobs_is_refused(client: FtsClient, server: FtsServer, body: bytes) -> None:
    server.answer("GET", "/jobs/", 200, body)
    with refused(FTS_REPLY_UNEXPECTED, status=200):
        client.status([UNKNOWN])


@pytest.mark.parametrize(
    "part",
    [
        {}, {"job_id": UNKNOWN}, {"job_id": UNKNOWN, "job_state": "ACTIVE"}, {"job_id": None, "job_state": "ACTIVE"},
        {"job_id": UNKNOWN, "job_state": 3, "files": []}, {"job_id": UNKNOWN, "job_state": "ACTIVE", "files": [{}]},
        {"job_id": UNKNOWN, "job_state": "ACTIVE", "files": "none"}, {"job_id": [UNKNOWN], "http_status": "404"},
        {"job_id": UNKNOWN, "job_state": "ACTIVE", "files": [{"file_id": 1, "file_state": "ACTIVE"}]},
    ],
    ids=str,
)  # fmt: skip
def test_one_malformed_job_does_not_hide_the_others(client: FtsClient, server: FtsServer, part: Any) -> None:
    known = client.submit(_job())
    good = {"job_id": known, "job_state": "ACTIVE", "files": [], "http_status": "200 Ok"}
    server.answer("GET", "/jobs/", 207, ["text", part, good, {**good, "job_id": str(uuid.UUID(int=9))}])
    answers = client.status([UNKNOWN, known])
    assert answers.jobs[known].job_state is JobState.ACTIVE
    assert answers.errors.keys() == {UNKNOWN}
    assert answers.errors[UNKNOWN].code == FTS_REPLY_UNEXPECTED.code


def test_only_the_fields_that_are_asked_for_have_to_be_in_the_reply(client: FtsClient) -> None:
    job_id = client.submit(_job())
    (file,) = client.status([job_id], files=("file_id", "file_state")).jobs[job_id].files
    assert file.model_fields_set == {"file_id", "file_state"}


def test_a_page_with_404_is_no_word_about_a_job(client: FtsClient, server: FtsServer) -> None:
    server.answer("GET", "/jobs/", 404, b"<html>not here</html>")
    with refused(FTS_REPLY_UNEXPECTED, status=404):
        client.status([UNKNOWN])
    server.answer("GET", "/jobs/", 403, {"status": "403 Forbidden", "message": "not yours"})
    with refused(FtsForbidden, reason="not yours", retryable=True):
        client.status([UNKNOWN])


def test_a_reply_is_read_up_to_a_limit_and_a_compressed_one_up_to_the_same(
    client: FtsClient, server: FtsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MOST_REPLY", 100_000)
    server.answer("GET", "/whoami", 200, b'"' + b"x" * 200_000 + b'"')
    with refused(FTS_REPLY_UNEXPECTED):
        client.whoami()
    server.answer(
        "GET", "/whoami", 200, gzip.compress(b'{"user_dn": "/CN=u", "method": "certificate"}'), Content_Encoding="gzip"
    )
    assert client.whoami().user_dn == "/CN=u"
    bomb = gzip.compress(b" " * (transport.MOST_REPLY + 1))
    server.answer("GET", "/whoami", 200, bomb, Content_Encoding="gzip")
    with refused(FTS_REPLY_UNEXPECTED) as caught:
        client.whoami()
    assert "too large" in str(caught.value)


def test_a_redirect_is_not_followed_even_to_what_is_no_url(server: FtsServer) -> None:
    with FtsServer() as other, FtsClient(server.url, BearerToken("hidden")) as client:
        ends = [(status, f"{other.url}/whoami") for status in (301, 302, 307, 308)]
        for status, location in [*ends, *((302, one) for one in ("http://[", "", "//", "http://h:port/"))]:
            server.answer("GET", "/whoami", status, Location=location)
            with refused(FTS_REPLY_UNEXPECTED, status=status):
                client.whoami()
        assert other.asked == []


def test_a_token_is_sent_in_clear_to_this_machine_only() -> None:
    FtsClient("http://localhost:8446", BearerToken("hidden")).close()
    with refused(TOKEN_UNPROTECTED) as caught:
        FtsClient("http://fts.example.org:8446", BearerToken("hidden"))
    assert "hidden" not in str(caught.value)


def test_a_token_is_in_no_error_and_no_log(server: FtsServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.answer("GET", "/whoami", 500, {"message": "cannot read eyJhidden.hidden.hidden of Bearer eyJhidden"})
    with FtsClient(server.url, BearerToken("eyJhidden.hidden.hidden")) as client, pytest.raises(FtsError) as caught:
        client.whoami()
    assert "hidden" not in f"{caught.value!r} {caught.value.reason} {client!r} {caplog.text}"
    server.answer("GET", "/whoami", 400, {"message": "unknown:\nopaque-and-hidden-token"})
    with FtsClient(server.url, BearerToken("opaque-and-hidden-token")) as client, pytest.raises(FtsError) as caught:
        client.whoami()
    assert caught.value.reason == "unknown: <token>"


def test_a_server_that_sends_drop_by_drop_is_given_up() -> None:
    ended = Event()

    class Drops(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            while not ended.wait(0.01):
                self.wfile.write(b" ")
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                ended.set()

    with ThreadingHTTPServer(("127.0.0.1", 0), Drops) as dripping:
        Thread(target=dripping.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{dripping.server_port}"
        with FtsClient(url, timeout_s=0.3, retries=0) as client, refused(FtsReplyLost):
            client.whoami()
        assert ended.wait(30), "the connection was kept"
        dripping.shutdown()


def test_a_server_that_does_not_reply_is_given_up(proxy: FaultProxy) -> None:
    held = proxy.hold()
    with FtsClient(proxy.url, timeout_s=0.3, retries=0) as client, refused(SubmitUnclear):
        client.submit(_job())
    held.release()


def test_decisions_of_the_optimizer(client: FtsClient, server: FtsServer) -> None:
    link = {"source_se": "davs://a.example.org", "dest_se": "davs://b.example.org", "active": 7, "nostreams": 1}
    row = {**link, "ema": 1.5, "datetime": "2026-11-23T10:00:00"}
    server.answer("GET", "/optimizer/current", 200, [row])
    (decision,) = client.link_decisions()
    assert (decision.source, decision.destination, decision.active) == (link["source_se"], link["dest_se"], 7)
    assert decision.at == datetime(2026, 11, 23, 10, tzinfo=UTC)
    for wrong in ({"error": "x"}, [{**row, "active": -1}], ["x"]):
        server.answer("GET", "/optimizer/current", 200, wrong)
        with refused(FTS_REPLY_UNEXPECTED):
            client.link_decisions()


@pytest.mark.parametrize("job_id", ["", "../whoami", "a,b", 7])
def test_an_id_that_is_none_gets_into_no_path(client: FtsClient, server: FtsServer, job_id: Any) -> None:
    with refused(FTS_JOB_INVALID):
        client.status([job_id])
    with refused(FTS_JOB_INVALID):
        client.archived(job_id)
    with refused(FTS_JOB_INVALID):
        client.set_priority([UNKNOWN], 9)
    assert server.asked == []


def test_a_reply_that_is_too_large_for_the_link_is_asked_for_in_halves(server: FtsServer) -> None:
    jobs = [FtsClient(server.url).submit(FtsJob((FtsFile(f"mock://a/{n}", f"mock://b/{n}"),))) for n in range(40)]
    route, asked = server.reply, []

    def slow(request: Heard) -> Scripted:
        asked.append(request.path.count(","))
        if request.method == "GET" and request.path.count(",") > 12:
            time.sleep(0.6)
        return route(request)

    server.reply = slow  # type: ignore[method-assign]
    with FtsClient(server.url, timeout_s=0.3, retries=0) as client:
        assert set(client.status(jobs, files=()).jobs) == set(jobs)
        assert asked == [40, 20, 10, 10, 10, 10]
        asked.clear()
        assert set(client.status(jobs, files=()).jobs) == set(jobs)
        assert asked == [10, 10, 10, 10]


def test_a_link_that_loses_every_reply_is_given_up(server: FtsServer) -> None:
    (job,) = [FtsClient(server.url).submit(FtsJob((FtsFile("mock://a/1", "mock://b/1"),)))]
    server.reply = lambda _: time.sleep(0.3)  # type: ignore[method-assign, assignment, return-value]
    others = [str(uuid.UUID(int=number)) for number in range(40)]
    began = time.monotonic()
    with FtsClient(server.url, timeout_s=0.1, retries=0) as client, refused(FtsReplyLost):
        client.status([job, *others])
    assert time.monotonic() - began < 5
