"""What a night does again by itself: trees whose objects were collected or lost, and preparations that died."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from include.cli.repo import app
from include.cvmfs.errors import BaseChanged, CollectionRunning
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.upload import RECORD_BYTES
from include.cvmfs.revision.revision import Revision
from include.gateway.errors import GatewayUnreachable
from include.monitoring.audit import AuditChoice, audit
from include.nightlies.errors import NotVerified
from include.nightlies.records import builds, damage
from include.nightlies.records.publications import history, publications_of_run
from include.nightlies.records.tables import changesets
from include.nightlies.rules.publication import State
from include.nightlies.steps import prepare as prepare_step
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.publish import give_up, publish_batch, reserve_run
from include.nightlies.steps.values import Batch
from include.nightlies.steps.verify import verify_run
from include.publishers.native import NativePublisher
from include.site.changes import SENT
from include.storage.errors import Unavailable
from tests.fakes.attempts import attempt
from tests.fakes.builds import tree
from tests.fakes.collector import Collector
from tests.fakes.refused import refused
from tests.nights import Nights
from tests.site import FQRN, now
from triggers.checks import CHECKS

FILES = {"lib/common.so": b"the same every night" * 300, "bin/tool": b"#!/bin/sh\n"}
NIGHT = {"Gaudi": FILES}


def test_a_tree_whose_objects_were_collected_is_prepared_again_by_the_step(nights: Nights) -> None:
    nights.night(1, NIGHT)
    batch = nights.plan(2, NIGHT)
    nights.prepare(batch)
    assert nights.publication(batch).objects_reused
    nights.forget_the_first()
    nights.collector().run()
    outcome = nights.publish(batch)
    assert not outcome.failures
    (done,) = outcome.done
    assert done.state is State.PUBLISHED
    assert "prepared again, since" in done.reason
    assert done.objects_new
    nights.assert_whole()


def beside_a_collection(nights: Nights) -> tuple[Batch, Collector]:
    """A batch whose tree was prepared before a collection put what it needs on its list."""
    nights.night(1, NIGHT)
    batch = nights.plan(2, NIGHT)
    nights.prepare(batch)
    nights.forget_the_first()
    collector = nights.collector()
    collector.to_the_list()
    return batch, collector


def test_while_a_collection_runs_a_publication_waits_for_its_shards_and_is_prepared_again(nights: Nights) -> None:
    batch, collector = beside_a_collection(nights)
    outcome = nights.publish(batch, try_number=1)
    assert not outcome.failures
    (waiting,) = outcome.busy.values()
    assert isinstance(waiting, CollectionRunning)
    what = {"repository": FQRN, "number": waiting.number, "shards": list(waiting.shards)}
    assert waiting.repository == FQRN

    def ready() -> bool:
        return CHECKS["collection"].look(lambda: nights.site, **what).ready

    assert not ready()
    reason = nights.publication(batch).reason
    collector.sweep_shards(max(waiting.shards))
    assert not ready()
    assert nights.publish(batch, try_number=1).busy
    assert nights.publication(batch).reason == reason, "it waits for the same, since the same time"
    collector.sweep_shards(max(waiting.shards) + 1)
    assert ready()
    outcome = nights.publish(batch, try_number=1)
    assert not outcome.busy
    assert not outcome.failures
    (done,) = outcome.done
    assert done.state is State.PUBLISHED
    assert "prepared again, since" in done.reason
    collector.sweep_shards(256)
    collector.end()
    assert ready()
    nights.assert_whole()


def test_a_publication_that_waited_for_a_collection_in_vain_is_recorded_with_its_reason(nights: Nights) -> None:
    batch, _ = beside_a_collection(nights)
    busy = nights.publish(batch).busy
    ((name, waiting),) = busy.items()
    why = waiting.why_given_up(21600)
    give_up(nights.site.ledger, attempt(), batch, busy, name, why)
    found = nights.publication(batch)
    assert (found.state, found.code, found.reason) == (State.FAILED, "collection-running", why)


def away(*_: object, **__: object) -> None:
    raise Unavailable("no answer", key="data", cause="connection")


def test_an_outage_that_is_waited_out_fails_nothing_and_the_same_try_goes_on(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise GatewayUnreachable("no connection")

    site, batch = nights.site, nights.plan(1, {**NIGHT, "LHCb": FILES})
    with monkeypatch.context() as patch:
        patch.setattr(prepare_step, "opened", away)
        with pytest.raises(Unavailable):
            prepare_batch(site, attempt(outlast=True), batch)
    assert not prepare_batch(site, attempt(outlast=True), batch).failures
    reserve_run(site, attempt(), [batch])
    with monkeypatch.context() as patch:
        patch.setattr(NativePublisher, "publish", unreachable)
        with pytest.raises(GatewayUnreachable):
            publish_batch(site, attempt(outlast=True), batch)
    states = {one.state for one in publications_of_run(site.ledger, batch.run)}
    assert states == {State.PREPARED, State.PUBLISHING}, "nothing failed"
    outcome = publish_batch(site, attempt(outlast=True), batch)
    assert not outcome.failures
    assert {one.state for one in outcome.done} == {State.PUBLISHED}
    with monkeypatch.context() as patch:
        patch.setattr(Revision, "walk", away)
        with pytest.raises(Unavailable):
            verify_run(site, attempt(batch.run, outlast=True))
    assert len(verify_run(site, attempt(batch.run, outlast=True))) == 2


def test_an_outage_without_a_wait_is_recorded_with_each_artifact(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = nights.plan(1, NIGHT)
    monkeypatch.setattr(prepare_step, "opened", away)
    assert list(nights.prepare(batch).failures) == ["Gaudi/x86_64"]
    found = nights.publication(batch)
    assert (found.state, found.code) == (State.FAILED, "store-unavailable")


def test_a_changeset_of_yesterday_is_prepared_again(nights: Nights) -> None:
    batch = nights.plan(1, NIGHT)
    nights.prepare(batch)
    ledger, digest = nights.site.ledger, nights.publication(batch).changeset
    record = builds.changeset(ledger, digest or "")
    assert record is not None
    old = replace(Changeset.parse(record.body), created=now() - timedelta(hours=30))
    with ledger.begin() as connection:
        values = {"body": old.format().decode(), "created_at": old.created}
        connection.execute(update(changesets).where(changesets.c.digest == digest).values(**values))
    (done,) = nights.publish(batch).done
    assert done.state is State.PUBLISHED
    assert "more than 24 h" in done.reason
    kept = builds.changeset(ledger, done.changeset or "")
    assert kept is not None
    assert now() - Changeset.parse(kept.body).created < timedelta(minutes=5)


def test_a_catalog_that_the_store_lost_is_sent_again_by_the_step(nights: Nights) -> None:
    batch = nights.plan(1, {"Gaudi": {**FILES, "share/.cvmfscatalog": b"", "share/doc": b"read me"}})
    nights.prepare(batch)
    record = builds.changeset(nights.site.ledger, nights.publication(batch).changeset or "")
    assert record is not None
    nights.store.delete([Changeset.parse(record.body).root.key])
    (done,) = nights.publish(batch).done
    assert done.state is State.PUBLISHED
    nights.assert_whole()
    assert damage.of_repository(nights.site.ledger, FQRN) == ()


def test_the_next_try_derives_from_another_publication_in_between(nights: Nights) -> None:
    (first,) = nights.night(1, NIGHT).values()
    rebuilt = nights.plan(1, {"Gaudi": {**FILES, "new": b"rebuilt"}}, "night/rebuilt")
    nights.prepare(rebuilt)
    rival = nights.prepared(first.destination, {"by-hand": b"a rival's"})
    nights.site.publisher(FQRN).publish(rival, holder="rival", now=now())

    (failure,) = nights.publish(rebuilt, try_number=1).failures.values()
    assert isinstance(failure, BaseChanged)
    assert failure.retryable
    assert nights.head().revision.read(f"{first.destination}/by-hand") == b"a rival's"

    (done,) = nights.publish(rebuilt, try_number=2).done
    assert done.state is State.PUBLISHED
    assert "prepared again, since" in done.reason
    assert nights.head().revision.read(f"{first.destination}/new") == b"rebuilt"
    nights.assert_whole()


def test_what_was_derived_from_comes_back_and_the_same_changeset_is_published(nights: Nights) -> None:
    """A retry first tries what is there: nothing has to be read again if the destination is as it was."""
    (first,) = nights.night(1, NIGHT).values()
    rebuilt = nights.plan(1, {"Gaudi": {**FILES, "new": b"rebuilt"}}, "night/rebuilt")
    nights.prepare(rebuilt)
    publisher = nights.site.publisher(FQRN)
    ledger = nights.site.ledger
    record = builds.latest_changeset(ledger, FQRN, first.destination, first.artifact_sha256 or "")
    assert record is not None
    before = Changeset.parse(record.body)
    rival = nights.prepared(first.destination, {"other": b"a rival's"})
    publisher.publish(rival, holder="rival", now=now())
    assert nights.publish(rebuilt, try_number=1).failures
    head = nights.head().manifest
    publisher.publish(replace(before, base_root=head.root, base_revision=head.revision), holder="rival", now=now())
    (done,) = nights.publish(rebuilt, try_number=2).done
    assert "prepared again" not in done.reason
    nights.assert_whole()


def test_lost_objects_are_found_by_a_check_and_sent_again_by_the_next_night(nights: Nights) -> None:
    (first,) = nights.night(1, NIGHT).values()
    tree = nights.head()
    entry = tree.revision.entry(f"{first.destination}/lib/common.so")
    assert entry.hash is not None
    nights.store.delete([entry.hash.key])

    (unaware,) = nights.night(2, NIGHT).values()
    assert unaware.objects_reused, "what is believed to be there is not sent"
    report = nights.check()
    assert report.problem_count
    damage.note_report(nights.site.ledger, report, everything=True, now=now())

    assert nights.night(3, NIGHT)
    nights.assert_whole()
    assert damage.of_repository(nights.site.ledger, FQRN) == ()


def test_an_object_whose_bytes_rotted_leaves_the_list_once_it_was_sent_again_and_no_sooner(nights: Nights) -> None:
    (first,) = nights.night(1, NIGHT).values()
    entry = nights.head().revision.entry(f"{first.destination}/lib/common.so")
    assert entry.hash is not None
    whole = nights.store.get(entry.hash.key)
    nights.store.put(entry.hash.key, bytes([whole[0] ^ 1]) + whole[1:])
    ledger, report = nights.site.ledger, nights.check()
    damage.note_report(ledger, report, everything=True, now=now())
    (rotten,) = damage.of_repository(ledger, FQRN)
    assert (rotten.key, rotten.size) == (entry.hash.key, len(whole))
    assert damage.look_again(ledger, FQRN, nights.store, [rotten]) == (rotten,)

    assert nights.night(2, NIGHT)
    assert damage.of_repository(ledger, FQRN) == ()
    nights.assert_whole()


def test_what_does_not_read_back_after_a_night_is_noted_and_the_same_build_run_again_mends_it(nights: Nights) -> None:
    (first,) = nights.night(1, NIGHT).values()
    entry = nights.head().revision.entry(f"{first.destination}/lib/common.so")
    assert entry.hash is not None
    nights.store.delete([entry.hash.key])
    with refused(NotVerified):
        verify_run(nights.site, attempt(first.run_id))
    assert [one.key for one in damage.of_repository(nights.site.ledger, FQRN)] == [entry.hash.key]
    again = nights.planned(1, "night/again")
    nights.prepare(again)
    (done,) = nights.publish(again).done
    assert done.state is State.UNCHANGED
    nights.assert_whole()
    assert damage.of_repository(nights.site.ledger, FQRN) == ()
    assert len(history(nights.site.ledger, FQRN, first.destination)) == 2


# -- a preparation that was killed

_DYING = """
import itertools, json, os, signal, sys
from include.cvmfs.ingest.upload import UploadJournal
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.values import Batch
from include.site.site import Site
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from tests.fakes.attempts import attempt

