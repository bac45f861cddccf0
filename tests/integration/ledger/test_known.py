"""What an earlier night published of a project is found at the same cost in a young ledger and in an old one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import event, insert, text

from include.ledger.engine import reading, writing
from include.nightlies.records import publications as records
from include.nightlies.records import tables
from include.nightlies.records.publications import earlier_destinations
from include.nightlies.rules.publication import Planned, PublicationKey

NOW = datetime(2026, 11, 21, 2, 30, 1, tzinfo=UTC)
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


def plans(ledger: Any, publication: records.Publication) -> list[str]:
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
