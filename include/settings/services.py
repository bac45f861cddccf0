"""Settings of Nightshift's own services, of its folders, of backups and of notifications."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from include.settings.prepare import Block
from include.settings.text_types import ConnectionId, Name, Schedule, SitePath, fault


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
