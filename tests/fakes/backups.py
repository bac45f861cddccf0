"""A deployment that is backed up, lost as a whole, and restored on an empty machine."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from include.backup.archive import BackupManifest, Opener, SealTo, opened
from include.backup.create import create
from include.backup.restore import OnStep, RestoreOptions, restore
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.storage.file import FileStore
from include.storage.store import Store
from tests.site import Deployment, now

PASSPHRASE = "correct horse battery"


@cache
def recipient() -> tuple[SealTo, Opener]:
    """A recipient's two halves: a passphrase costs half a second each time."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=3072)
    form, encoding = serialization.PublicFormat.SubjectPublicKeyInfo, serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return SealTo(public_key=key.public_key().public_bytes(encoding, form)), Opener(private_key=private)


def step_by_step(_: str) -> None:
    """Look at no step."""


@dataclass
class Backups:
    """Backups of a deployment, in a folder that is not lost with it. Its services are the caller's."""

    site: Deployment
    store: Store = None  # type: ignore[assignment]
    manifests: list[BackupManifest] = field(default_factory=list)

    def __post_init__(self) -> None:
        folder = self.site.folder
        self.store = self.store or FileStore(folder.parent / f"{folder.name}-backups")
        self.site.configure(gateway={"keys": f"{folder}/keys", "state": f"{folder}/gateway.db"})

    @property
    def lost_files(self) -> Sequence[Path]:
        """Files that a machine loses; the stores are elsewhere."""
        names = ("ledger.db*", "gateway.db*", "keys", "var", "site.yaml")
        return [path for name in names for path in self.site.folder.glob(name)]

    def take(self, at: datetime | None = None, *, to: SealTo | None = None) -> BackupManifest:
        """Make a backup, while services are at work."""
        to = to or SealTo(passphrase=PASSPHRASE)
        self.manifests.append(create(self.site.site, self.store, now=at or now(), to=to, settings_file=self.site.file))
        return self.manifests[-1]

    def lose_everything(self) -> None:
        """Remove all that is on the machine. Its services are stopped."""
        self.site._dispose()
        for path in self.lost_files:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.site.configure()  # the configuration is under version control

    def restore(self, on_step: OnStep = step_by_step, opener: Opener | None = None) -> Sequence[str]:
        """Restore the last backup."""
        return restore_file(
            Path(self.store.url.removeprefix("file://")) / self.manifests[-1].name, self.site.file,
            dict(self.site.environment), on_step, opener or Opener(passphrase=PASSPHRASE),
        )  # fmt: skip


def restore_file(
    file: Path, settings: Path, environment: dict[str, str], on_step: OnStep, opener: Opener
) -> Sequence[str]:
    """Restore a backup's file for a configuration."""
    with contextlib.ExitStack() as stack:
        backup = stack.enter_context(opened(file))
        options = RestoreOptions("test", opener, on_step)
        return restore(backup, load(settings, environ={}), EnvSecrets(environment), options, now=now())
