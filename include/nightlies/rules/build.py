"""One build and its artifacts as the ledger has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from include.nightlies.rules.build_order import BuildKey
from include.nightlies.rules.index import Artifact, ParentBuild, RejectedArtifact


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
    date: date
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
