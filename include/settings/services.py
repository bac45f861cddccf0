"""Settings of Nightshift's own services, of its folders, of backups and of notifications, and of machines where
`cvmfs_server` runs: a publisher node, a stratum 1 with its replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from include.settings.errors import SettingsError
from include.settings.prepare import Block
from include.settings.text_types import ConnectionId, HostName, HttpUrl, Name, NodeFolder, Schedule, SitePath, fault


class Services(Block):
    """Mail, chat and web services by Apprise."""

    connections: Annotated[tuple[ConnectionId, ...], Field(min_length=1)]
    """Connections, one for each service; its password is an Apprise URL, such as `mailtos://…` or `slack://…`."""
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 20.0
    """Time-out of one service."""


class Notify(Block):
    """Notifications of people about problems. Nothing of it is secret: URLs are in the connections."""

    window_hours: Annotated[float, Field(gt=0, le=168)] = 12.0
    """A cause that was sent is not sent again so long."""
    whitelist_days: Annotated[int, Field(ge=0, le=365)] = 14
    """Days before the end of a whitelist from which a message warns of it."""
    late_minutes: Annotated[int, Field(ge=1, le=720)] = 30
    """Time after its schedule until which a night may begin; then a message says that it did not."""
    stuck_lease_minutes: Annotated[int, Field(ge=1, le=1440)] = 15
    """Time that one lease may be held; then a message says so."""
    apprise: Services | None = None
    """None: no one is notified."""


class Gateway(Block):
    """The embedded gateway service."""

    host: str = "127.0.0.1"
    """The address that it listens on."""
    port: Annotated[int, Field(ge=1, le=65535)] = 4929
    """Its port."""
    certificate: SitePath | None = None
    """PEM file of its certificate, and of those between it and the authority; with it the gateway speaks https only."""
    private_key: SitePath | None = None
    """PEM file of the certificate's key."""
    insecure: bool = False
    """Allows it to listen on other addresses than loopback without a certificate, on a trusted network."""
    max_lease_time_s: Annotated[int, Field(ge=1, le=86_400)] = 120
    """Lifetime of a lease; publishers renew it."""
    state: SitePath = Path("var/gateway/state.db")
    """Its database of leases and commits; it survives a restart."""
    keys: SitePath = Path("var/keys")
    """Folder of the keys of repositories and gateways; by default `keys` below `paths.var`."""
    max_payload_mib: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    """Limit of a stock publisher's request. It puts 200 MiB into a pack, and a larger object into one of its own."""

    @model_validator(mode="after")
    def _a_certificate_has_a_key(self) -> Gateway:
        if (self.certificate is None) != (self.private_key is None):
            raise fault("`certificate` and `private_key` belong together", "Name both files, or neither.")
        return self


class BackupSettings(Block):
    """Backups of ledger, gateway state, keys and settings (docs/backup.md)."""

    store: Name | None = None
    """The store, of `stores:`, that backups go to: a folder or a bucket of their own. None: no DAG makes any."""
    schedule: Schedule | None = "30 10 * * *"
    """Schedule of the DAG `backup`, in UTC; None: by hand only."""
    keep: Annotated[int, Field(ge=1, le=10_000)] = 14
    """So many of the newest backups stay."""
    connection: ConnectionId | None = None
    """The connection whose password is the passphrase that keys are encrypted to."""
    recipient: SitePath | None = None
    """PEM file of an RSA public key that keys are encrypted to. Without it and `connection`, keys are left out."""
    airflow_dump: SitePath | None = None
    """The file that a dump of Airflow's own database is written to; `nightshift preflight` reports its age."""

    @model_validator(mode="after")
    def _keys_are_for_one(self) -> BackupSettings:
        if self.connection is not None and self.recipient is not None:
            raise fault("keys are encrypted to a passphrase and to a recipient", "Keep `connection` or `recipient`.")
        return self


class Paths(Block):
    """Folders of Nightshift's own files on this machine."""

    root: SitePath = Path()
    """The folder that relative paths start from."""
    var: SitePath = Path("var")
    """State, logs and secrets."""


def keys_below_var(site: Mapping[str, object]) -> Mapping[str, object]:
    """A configuration as it was read, with the folder of keys where `paths.var` is unless it is set."""
    gateway, paths = site["gateway"], site["paths"]
    var = paths.get("var") if isinstance(paths, Mapping) else None
    if not isinstance(gateway, Mapping) or not isinstance(var, str):
        return site
    return {**site, "gateway": {"keys": f"{var}/keys", **gateway}}


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


def _named_once(replicas: tuple[ReplicaSettings, ...]) -> tuple[ReplicaSettings, ...]:
    twice = ", ".join(name for name, count in Counter(replica.name for replica in replicas).items() if count > 1)
    if twice:
        raise fault(f"replicas of the same name: {twice}", "Give each a unique name.")
    return replicas


Replicas = Annotated[tuple[ReplicaSettings, ...], AfterValidator(_named_once)]


def chosen(fqrn: str, replicas: Sequence[ReplicaSettings], names: Sequence[str] = ()) -> list[ReplicaSettings]:
    """The replicas of these names; all where no name is given. Raises SettingsError for a name that is not there."""
    by_name = {replica.name: replica for replica in replicas}
    unknown = ", ".join(repr(name) for name in names if name not in by_name)
    if unknown:
        listed = ", ".join(sorted(by_name)) or "none"
        raise SettingsError(f"{fqrn} has no replica {unknown}; the configuration has: {listed}. Use one of these.")
    return [by_name[name] for name in names] if names else list(replicas)
