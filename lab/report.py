"""What a night came to: per artifact and in total, for people and as var/last-night.json."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from include.nightlies.rules.publication import Publication
from include.nightlies.rules.states import State


@dataclass(frozen=True, slots=True)
class ArtifactLine:
    """One artifact of a night; sizes in bytes, times in seconds."""

    project: str
    platform: str
    state: str
    reason: str
    files: int
    bytes: int
    objects_new: int
    objects_reused: int
    bytes_uploaded: int
    seconds: float
    lease_held_s: float

    @classmethod
    def of(cls, one: Publication) -> "ArtifactLine":
        return cls(
            project=one.project or "",
            platform=one.platform or one.destination,
            state=one.state.value,
            reason=one.reason,
            files=one.files or 0,
            bytes=one.bytes or 0,
            objects_new=one.objects_new or 0,
            objects_reused=one.objects_reused or 0,
            bytes_uploaded=one.bytes_uploaded or 0,
            seconds=round(sum(one.seconds.values()), 2),
            lease_held_s=round(one.lease_held_s or 0.0, 3),
        )


@dataclass(frozen=True, slots=True)
class NightReport:
    """A night as it ended."""

    slot: str
    date: str
    run: str
    repository: str
    url: str
    public_key: str
    revision: int
    root_hash: str
    lines: tuple[ArtifactLine, ...]
    expected: int
    problems: tuple[str, ...]  # of the repository check
    wall_s: float

    @property
    def good(self) -> bool:
        """Every artifact that the build lists is in the repository, and the repository has no problem."""
        return (
            not self.problems and len(self.lines) == self.expected and self.published + self.unchanged == self.expected
        )

    @property
    def published(self) -> int:
        return self._count(State.PUBLISHED)

    @property
    def unchanged(self) -> int:
        return self._count(State.UNCHANGED)

    @property
    def failed(self) -> int:
        """Every artifact that is not in the repository, whatever the reason."""
        return self.expected - self.published - self.unchanged

    def total(self, field: str) -> int:
        """The sum of a field over all artifacts."""
        return sum(getattr(line, field) for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "date": self.date,
            "run": self.run,
            "repository": self.repository,
            "url": self.url,
            "public_key": self.public_key,
            "revision": self.revision,
            "root_hash": self.root_hash,
            "artifacts": self.expected,
            "published": self.published,
            "unchanged": self.unchanged,
            "failed": self.failed,
            "files": self.total("files"),
            "bytes": self.total("bytes"),
            "objects_new": self.total("objects_new"),
            "objects_reused": self.total("objects_reused"),
            "bytes_uploaded": self.total("bytes_uploaded"),
            "lease_held_s_max": max((line.lease_held_s for line in self.lines), default=0.0),
            "wall_s": round(self.wall_s, 1),
            "check": list(self.problems) or "no problems found",
            "good": self.good,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "per_artifact": [asdict(line) for line in self.lines],
        }

    def write(self, path: Path) -> None:
        """Writes the report; a reader sees the old one or the new one."""
        draft = path.with_name(path.name + ".new")
        draft.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        draft.replace(path)

    def client_configuration(self) -> str:
        """The five lines with which a CernVM-FS client mounts the repository."""
        return "\n".join(
            (
                f"CVMFS_REPOSITORIES={self.repository}",
                f"CVMFS_SERVER_URL={self.url}",
                f"CVMFS_PUBLIC_KEY={self.public_key}",
                "CVMFS_HTTP_PROXY=DIRECT",
                "CVMFS_CLIENT_PROFILE=single",
            )
        )

    def _count(self, state: State) -> int:
        return sum(line.state == state.value for line in self.lines)


def artifact_lines(publications: Sequence[Publication]) -> tuple[ArtifactLine, ...]:
    """The artifacts of a run, by project and platform."""
    lines = (ArtifactLine.of(one) for one in publications if one.artifact is not None or one.project)
    return tuple(sorted(lines, key=lambda line: (line.project, line.platform)))
