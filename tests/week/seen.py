"""Looks at everything that a week left behind, and holds it against what was planned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from typing import Any

from sqlalchemy import select

from include.cvmfs.revision.repository import Repository
from include.ledger.engine import reading
from include.nightlies.records.tables import artifacts, builds, publications
from tests.week import checks
from tests.week.checks import Row
from tests.week.expected import Expected
from tests.week.night import ENDED, Played, dag_of, leases
from tests.week.place import Deployment
from tests.week.plan import Pair
from tests.week.reader import Reader, Wanted, tree_of
from tests.week.trees import stored_hash

Wrong = dict[str, list[str]]
"""What is wrong, by the rule that says so."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the week came to. `summaries`: by slot and date, as the program gives them; `looks`: of the reader."""

    wrong: Wrong
    summaries: Mapping[tuple[str, date], Mapping[str, Any]]
    revision: int
    paths: int
    looks: int
    longest_gap_s: float
    link_moves: int
    notes: list[str] = field(default_factory=list)


def wanted(expected: Expected) -> Wanted:
    """What the reader has to find in a build."""
    stamps = {path: frozenset(stored_hash(one.stamp) for one in trees) for path, trees in expected.ever.items()}
    return Wanted(expected.required, stamps)


def look(deployment: Deployment, expected: Expected, reader: Reader, played: Played, seconds: float) -> Seen:
    """Everything, once the nights are over and the reader has stopped."""
    found = Repository.open(deployment.public_url, fqrn=deployment.fqrn, public_keys=[deployment.public_key])
    tree = tree_of(found.revision)
    summaries, rows, listed = summaries_of(deployment, expected), rows_of(deployment), listed_of(deployment)
    samples = reader.samples
    looks = sum(one.looks for one in samples)
    wrong: Wrong = {
        "what readers could read": reader.faults,
        "links lead to whole builds": checks.links_lead_to_whole_builds(samples),
        "links never go back": checks.links_never_go_back(samples, expected.order),
        "revisions never go back": checks.revisions_never_go_back(samples),
        "the reader looked often enough": checks.looked_often_enough(reader.longest_gap_s, looks, seconds),
        "nothing moves while frozen": [
            line
            for one in played.happenings
            if one.kind == "freeze"
            for line in checks.nothing_moves_while_frozen(samples, one.quiet_s, one.ended_s)
        ],
        "links in the end": checks.links_in_the_end(reader.look().links, expected.links),
        "every path is there once": checks.paths_are_there_once(tree, expected.paths()),
        "tags": checks.tags_are((one.name for one in found.tags()), expected.tags),
        "each artifact is published once": checks.published_once(one for group in rows.values() for one in group),
        "summaries": [
            line
            for key, outcome in expected.outcomes.items()
            for line in checks.summary_matches(summaries[key], outcome, rows.get(key, ()), listed.get(key, ()))
        ],
        "nothing is left": checks.nothing_is_left(
            leases=leases(deployment), frozen=_frozen(deployment), runs=_under_way(deployment),
            import_errors=[one["filename"] for one in deployment.api().import_errors()],
        ),
        "nightshift repo check": _checked(deployment),
    }  # fmt: skip
    moves = sum(
        one.links.get(path) != before.links.get(path) for before, one in pairwise(samples) for path in one.links
    )
    return Seen(wrong, summaries, found.manifest.revision, len(tree), looks, reader.longest_gap_s, moves)


def problems(wrong: Wrong) -> list[str]:
    """All of it in lines."""
    return [f"{rule}: {line}" for rule, lines in wrong.items() for line in lines]


def summaries_of(deployment: Deployment, expected: Expected) -> dict[tuple[str, date], Mapping[str, Any]]:
    """What `nightshift nightly summary` says of each night, by slot and date."""
    days = sorted({day for _, day in expected.outcomes})
    found: dict[tuple[str, date], Mapping[str, Any]] = {}
    for day in days:
        # its exit code says whether everything required is there; here that is compared with the plan
        text = deployment.command("nightly", "summary", "--date", day.isoformat(), "--json", good=(0, 1))
        found |= {(one["slot"], day): one for one in json.loads(text)}
    return found


def rows_of(deployment: Deployment) -> dict[tuple[str, date], Sequence[Row]]:
    """What runs did for the artifacts of each build, by its slot and date, the newest first."""
    query = (
        select(publications, builds.c.slot, builds.c.build_date, artifacts.c.project, artifacts.c.platform,
               artifacts.c.sha256.label("present"))
        .join(artifacts, publications.c.artifact == artifacts.c.id)
        .join(builds, artifacts.c.build == builds.c.id)
        .order_by(publications.c.updated_at.desc(), publications.c.id.desc())
    )  # fmt: skip
    found: dict[tuple[str, date], list[Row]] = {}
    with reading(deployment.site.ledger) as connection:
        for row in connection.execute(query).mappings():
            one = Row(
                pair=(row["project"], row["platform"]),
                destination=row["destination"],
                sha256=row["artifact_sha256"] or "",
                state=row["state"],
                run=row["run_id"],
                listed=row["artifact_sha256"] == row["present"],
                files=row["files"],
                revision=row["revision_after"],
            )
            found.setdefault((row["slot"], row["build_date"]), []).append(one)
    return dict(found)


def listed_of(deployment: Deployment) -> dict[tuple[str, date], Iterable[Pair]]:
    """What the ledger has of each build, by its slot and date."""
    query = select(builds.c.slot, builds.c.build_date, artifacts.c.project, artifacts.c.platform).join(
        artifacts, artifacts.c.build == builds.c.id
    )
    found: dict[tuple[str, date], list[Pair]] = {}
    with reading(deployment.site.ledger) as connection:
        for slot, day, project, platform in connection.execute(query):
            found.setdefault((slot, day), []).append((project, platform))
    return dict(found)


def _frozen(deployment: Deployment) -> list[str]:
    standing = json.loads(deployment.command("freeze", "--list", "--json"))
    known = [(one["repository"], one["frozen"] or one["unknown"]) for one in standing]
    return [f"{name}: {why}" for name, why in known if why]


def _under_way(deployment: Deployment) -> list[str]:
    api = deployment.api()
    return [
        f"{one['dag_run_id']} of {slot} is {one['state']}"
        for slot in deployment.settings.slots
        for one in api.runs(dag_of(slot), prefix="")
        if one["state"] not in ENDED
    ]


def _checked(deployment: Deployment) -> list[str]:
    key = str(deployment.settings.repository(deployment.fqrn).public_key)
    said = deployment.command("repo", "check", deployment.public_url, "--key", key, "--contents", good=(0, 1, 2))
    return [] if "no problems found" in said else said.strip().splitlines()[-5:] or ["nothing was said"]
