"""A ledger with rows in every table, written and read by the functions of its subjects, and ledgers as SQL."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from sqlalchemy import Engine

from include.care.freezes import freezes
from include.care.notify.message import Message, NotifyEvent
from include.care.notify.records import alerts_since, append_note, claim, not_told, take_notes
from include.care.provenance.records import links_by_path, nearest, note
from include.care.watch.records import begun_since, is_made, note_made
from include.care.watch.runs import TaskFault, note_fault
from include.cvmfs.ingest.changeset import Changeset
from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
from include.nightlies.records import builds, damage, questions
from include.nightlies.records import created_directories as created
from include.nightlies.records import links as linked
from include.nightlies.records import publications as records
from include.nightlies.records import undos as undone
from include.nightlies.records.builds import ChangesetRecord
from include.nightlies.rules.approval import Answer
from include.nightlies.rules.index import BuildIndex, RejectedArtifact
from include.nightlies.rules.links import LinkState
from include.nightlies.rules.publication import Figures, Move, Planned, PublicationKey
from include.nightlies.rules.states import Phase, State
from include.nightlies.steps.errors import ArtifactMissing
from include.settings.model import StoreSettings
from include.settings.traits import record_traits, recorded_traits
from include.storage.options import Traits
from tests.compat.keys import FQRN, keys_folder
from tests.compat.sqldump import dump_file
from tests.compat.writers.nights import DAY, GAUDI, LHCB, PARTIAL, RUN, wanted
from tests.compat.writers.site import night_summary
from tests.compat.writers.store import AT, CHANGESET, LINK, OLDER, PLACE, PROVENANCE, ROOT, SECRET
from tests.fakes.memorystore import MemoryStore

BEFORE = date(2026, 11, 20)
HOUR = timedelta(hours=1)
BY_HAND = "publication/manual__1"
OTHER = "/nightlies/main/b1/LHCb/armv8"
NIGHTS_RUN = PublicationKey(FQRN, PLACE, RUN)
STORE = StoreSettings(name="cvmfs", url="s3://cvmfs", endpoint="http://127.0.0.1:8433")
TRAITS = Traits(put_if_absent=True, replace=True, bulk_delete=False, anonymous_read=None, etag_quotes=False)


def fill(ledger: Engine) -> None:
    """What nights, people and the watch record; every time is fixed."""
    _builds(ledger)
    _publications(ledger)
    _decisions(ledger)
    _watched(ledger)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_hex", lambda _: "0123456789abcdef")
        site = site_of(ledger)
        freezes.freeze(site, FQRN, reason="disks are moved: é", who="shift@node", until=AT + HOUR, now=AT)
        freezes.thaw(site, FQRN, who="other@node", now=AT + HOUR / 2)
        for record in (PROVENANCE, LINK):
            assert note(site, record)


def site_of(ledger: Engine) -> Any:
    """As much of a site as freezes and provenance need, on one store in memory."""
    store, keys = MemoryStore(), SimpleNamespace(keys=keys_folder())
    return SimpleNamespace(
        ledger=ledger,
        manifest_store=lambda _: store,
        repository_store=lambda _: store,
        secrets=SimpleNamespace(get=lambda _: SimpleNamespace(login="worker", password=SECRET)),
        settings=SimpleNamespace(repository=lambda _: SimpleNamespace(gateway="gateway"), gateway=keys),
    )


def _builds(ledger: Engine) -> None:
    rejected = (
        RejectedArtifact("Bad/x86", "no sum: é", 3, "Bad", "x86"),
        RejectedArtifact("artifacts[4]", "is no object", 4),
    )
    index = BuildIndex("main", "b1", DAY, True, (GAUDI, LHCB), rejected, serial=7, created=AT)
    url = "s3://builds/main/2026-11-21/index.json"
    builds.record_build(
        ledger, BuildIndex("main", "b0", date(2026, 11, 20), True, (GAUDI,)), index_url=url, now=AT - 24 * HOUR
    )
    builds.record_build(ledger, index, index_url=url, now=AT)
    builds.record_build(ledger, PARTIAL, index_url=url, now=AT + HOUR, inherited=[GAUDI])
    builds.save_changeset(
        ledger,
        ChangesetRecord(CHANGESET.digest, FQRN, PLACE, GAUDI.sha256, str(ROOT), 3, 6, CHANGESET.format().decode(), AT),
    )


def _publications(ledger: Engine) -> None:
    artifacts = builds.builds_of(ledger, "main", DAY)[-1].artifacts
    steps: list[tuple[State, Phase, Figures]] = [
        (State.PREPARING, Phase.PREPARE, Figures(artifact_sha256=GAUDI.sha256)),
        (State.PREPARED, Phase.PREPARE, Figures(changeset=CHANGESET.digest, files=9, bytes=99, objects_new=3,
                                                objects_reused=4, bytes_uploaded=50, seconds={"prepare": 1.25})),
        (State.PUBLISHING, Phase.PUBLISH, Figures(revision_before=6)),
        (State.PUBLISHED, Phase.PUBLISH, Figures(revision_after=7, root_hash=str(ROOT), nested_hash=str(OLDER),
                                                 lease_held_s=0.125, seconds={"publish": 0.5})),
    ]  # fmt: skip
    records.plan(ledger, NIGHTS_RUN, Planned(artifacts[0].id, GAUDI.sha256, "new"), try_number=1, now=AT)
    for place, (to, phase, figures) in enumerate(steps):
        at = AT + timedelta(minutes=place + 1)
        records.move(ledger, NIGHTS_RUN, Move(to, phase, f"step {place}: é", figures=figures), try_number=1, now=at)
    records.note_verified(ledger, NIGHTS_RUN, now=AT + HOUR)
    failed = PublicationKey(FQRN, OTHER, RUN)
    records.plan(ledger, failed, Planned(artifacts[1].id, LHCB.sha256, "new"), try_number=2, now=AT)
    records.move(
        ledger, failed, Move(State.FAILED, Phase.PREPARE, "gone", error=ArtifactMissing("a", "b")), try_number=1, now=AT
    )
    waiting = PublicationKey(FQRN, "/by/hand", BY_HAND)
    records.plan(ledger, waiting, Planned(reason="new"), try_number=1, now=AT)
    records.note_installed(ledger, FQRN, OTHER, LHCB.sha256, str(ROOT), now=AT)


def _decisions(ledger: Engine) -> None:
    link = linked.LinkRecord(
        linked.LINK, FQRN, "/nightlies/main/latest", "main", "b1", DAY, LinkState.MOVED.value, "from b0: é", RUN, 7, AT
    )
    linked.record(ledger, [link])
    artifact = builds.builds_of(ledger, "main", BEFORE)[0].artifacts[0]
    gone = undone.Undone(
        artifact.id, GAUDI.sha256, FQRN, PLACE, str(OLDER), None, "crashes", "undo_build/manual__1", 7, AT
    )
    undone.record(ledger, [gone])
    first = questions.ask(ledger, RUN, wanted(), now=AT, deadline=AT + HOUR)
    questions.settle(ledger, first.id, Answer.APPROVED, now=AT + HOUR / 2, by="shift", comment="gut")
    questions.ask(ledger, BY_HAND, wanted(), now=AT, deadline=AT + HOUR)
    lost = (damage.Damage(ROOT.key, "/nightlies", "is absent"), damage.Damage(OLDER.key, "/x", "is cut", 12))
    damage.note(ledger, FQRN, lost, now=AT)
    created.note(ledger, RUN, FQRN, ["/nightlies/main/b1", "/nightlies/main/b1/Gaudi"], now=AT)
    record_traits(ledger, STORE, TRAITS, now=AT)


def _watched(ledger: Engine) -> None:
    told = Message("failed:main:1", NotifyEvent.FAILED, "error", "title: é", "text", "hint", {"run": "http://x"})
    claim(ledger, told, now=AT, window=12 * HOUR)
    lost = Message("run-failed:x", NotifyEvent.RUN_FAILED, "error", "title", "text")
    claim(ledger, lost, now=AT, window=12 * HOUR)
    not_told(ledger, lost, "no answer")
    note_fault(site_of(ledger), RUN, TaskFault("plan", "IndexNotJson", "not JSON: é", FQRN), now=AT)
    append_note(ledger, "another", {"text": "kept"}, now=AT, limit=20)
    note_made(ledger, night_summary(), Path("/var/summaries/main/2026-11-21.html"), now=AT, fault=None)


def facts(ledger: Engine) -> dict[str, Any]:
    """What the functions of the subjects read in it, in words of their own: names in the code may change."""
    built = builds.builds_of(ledger, "main", DAY)
    known = builds.changeset(ledger, CHANGESET.digest)
    assert known is not None
    publications = [one for run in (RUN, BY_HAND) for one in records.publications_of_run(ledger, run)]
    asked = [one for run in (RUN, BY_HAND) for one in questions.of_run(ledger, run)]
    again = Message("failed:main:1", NotifyEvent.FAILED, "error", "title", "text")
    slot: Any = SimpleNamespace(name="main")
    (old,) = builds.builds_of(ledger, "main", BEFORE)
    taken = undone.of_build(ledger, old.id)
    said = freezes.interventions_of(ledger)
    provenance = nearest(ledger, FQRN, PLACE, limit=5)
    told = alerts_since(ledger, AT - HOUR)
    return {
        "builds": [_build(one) for one in built],
        "changeset": [known.digest, known.destination, known.generation, known.base_revision, known.body,
                      str(known.created_at)],
        "latest changeset": _digest(builds.latest_changeset(ledger, FQRN, PLACE, GAUDI.sha256)),
        "publications": [_publication(one) for one in publications],
        "open elsewhere": records.open_elsewhere(ledger, "another", FQRN, ["/by/hand"]),
        "known hashes": sorted(records.known_hashes(ledger, FQRN, PLACE)),
        "installed": records.recorded_nested_hash(ledger, FQRN, OTHER, LHCB.sha256),
        "links": [[one.kind, one.path, one.build_id, str(one.build_date), one.state, one.reason, one.revision,
                   str(one.decided_at)] for one in linked.history(ledger, FQRN, "/nightlies/main/latest")],
        "led to": str(linked.led_to(ledger, FQRN, "/nightlies/main/latest")),
        "undone": [[one.destination, one.predecessor, one.reason, one.run_id, one.revision, str(one.undone_at)]
                   for one in taken.values()],
        "questions": [[one.run_id, one.number, one.turn, one.kind.value, one.digest, one.answer.value, one.answered_by,
                       one.comment, str(one.deadline), str(one.answered_at)] for one in asked],
        "damaged": [[one.key, one.path, one.reason, one.size] for one in damage.of_repository(ledger, FQRN)],
        "created": list(created.of_run(ledger, RUN, FQRN)),
        "traits": recorded_traits(ledger, STORE) == TRAITS,
        "alerts": [[one.key, one.event, one.severity, one.title, one.times, str(one.told_at), one.fault]
                   for one in told],
        "told again": claim(ledger, again, now=AT + HOUR, window=12 * HOUR),
        "faults": take_notes(ledger, f"task-faults:{RUN}"),
        "summary is made": is_made(ledger, "main", DAY, sent=True),
        "begun": {str(day): str(at) for day, at in begun_since(ledger, slot, AT - HOUR).items()},
        "interventions": [[one.kind, one.freeze, one.who, one.reason, str(one.until), str(one.done_at)]
                          for one in said],
        "provenance": [[one.to_json(), key] for one, key in provenance],
        "links by path": links_by_path(ledger, FQRN),
    }  # fmt: skip


def go_on(ledger: Engine) -> None:
    """What is open in it is finished: a publication, a question, an artifact that was taken back."""
    waiting = PublicationKey(FQRN, "/by/hand", BY_HAND)
    moved = records.move(ledger, waiting, Move(State.PREPARING, Phase.PREPARE, "begun"), try_number=1, now=AT + HOUR)
    assert (moved.state, moved.prepare_try) == (State.PREPARING, 1)
    (asked,) = questions.of_run(ledger, BY_HAND)
    settled = questions.settle(ledger, asked.id, Answer.REJECTED, now=AT + HOUR, by="shift")
    assert settled.answer is Answer.REJECTED
    (old,) = builds.builds_of(ledger, "main", BEFORE)
    assert undone.lift(ledger, [old.artifacts[0].id], now=AT + HOUR) == 1
    prepared = builds.changeset(ledger, CHANGESET.digest)
    assert prepared is not None
    assert Changeset.parse(prepared.body) == CHANGESET


def _build(one: builds.BuildRecord) -> list[Any]:
    listed = [
        [artifact.artifact.name, artifact.artifact.url, artifact.artifact.size, artifact.artifact.sha256,
         list(artifact.artifact.dependencies), artifact.artifact.priority, artifact.inherited]
        for artifact in one.artifacts
    ]  # fmt: skip
    rejected = [[fault.name, fault.reason, fault.position, fault.project, fault.platform] for fault in one.rejected]
    return [one.build_id, str(one.date), one.complete, one.index_url, rejected, listed, str(one.base), one.serial,
            str(one.written_at), str(one.first_seen_at), str(one.updated_at)]  # fmt: skip


def _publication(one: records.Publication) -> list[Any]:
    return [
        one.run_id, one.repository, one.destination, one.state.value, one.phase.value, one.reason, one.error_class,
        one.artifact_sha256, one.changeset, one.try_number, one.plan_try, one.prepare_try, one.publish_try,
        one.approve_try, one.revision_before, one.revision_after, one.root_hash, one.nested_hash, one.files, one.bytes,
        one.objects_new, one.objects_reused, one.bytes_uploaded, dict(one.seconds), one.lease_held_s,
        str(one.created_at), str(one.updated_at), str(one.ended_at), str(one.verified_at), one.slot, one.build_id,
        one.project, one.platform,
    ]  # fmt: skip


def _digest(found: ChangesetRecord | None) -> str | None:
    return found.digest if found is not None else None


@contextlib.contextmanager
def opened(url: str, password: str | None = None) -> Iterator[Engine]:
    """A ledger, its tables of the present version."""
    engine = open_ledger(url, password=password)
    try:
        migrate(engine)
        yield engine
    finally:
        engine.dispose()


def filled_sqlite(folder: Path) -> bytes:
    """The dump of a new ledger in a folder."""
    with opened(f"sqlite:///{folder}/ledger.db") as ledger:
        fill(ledger)
    return dump_file(folder / "ledger.db")


def dump_server(connect: Callable[[], Any]) -> bytes:
    """A database of MariaDB as statements: its tables, then their rows. `connect` opens that database."""
    lines = ["SET FOREIGN_KEY_CHECKS = 0"]
    with contextlib.closing(connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        tables = sorted(row[0] for row in cursor.fetchall())
        for table in tables:
            cursor.execute(f"SHOW CREATE TABLE `{table}`")
            lines.append(cursor.fetchone()[1])
        for table in tables:
            cursor.execute(f"SELECT * FROM `{table}` ORDER BY 1")
            names = ", ".join(f"`{column[0]}`" for column in cursor.description)
            lines += [f"INSERT INTO `{table}` ({names}) VALUES {connection.literal(row)}" for row in cursor.fetchall()]
    return ";\n".join([*lines, ""]).encode()


def load_server(connect: Callable[[], Any], sql: bytes) -> None:
    """Have a dump in an empty database."""
    with contextlib.closing(connect()) as connection, connection.cursor() as cursor:
        for statement in sql.decode().split(";\n"):
            if statement.strip():
                cursor.execute(statement)


def connector(url: str, password: str) -> Callable[[], Any]:
    """Opens the database of a ledger's URL without anything of ours."""
    from sqlalchemy.engine import make_url

    at = make_url(url)
    return lambda: pymysql.connect(
        host=at.host, port=at.port, user=at.username, password=password, database=at.database, charset="utf8mb4",
        autocommit=True,
    )  # fmt: skip
