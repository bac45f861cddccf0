"""Replicas of a repository: the stratum 1s and other copies that readers use (docs/operations.md, replicas)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from include.settings.block import Block
from include.settings.errors import SettingsError
from include.settings.ssh import SshLogin
from include.settings.text_types import HttpUrl, Name, fault


class ReplicaSettings(Block):
    """A copy of a repository that readers use."""

    name: Name
    """What commands and pages call it."""
    url: HttpUrl
    """The folder of its `.cvmfspublished`, as clients have it with the repository's name filled in."""
    node: SshLogin | None = None
    """The stratum 1's machine, for starting its snapshots and collections; none for a copy that is only checked."""
    longest_snapshot_minutes: Annotated[int, Field(ge=1, le=10_080)] = 240
    """How long one snapshot takes at most. A collection waits so long for it, or for a replica that does not answer."""
    max_lag_hours: Annotated[float, Field(gt=0, le=720)] = 24.0
    """How long a revision that was superseded may still be this replica's newest."""

    @property
    def needs(self) -> timedelta:
        """How long it may need a revision that was superseded: its longest lag, and the snapshot that follows it."""
        return timedelta(hours=self.max_lag_hours, minutes=self.longest_snapshot_minutes)


def named_once(replicas: tuple[ReplicaSettings, ...]) -> tuple[ReplicaSettings, ...]:
    """A validator: no two replicas of a repository have one name."""
    twice = ", ".join(name for name, count in Counter(one.name for one in replicas).items() if count > 1)
    if twice:
        raise fault(f"replicas of the same name: {twice}", "Give each a unique name.")
    return replicas


def chosen(fqrn: str, replicas: Sequence[ReplicaSettings], names: Sequence[str] = ()) -> list[ReplicaSettings]:
    """The replicas of these names; all where no name is given. Raises SettingsError for a name that is not there."""
    known = {one.name: one for one in replicas}
    unknown = ", ".join(repr(name) for name in names if name not in known)
    if unknown:
        listed = ", ".join(sorted(known)) or "none"
        raise SettingsError(f"{fqrn} has no replica {unknown}; the configuration has: {listed}. Use one of these.")
    return [known[name] for name in names] if names else list(replicas)
