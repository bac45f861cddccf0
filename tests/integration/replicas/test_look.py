"""Looks at replicas over HTTP: what each state looks like from outside, and what the ledger keeps."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.main import assemble
from include.cvmfs.commit.create import create_repository
from include.nightlies.errors import NotWell
from include.nightlies.steps.care import check_replicas
from include.replicas import look
from include.replicas.look import look_at_replicas, looks_of, record, rules_of
from include.replicas.states import CollectionDecision, CollectionTurn, ReplicaLook, ReplicaState, wait_for_replicas
from include.storage.file import FileStore
from tests.fakes.attempts import attempt
from tests.fakes.replica import Answer
from tests.integration.replicas.conftest import Copies
from tests.site import FQRN, MASTER, SIGNER


def looks(copies: Copies) -> dict[str, ReplicaLook]:
    found = look_at_replicas(copies.site, FQRN, datetime.now(UTC))
    return {one.replica: one for one in found}


def states(copies: Copies) -> list[ReplicaState]:
    return [one.state for one in looks(copies).values()]


def flip(file: Path, place: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(place, os.SEEK_END)
        byte = opened.read(1)
        opened.seek(place, os.SEEK_END)
        opened.write(bytes([byte[0] ^ 1]))


def test_a_replica_is_in_sync_falls_behind_and_catches_up(copies: Copies) -> None:
    assert states(copies) == [ReplicaState.IN_SYNC] * 2
    copies.publish("a")
    head = copies.publish("b")
    copies.two.take(copies.stratum0)
    behind, synced = looks(copies).values()
    assert (behind.state, behind.behind_revisions, behind.revision) == (ReplicaState.BEHIND, 2, head - 2)
    assert (synced.state, synced.revision) == (ReplicaState.IN_SYNC, head)
    copies.one.take(copies.stratum0)
    assert states(copies) == [ReplicaState.IN_SYNC] * 2


def test_the_marker_of_a_snapshot_is_seen_with_its_time(copies: Copies) -> None:
    (copies.two.folder / ".cvmfs_status.json").write_text('{"last_snapshot": "Mon Nov 23 04:05:06 UTC 2026"}')
    copies.one.marker.write_text("Mon Nov 23 05:00:00 CET 2026\n")
    began = time.time() - 600
    os.utime(copies.one.marker, (began, began))
    one, two = looks(copies).values()
    assert one.state is ReplicaState.SNAPSHOT
    assert one.snapshot_since == datetime.fromtimestamp(int(began), UTC)
    assert two.last_snapshot == datetime(2026, 11, 23, 4, 5, 6, tzinfo=UTC)
    copies.one.manifest.unlink()  # before the first snapshot has ended there is no manifest
    assert looks(copies)["s1"].state is ReplicaState.SNAPSHOT
    copies.one.marker.unlink()
    assert looks(copies)["s1"].state is ReplicaState.UNREACHABLE


def _status(code: int) -> Answer:
    return lambda handler: handler.send_error(code)


def _begin(handler: SimpleHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 40))
    handler.end_headers()


def _endless(handler: SimpleHTTPRequestHandler) -> None:
    _begin(handler)
    while True:
        handler.wfile.write(b"x" * 65536)


class Ticks(threading.local):
    """A clock of its own for each thread: 0.1 s pass whenever it is read, however busy the machine is."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 0.1
        return self.now


def _drops(handler: SimpleHTTPRequestHandler) -> None:
    _begin(handler)
    while True:
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("document", "answer", "state"),
    [
        (".cvmfspublished", _status(503), ReplicaState.UNREACHABLE),
        (".cvmfspublished", _status(404), ReplicaState.UNREACHABLE),
        (".cvmfspublished", _endless, ReplicaState.BAD_SIGNATURE),
        (".cvmfspublished", _drops, ReplicaState.UNREACHABLE),
        (".cvmfswhitelist", _drops, ReplicaState.UNREACHABLE),
        (".cvmfswhitelist", _endless, ReplicaState.BAD_SIGNATURE),
        (".cvmfs_status.json", _endless, ReplicaState.IN_SYNC),
        (".cvmfs_is_snapshotting", _status(403), ReplicaState.IN_SYNC),
        (".cvmfs_is_snapshotting", _status(405), ReplicaState.IN_SYNC),
        (".cvmfs_is_snapshotting", _status(503), ReplicaState.UNREACHABLE),
    ],
)
def test_a_server_that_misbehaves_is_left_after_a_limit_and_hides_no_other(
    copies: Copies, monkeypatch: pytest.MonkeyPatch, document: str, answer: Answer, state: ReplicaState
) -> None:
    monkeypatch.setattr(look, "time", Ticks())
    copies.one.answers[document] = answer
    assert states(copies) == [state, ReplicaState.IN_SYNC]


