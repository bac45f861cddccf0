"""Build and its artifacts as the ledger has them, and the order of builds."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from datetime import datetime
from functools import total_ordering

from include.nightlies.rules.index import Artifact, ParentBuild, RejectedArtifact

_DIGITS = frozenset("0123456789")
_PARTS = re.compile(r"[0-9]+|[^0-9]+")


@total_ordering
@dataclass(frozen=True, slots=True)
class BuildKey:
    """Orders builds; numbers within an id count as numbers, so that b9 is before b10."""

    date: dt.date
    build_id: str

    def __lt__(self, other: BuildKey) -> bool:
        return self._sorted() < other._sorted()

    def __str__(self) -> str:
        return f"build {self.build_id} of {self.date}"

    def _sorted(self) -> tuple[object, ...]:
        parts = _PARTS.findall(self.build_id)
        # the id itself comes last: b1 and b01 are two builds
        return (
            self.date,
            tuple((0, int(part), "") if part[0] in _DIGITS else (1, 0, part) for part in parts),
            self.build_id,
        )


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """An artifact as the ledger knows it; `id` is what a publication refers to.

    `inherited`: the build that a partial one took it from; None: its own index lists it.
    """

    id: int
    build: int
    artifact: Artifact
    first_seen_at: datetime
    updated_at: datetime
    inherited: str | None = None


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """A build as the ledger knows it, with all artifacts that were ever listed for it."""

    id: int
    slot: str
    build_id: str
    date: dt.date
    complete: bool
    index_url: str
    rejected: tuple[RejectedArtifact, ...]
    first_seen_at: datetime
    updated_at: datetime
    artifacts: tuple[ArtifactRecord, ...]
    base: ParentBuild | None = None
    serial: int | None = None
    written_at: datetime | None = None

    @property
    def key(self) -> BuildKey:
        """Its place among the builds of its slot."""
        return BuildKey(self.date, self.build_id)

    def artifact(self, project: str, platform: str) -> ArtifactRecord | None:
        """The artifact of that project and platform, or None."""
        wanted = (project, platform)
        return next(
            (record for record in self.artifacts if (record.artifact.project, record.artifact.platform) == wanted), None
        )
