"""A night of the ledger as rows that no ledger has, and its summary."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

from include.monitoring.summary import Summary, summary
from include.nightlies.records.quality import QualityRecord
from include.nightlies.rules.build import ArtifactRecord, BuildRecord
from include.nightlies.rules.index import Artifact
from include.nightlies.rules.publication import Phase, Publication, State
from include.settings.model import Choice, Slot

NOW = datetime(2026, 11, 21, 7, tzinfo=UTC)
DAY = date(2026, 11, 21)
SLOT = Slot(name="main", repository="r.example.org", store="builds", optional=Choice(platforms=("armv8",)))
SHA = "a" * 64


def built(*names: str, number: int = 1, day: date = DAY, complete: bool = True, rejected: Any = ()) -> BuildRecord:
    """A build of these artifacts, whose ids begin at 100 times its number."""
    pairs = [name.split("/") for name in names]
    records = [
        ArtifactRecord(100 * number + place, number, Artifact(project, platform, "u", 1, SHA), NOW, NOW)
        for place, (project, platform) in enumerate(pairs)
    ]
    return BuildRecord(number, "main", f"b{number}", day, complete, "u", tuple(rejected), NOW, NOW, tuple(records))


def published(artifact: int, state: State, reason: str = "why", run: str = "night/run", **more: Any) -> Publication:
    """A row about the artifact with this id."""
    row: dict[str, Any] = dict.fromkeys(Publication.__slots__) | {
        "id": 1, "run_id": run, "repository": "r.example.org", "destination": "/d", "artifact": artifact,
        "artifact_sha256": SHA, "state": state, "reason": reason, "phase": Phase.PUBLISH, "try_number": 1,
        "plan_try": 1, "prepare_try": 1, "publish_try": 1, "seconds": {"a": 1.5, "b": 1}, "created_at": NOW,
        "updated_at": NOW,
    }  # fmt: skip
    return Publication(**{**row, **more})


def of(
    *builds: BuildRecord,
    before: BuildRecord | None = None,
    slot: Slot = SLOT,
    blocked: Sequence[QualityRecord] = (),
    **rows: list[Publication],
) -> Summary:
    """The summary of a night, from its builds and the rows of each by its id."""
    publications = {build.id: rows.get(build.build_id, []) for build in builds}
    return summary(
        slot, DAY, builds=builds, publications=publications, before=before, links=(), now=NOW, log_of=str.upper,
        blocked=blocked,
    )  # fmt: skip
