"""The plan of a retention, which a person or a task reads before anything is removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from include.nightlies.rules.retention_rules import HeldBuild, RetentionDecision


@dataclass(frozen=True, slots=True)
class HeldByTag:
    """A tag and what its revision holds of the slot. `names`: the directories of the builds that it is for.

    `builds`: all that it holds; `only`: those of them that the current revision does not hold any more. `goes`: whether
    the repository's rule for tags takes it away, `reason`: why, or why not.
    """

    name: str
    revision: int
    names: tuple[str, ...]
    builds: tuple[str, ...]
    only: tuple[str, ...]
    goes: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "revision": self.revision,
            "names": list(self.names),
            "builds": list(self.builds),
            "only": list(self.only),
            "goes": self.goes,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HeldByTag:
        lists = {name: tuple(value[name]) for name in ("names", "builds", "only")}
        return cls(value["name"], value["revision"], **lists, goes=value["goes"], reason=value["reason"])


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What was decided of each build, the newest first, in which revision. `notes`: what could not be read."""

    slot: str
    repository: str
    revision: int
    made_at: datetime
    decisions: tuple[RetentionDecision, ...]
    tags: tuple[HeldByTag, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def expired(self) -> tuple[RetentionDecision, ...]:
        """The builds that go."""
        return tuple(decision for decision in self.decisions if decision.remove)

    @property
    def bytes(self) -> int:
        """Of the files of the builds that go, in bytes; the store may free less, since others share them."""
        return sum(decision.build.bytes for decision in self.expired)

    def lines(self) -> list[str]:
        """The builds that go and why, for people; then what could not be read."""
        count = f"slot {self.slot}: {len(self.expired)} of {len(self.decisions)} builds go, {self.bytes / 1e6:,.1f} MB"
        going = [
            f"{decision.build.directory}, {decision.build.bytes / 1e6:,.1f} MB: {decision.reason}"
            for decision in self.expired
        ]
        return [count, *going, *self.notes]

    def to_json(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "repository": self.repository,
            "revision": self.revision,
            "made_at": self.made_at.isoformat(),
            "remove": len(self.expired),
            "bytes": self.bytes,
            "builds": [
                decision.build.to_json() | {"remove": decision.remove, "reason": decision.reason}
                for decision in self.decisions
            ],
            "tags": [tag.to_json() for tag in self.tags],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RetentionPlan:
        """Read what `to_json` wrote. Raises KeyError, ValueError or TypeError for another shape."""
        return cls(
            slot=value["slot"],
            repository=value["repository"],
            revision=value["revision"],
            made_at=datetime.fromisoformat(value["made_at"]),
            decisions=tuple(
                RetentionDecision(HeldBuild.from_json(build), build["remove"], build["reason"])
                for build in value["builds"]
            ),
            tags=tuple(HeldByTag.from_json(tag) for tag in value["tags"]),
            notes=tuple(value["notes"]),
        )


@dataclass(frozen=True, slots=True)
class RemovedBuilds:
    """What became of a plan, by the directories of its builds. `revision`: in which builds went, None: none was made.

    `absent`: what an earlier try had removed; `kept`: what stayed after all, and why.
    """

    revision: int | None
    removed: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "removed": list(self.removed),
            "absent": list(self.absent),
            "kept": dict(self.kept),
        }
