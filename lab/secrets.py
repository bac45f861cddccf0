"""The secrets of the embedded services: made once from the system's random source, kept in one file of mode 600."""

import base64
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from lab.errors import LabError

_VARIABLE = "variable"
JWT_BYTES = 64  # Airflow warns below this length on every process


def _kept_as(name: str) -> Any:
    """A field that the file has under this name."""
    return field(repr=False, metadata={_VARIABLE: f"NIGHTSHIFT_SECRET_{name}"})


@dataclass(frozen=True, slots=True)
class LabSecrets:
    """All secrets; none shows in a representation."""

    admin_password: str = _kept_as("ADMIN_PASSWORD")
    postgres_password: str = _kept_as("POSTGRES_PASSWORD")
    s3_access_key: str = _kept_as("S3_ACCESS_KEY")
    s3_secret_key: str = _kept_as("S3_SECRET_KEY")
    gateway_key_id: str = _kept_as("GATEWAY_KEY_ID")
    gateway_key_secret: str = _kept_as("GATEWAY_KEY_SECRET")
    jwt_secret: str = _kept_as("JWT_SECRET")
    api_secret_key: str = _kept_as("API_SECRET_KEY")
    fernet_key: str = _kept_as("FERNET_KEY")

    @property
    def gateway_admin_secret(self) -> str:
        """Of the gateway's administrator; derived, one way, so that files of secrets need not change."""
        return self._derived(b"gateway administrator")

    @property
    def viewer_password(self) -> str:
        """Of the user of Airflow who may only look."""
        return self._derived(b"airflow viewer")

    @property
    def keeper_password(self) -> str:
        """Of the user of Airflow who deletes old runs."""
        return self._derived(b"airflow keeper")

    @property
    def metrics_token(self) -> str:
        """With which Prometheus reads the figures."""
        return self._derived(b"metrics")

    @property
    def fts_token(self) -> str:
        """The bearer token of the lab's user at its FTS."""
        return self._derived(b"fts")

    @property
    def ledger_password(self) -> str:
        """Of the ledger's user in MariaDB."""
        return self._derived(b"ledger")

    @property
    def broker_password(self) -> str:
        """Of Celery's user in RabbitMQ."""
        return self._derived(b"broker")

    def _derived(self, what: bytes) -> str:
        return hmac.new(self.api_secret_key.encode(), what, hashlib.sha256).hexdigest()

    @classmethod
    def generate(cls) -> Self:
        return cls(
            admin_password=secrets.token_urlsafe(12),
            postgres_password=secrets.token_hex(24),
            s3_access_key="NS" + secrets.token_hex(9).upper(),
            s3_secret_key=secrets.token_hex(20),
            gateway_key_id="nightshift-" + secrets.token_hex(4),
            gateway_key_secret=secrets.token_hex(32),
            jwt_secret=secrets.token_hex(JWT_BYTES),
            api_secret_key=secrets.token_hex(32),
            fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        )

    @classmethod
    def parse(cls, text: str, *, name: str) -> Self:
        """Reads `NIGHTSHIFT_SECRET_<NAME>=value` lines.

        Raises:
            LabError: a secret is missing or empty.
        """
        values: dict[str, str] = {}
        for line in text.splitlines():
            key, separator, value = line.partition("=")
            if separator and not line.startswith("#"):
                values[key.strip()] = value.strip()
        try:
            found = {one.name: values[one.metadata[_VARIABLE]] for one in fields(cls)}
        except KeyError as missing:
            raise LabError(
                f"{name} lacks {missing.args[0]}: restore the file, or remove it together with the state next to it"
            ) from missing
        if empty := [one.metadata[_VARIABLE] for one in fields(cls) if not found[one.name]]:
            raise LabError(f"{name} has no value for {', '.join(empty)}: restore the file")
        return cls(**found)

    def format(self) -> str:
        lines = ["# Made by `nightshift lab up`. The state beside this file needs these secrets: keep both or neither."]
        lines += [f"{one.metadata[_VARIABLE]}={getattr(self, one.name)}" for one in fields(self)]
        return "\n".join(lines) + "\n"


def load_or_create(path: Path) -> LabSecrets:
    """The secrets in a file; it is made (mode 600) if absent, and closed to others if it is open to them."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = LabSecrets.generate()
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made.format())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # never replaces a file that another start made meanwhile
        except FileExistsError:
            return load_or_create(path)
        finally:
            draft.unlink()
        return made
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return LabSecrets.parse(text, name=str(path))