sent, note = itertools.count(1), UploadJournal.note

def dies(self, key):
    note(self, key)
    if next(sent) == 300:
        os.kill(os.getpid(), signal.SIGKILL)

UploadJournal.note = dies
batch, site = Batch.from_json(json.loads(sys.stdin.read())), Site(load(), EnvSecrets())
prepare_batch(site, attempt(), batch)
"""


@pytest.mark.server("weed")
@pytest.mark.parametrize("place", ["weed"], indirect=True)  # on a disk nothing needs to be written down
def test_a_killed_preparation_goes_on_where_it_was_and_another_process_publishes_it(nights: Nights) -> None:
    content = random.Random(11)
    files = {f"lib/{number:05}": content.randbytes(2000) for number in range(600)}
    batch = nights.plan(1, {"Gaudi": files})
    died = subprocess.run(
        [sys.executable, "-c", _DYING], input=json.dumps(batch.to_json()), capture_output=True, text=True,
        env={**os.environ, **nights.environment},
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    journal = nights.site.settings.paths.var / SENT
    (entries,) = journal.iterdir()
    written = entries.stat().st_size // RECORD_BYTES - 10
    assert written >= 250

    before = nights.store.counters.puts
    assert not nights.prepare(batch, try_number=2).failures
    done = nights.publication(batch)
    sent_again = nights.store.counters.puts - before
    assert done.objects_reused is not None
    assert done.objects_reused >= written, "all but what was under way or not written down yet"
    assert sent_again <= 600 - done.objects_reused + 5
    assert list(journal.iterdir()) == []
    assert not nights.publish(batch).failures
    nights.assert_whole()


# -- the commands that note and mend damage


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def lost(nights: Nights) -> list[str]:
    return [one.path for one in damage.of_repository(nights.site.ledger, FQRN)]


def test_what_a_check_finds_is_noted_and_a_tree_that_has_it_mends_it(nights: Nights, tmp_path: Path) -> None:
    (done,) = nights.night(1, {"Gaudi": FILES}).values()
    at = done.destination
    head = nights.head()
    keys = [head.revision.entry(f"{at}/{name}").hash for name in FILES]
    nights.store.delete([one.key for one in keys if one is not None])

    code, said = run("check", FQRN)
    assert code == 1
    assert "2 problems found" in said
    assert sorted(lost(nights)) == sorted(f"{at}/{name}" for name in FILES)

    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "tool").write_bytes(FILES["bin/tool"])
    code, said = run("repair", FQRN, "--objects", str(tmp_path / "part"))
    assert code == 1
    assert f"needed by {at}/lib/common.so" in said
    assert "1 objects" in said
    assert run("repair", FQRN, "--objects", str(tmp_path / "part"))[0] == 1  # sends nothing
    (act,) = audit(nights.site.ledger, AuditChoice(kind="repair"))
    assert act.what == f"{FQRN}: 1 objects sent again"
    assert lost(nights) == [f"{at}/lib/common.so"]

    (tmp_path / "whole.tar.gz").write_bytes(tree(FILES))
    code, said = run("repair", FQRN, "--objects", str(tmp_path / "whole.tar.gz"), "--json")
    assert code == 0, said
    assert json.loads(said)["missing"] == []
    assert lost(nights) == []
    assert run("check", FQRN, "--full")[0] == 0


def test_a_lost_catalog_is_made_again_at_its_destination(nights: Nights, tmp_path: Path) -> None:
    (done,) = nights.night(1, {"Gaudi": FILES}).values()
    nested = nights.head().revision.nested_at(done.destination)
    assert nested is not None
    nights.store.delete([nested.hash.with_suffix("C").key])
    assert run("check", FQRN)[0] == 1
    (tmp_path / "whole.tar.gz").write_bytes(tree(FILES))
    code, said = run("repair", FQRN, "--objects", str(tmp_path / "whole.tar.gz"), "--at", done.destination)
    assert code == 0, said
    assert run("check", FQRN, "--full")[0] == 0
    assert lost(nights) == []
