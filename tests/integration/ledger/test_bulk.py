"""Many publications at once, and what is found of earlier ones, on every kind of database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, text

from include.ledger.engine import reading, writing
from include.nightlies.errors import StaleAttempt
from include.nightlies.records import publications as records, tables
from include.nightlies.records.publications import earlier_destinations, plan_many
from include.nightlies.rules.publication import Move, Phase, Planned, PublicationKey, State

NOW = datetime(2026, 11, 21, 2, 30, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=9)
RUN = "nightly_install_main/scheduled__1"
KEYS = [PublicationKey("n.example.org", f"/nightlies/main/b42/P{number:04}/opt", RUN) for number in range(1200)]
SHA = "ab" * 32


def wanted(keys, reason="planned"):
    return {key: Planned(None, SHA, reason) for key in keys}


def publish(ledger, key):
    for to, phase in ((State.PREPARING, Phase.PREPARE), (State.PREPARED, Phase.PREPARE)):
        records.move(ledger, key, Move(to, phase, to.value), try_number=1, now=NOW)
    for to in (State.PUBLISHING, State.PUBLISHED):
        records.move(ledger, key, Move(to, Phase.PUBLISH, to.value), try_number=1, now=NOW)


def test_what_is_planned_together_is_what_would_be_planned_one_by_one(ledger):
    found = plan_many(ledger, wanted(KEYS), try_number=1, now=NOW)
    assert list(found) == KEYS
    assert {one.key for one in records.publications_of_run(ledger, RUN)} == set(KEYS)
    other = replace(KEYS[0], run_id="another")
    alone = records.plan(ledger, other, Planned(sha256=SHA), try_number=1, now=NOW)
    assert found[KEYS[0]] == replace(alone, id=found[KEYS[0]].id, run_id=RUN)


def test_the_same_try_again_changes_nothing_and_plans_what_is_new(ledger):
    first = plan_many(ledger, wanted(KEYS[:3]), try_number=1, now=NOW)
    publish(ledger, KEYS[0])
    again = plan_many(ledger, wanted(KEYS[:5]), try_number=1, now=LATER)
    assert again[KEYS[0]].state is State.PUBLISHED
    assert again[KEYS[1]] == first[KEYS[1]]
    assert [again[key].created_at for key in KEYS[2:5]] == [NOW, LATER, LATER]


def test_a_later_try_plans_anew_and_one_that_is_replaced_plans_nothing(ledger):
    plan_many(ledger, wanted(KEYS[:3]), try_number=1, now=NOW)
    publish(ledger, KEYS[0])
    anew = plan_many(ledger, wanted(KEYS[:3], "again"), try_number=2, now=LATER)
    assert anew[KEYS[0]].state is State.PLANNED
    assert anew[KEYS[0]].reason.startswith("again; planned again, was published")
    with pytest.raises(StaleAttempt):
        plan_many(ledger, wanted(KEYS[:5]), try_number=1, now=LATER)
    assert {one.key for one in records.publications_of_run(ledger, RUN)} == set(KEYS[:3]), "all of it or nothing"


def test_what_was_read_back_together_is_noted_and_what_is_not_published_is_left(ledger):
    keys = KEYS[:3]
    plan_many(ledger, wanted(keys), try_number=1, now=NOW)
    for key in keys[:2]:
        publish(ledger, key)
    records.note_verified(ledger, keys, now=LATER)
    records.note_verified(ledger, [], now=LATER)
    found = {one.key: one.verified_at for one in records.publications_of_run(ledger, RUN)}
    assert [found[key] for key in keys] == [LATER, LATER, None]


FQRN = "n.example.org"
PLATFORMS = ("opt", "dbg")
BUILDS, PROJECTS = 300, 5


def place(number: int, project: str, platform: str) -> PublicationKey:
    return PublicationKey(FQRN, f"/nightlies/main/b{number}/{project}/{platform}", f"night/{number}")


def filled(ledger: Any) -> None:
    """The nights of a slot; nothing of the newest is published yet."""
    rows: dict[str, list[dict[str, Any]]] = {"builds": [], "artifacts": [], "publications": []}
    for number in range(1, BUILDS + 1):
        seen = {"first_seen_at": NOW, "updated_at": NOW}
        day = date(2026, 1, 1) + timedelta(days=number)
        rows["builds"].append(
            {"id": number, "slot": "main", "build_id": f"b{number}", "build_date": day, "complete": True,
             "index_url": "u", "artifacts": 0, "rejected": [], **seen}
        )  # fmt: skip
        for project, platform in ((f"P{n}", platform) for n in range(PROJECTS) for platform in PLATFORMS):
            artifact = len(rows["artifacts"]) + 1
            rows["artifacts"].append(
                {"id": artifact, "build": number, "project": project, "platform": platform, "url": "u", "size": 1,
                 "sha256": "ab" * 32, "priority": 0, "dependencies": [], **seen}
            )  # fmt: skip
            planned = Planned(artifact, None, "r")
            new = records.new_row(place(number, project, platform), planned, 1, NOW + timedelta(hours=number))
            state = "planned" if number == BUILDS else "failed" if number == BUILDS - 1 else "published"
            rows["publications"].append({**new, "state": state})

    def work(connection: Any) -> None:
        for table, values in rows.items():
            connection.execute(insert(getattr(tables, table)), values)

    writing(ledger, work)


def plans(ledger: Any, publication: Any) -> list[str]:
    """How the database goes about it: a line for each table that it reads."""
    asked: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        asked.append((statement, parameters))

    event.listen(ledger, "before_cursor_execute", note)
    earlier_destinations(ledger, publication)
    event.remove(ledger, "before_cursor_execute", note)
    found: list[str] = []
    with reading(ledger) as connection:
        mysql = ledger.dialect.name != "sqlite"
        if mysql:
            connection.execute(text("ANALYZE TABLE builds, artifacts, publications"))
        for statement, parameters in (one for one in asked if one[0].startswith("SELECT")):
            rows = connection.exec_driver_sql(f"EXPLAIN {'' if mysql else 'QUERY PLAN '}{statement}", parameters)
            found += [f"{row.table} {row.key}" if mysql else row.detail for row in rows]
    return found


def test_the_destinations_are_those_of_the_newest_that_was_published_its_own_platform_first(ledger):
    filled(ledger)
    asked = records.publication(ledger, place(BUILDS, "P1", "opt"))
    assert asked is not None
    wanted = [(BUILDS - 2, "opt"), (BUILDS - 3, "opt"), (BUILDS - 2, "dbg"), (BUILDS - 3, "dbg")]
    assert earlier_destinations(ledger, asked) == tuple(place(n, "P1", p).destination for n, p in wanted)


def test_publications_are_found_by_their_artifacts_and_not_by_a_walk_through_all_of_them(fresh):
    filled(fresh)
    asked = records.publication(fresh, place(BUILDS, "P1", "opt"))
    assert asked is not None
    read = plans(fresh, asked)
    of_publications = [line for line in read if "publications" in line]
    assert len(of_publications) == 2
    assert all("ix_publications_artifact" in line for line in of_publications), read
    assert not [line for line in read if line.startswith("SCAN") or line.endswith(" None")], read
