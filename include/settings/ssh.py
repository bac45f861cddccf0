"""Settings of machines where `cvmfs_server` runs: a publisher node, a stratum 1 with its replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from include.settings.errors import SettingsError
from include.settings.prepare import Block
from include.settings.text_types import ConnectionId, HostName, HttpUrl, Name, NodeFolder, SitePath, fault


class SshLogin(Block):
    """Address, user and keys of a login over SSH."""

    host: HostName
    """Its name or address."""
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    """Port of its SSH server."""
    user: Annotated[str, Field(min_length=1)]
    """User name there."""
    known_hosts: SitePath
    """A file as OpenSSH has it; a machine whose key is not in it is refused."""
    key: SitePath | None = None
    """The file of our private key."""
    connection: ConnectionId | None = None
    """The connection whose password opens the key file; none for a key without."""
    agent: bool = False
    """Takes our key from an SSH agent."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] = ("cvmfs_server",)
    """The program with its prefix, as `[sudo, -n, cvmfs_server]`."""
    spool: NodeFolder = "/var/spool/cvmfs/{fqrn}"
    """A folder for what is sent and locked; `{fqrn}` is the repository's name."""

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> SshLogin:
        if (self.key is None) != self.agent:
            what = "no way to log in" if self.key is None else "a key file and an agent"
            raise fault(what, "Name a `key` file, or set `agent: true`; one of them.")
        if self.connection and not self.key:
            raise fault("a passphrase without a key file", "Remove `connection`, or name the `key` that it opens.")
        return self


class NodeSettings(SshLogin):
    """The publisher node of a repository (docs/publishers.md)."""

    behind: Literal["stock", "nightshift", "none"]
    """Gateway of the node: a stock gateway, Nightshift's, or none, into the store itself."""
    install: Literal["transaction", "ingest"] = "transaction"
    """Way of a tree in: unpacked into an open transaction, or by `cvmfs_server ingest` if it is new."""
    keep_owners: bool = False
    """Keep the owners that the tree has; otherwise everything is the node's user's. Needs root on the node."""
    mount: NodeFolder = "/cvmfs/{fqrn}"
    """Mountpoint of the repository on the node; `{fqrn}` is its name."""
    busy_wait_s: Annotated[int, Field(ge=1, le=86_400)] = 30
    """Time to wait, within a task, for a busy path or another task of ours on the node."""
    time_limit_s: Annotated[int, Field(ge=1, le=604_800)] = 7_200
    """Time limit of one command on the node."""


class ReplicaSettings(Block):
    """A copy of a repository that readers use."""

    name: Name
    """Name for commands and pages."""
    url: HttpUrl
    """The folder of its `.cvmfspublished`, as clients have it with the repository's name filled in."""
    node: SshLogin | None = None
    """The stratum 1's machine, for starting its snapshots and collections; none for a copy that is only checked."""
    longest_snapshot_minutes: Annotated[int, Field(ge=1, le=10_080)] = 240
    """Longest time of one snapshot. A collection waits so long for it, or for a replica that does not answer."""
    max_lag_hours: Annotated[float, Field(gt=0, le=720)] = 24.0
    """Time for which a superseded revision may still be this replica's newest."""

    @property
    def needs(self) -> timedelta:
        """Time for which it may need a superseded revision: its longest lag, and the snapshot that follows it."""
        return timedelta(hours=self.max_lag_hours, minutes=self.longest_snapshot_minutes)


def named_once(replicas: tuple[ReplicaSettings, ...]) -> tuple[ReplicaSettings, ...]:
    """A validator: no two replicas of a repository have one name."""
    twice = ", ".join(name for name, count in Counter(replica.name for replica in replicas).items() if count > 1)
    if twice:
        raise fault(f"replicas of the same name: {twice}", "Give each a unique name.")
    return replicas


def chosen(fqrn: str, replicas: Sequence[ReplicaSettings], names: Sequence[str] = ()) -> list[ReplicaSettings]:
    """The replicas of these names; all where no name is given. Raises SettingsError for a name that is not there."""
    by_name = {replica.name: replica for replica in replicas}
    unknown = ", ".join(repr(name) for name in names if name not in by_name)
    if unknown:
        listed = ", ".join(sorted(by_name)) or "none"
        raise SettingsError(f"{fqrn} has no replica {unknown}; the configuration has: {listed}. Use one of these.")
    return [by_name[name] for name in names] if names else list(replicas)