def test_a_replica_that_is_quicker_than_the_look_is_not_taken_for_one_that_went_back(copies: Copies) -> None:
    def newer(handler: SimpleHTTPRequestHandler) -> None:
        copies.one.answers.clear()
        copies.publish("meanwhile")
        copies.one.take(copies.stratum0)
        SimpleHTTPRequestHandler.do_GET(handler)

    copies.one.answers[".cvmfspublished"] = newer
    assert looks(copies)["s1"].state is ReplicaState.IN_SYNC


def test_the_daily_look_fails_for_what_a_person_has_to_see_to(copies: Copies) -> None:
    copies.one.marker.touch()
    assert [one.replica for one in check_replicas(copies.site, attempt("care"), FQRN)] == ["s1", "s2"]
    flip(copies.two.manifest, -1)
    with pytest.raises(NotWell) as found:
        check_replicas(copies.site, attempt("care"), FQRN)
    assert len(found.value.problems) == 1
    assert looks_of(copies.site.ledger, FQRN)[1].state is ReplicaState.BAD_SIGNATURE


def test_what_is_not_signed_by_our_key_is_not_believed(copies: Copies) -> None:
    flip(copies.one.manifest, -1)
    flip(copies.two.folder / ".cvmfswhitelist", -1)
    assert states(copies) == [ReplicaState.BAD_SIGNATURE] * 2


def test_the_manifest_of_another_repository_is_named_as_such(copies: Copies) -> None:
    other = copies.folder / "other"
    create_repository(FileStore(other), "other.example.org", master=MASTER, signer=SIGNER, now=datetime.now(UTC))
    copies.one.manifest.write_bytes((other / ".cvmfspublished").read_bytes())
    copies.two.manifest.write_text("<html>please log in</html>")
    assert states(copies) == [ReplicaState.WRONG_REPOSITORY, ReplicaState.BAD_SIGNATURE]


def test_a_replica_that_goes_back_is_known_by_what_the_ledger_keeps(copies: Copies) -> None:
    old = copies.one.manifest.read_bytes()
    copies.publish("a")
    for each in (copies.one, copies.two):
        each.take(copies.stratum0)
    record(copies.site.ledger, looks(copies).values())
    copies.one.manifest.write_bytes(old)
    assert states(copies) == [ReplicaState.ROLLED_BACK, ReplicaState.IN_SYNC]


def test_the_ledger_keeps_the_newest_look_at_each(copies: Copies) -> None:
    now = datetime.now(UTC)
    first = looks(copies)
    record(copies.site.ledger, first.values())
    newer = replace(first["s1"], looked_at=now + timedelta(minutes=1), state=ReplicaState.UNREACHABLE, revision=None)
    record(copies.site.ledger, [newer])
    record(copies.site.ledger, [first["s1"]])
    assert looks_of(copies.site.ledger, FQRN) == [newer, first["s2"]]
    assert looks_of(copies.site.ledger, "other.example.org") == []


def before_collection(copies: Copies, now: datetime) -> CollectionDecision:
    looks = look_at_replicas(copies.site, FQRN, now)
    record(copies.site.ledger, looks)
    return wait_for_replicas(looks, rules_of(copies.site, FQRN), now)


def test_a_collection_waits_for_a_snapshot_and_goes_on_after_its_limit(copies: Copies) -> None:
    now = datetime.now(UTC)
    assert before_collection(copies, now).turn is CollectionTurn.GO_ON
    copies.one.marker.touch()
    waits = before_collection(copies, now)
    assert waits.turn is CollectionTurn.WAIT
    began = now.timestamp() - 5 * 3600
    os.utime(copies.one.marker, (began, began))
    later = before_collection(copies, now)
    assert (later.turn, later.without) == (CollectionTurn.GO_ON_WITHOUT, ("s1",))
    assert looks_of(copies.site.ledger, FQRN)[0].state is ReplicaState.SNAPSHOT


def test_the_commands_show_the_replicas_and_configure_a_client(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(copies.folder / "site.yaml"))
    monkeypatch.setattr("include.cli.main._adopt_lab", lambda: None)

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(assemble(list(words)), list(words))
        return done.exit_code, done.stdout

    code, text = run("repo", "replicas", FQRN)
    assert code == 0
    assert [line.split()[:3] for line in text.splitlines()] == [["s1", "in", "sync"], ["s2", "in", "sync"]]
    flip(copies.one.manifest, -1)
    code, text = run("repo", "replicas", FQRN, "--json")
    assert (code, [one["state"] for one in json.loads(text)]) == (1, ["bad signature", "in sync"])
    assert [one.state for one in looks_of(copies.site.ledger, FQRN)] == [
        ReplicaState.BAD_SIGNATURE,
        ReplicaState.IN_SYNC,
    ]
    assert run("repo", "replicas", FQRN, "--name", "s3")[0] == 2
    assert f'CVMFS_SERVER_URL="{copies.one.url};{copies.two.url}"' in run("repo", "client-config", FQRN)[1]
    assert f'CVMFS_SERVER_URL="file://{copies.stratum0}"' in run("repo", "client-config", FQRN, "--direct")[1]
    assert run("repo", "client-config", FQRN, "--direct", "--proxy", "http://p:1")[0] == 2
