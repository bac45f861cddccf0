"""The secrets of the embedded services: made once from the system's random source, kept in one file of mode 600."""

import base64
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

from lab.errors import LabError

JWT_BYTES = 64  # Airflow warns below this length on every process


class Derived:
    """A secret that follows from another one, one way."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()

    def __get__(self, kept: "LabSecrets", _: object = None) -> str:
        return hmac.new(kept.api_secret_key.encode(), self._name, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class LabSecrets:
    """All secrets; none shows in a representation."""

    admin_password: str = field(repr=False)
    postgres_password: str = field(repr=False)
    s3_access_key: str = field(repr=False)
    s3_secret_key: str = field(repr=False)
    gateway_key_id: str = field(repr=False)
    gateway_key_secret: str = field(repr=False)
    jwt_secret: str = field(repr=False)
    api_secret_key: str = field(repr=False)
    fernet_key: str = field(repr=False)

    # derived, so that files of secrets need not change
    gateway_admin_secret = Derived("gateway administrator")
    viewer_password = Derived("airflow viewer")  # of the user of Airflow who may only look
    keeper_password = Derived("airflow keeper")  # of the user of Airflow who deletes old runs
    metrics_token = Derived("metrics")  # with which Prometheus reads the figures
    fts_token = Derived("fts")  # the bearer token of the lab's user at its FTS
    airflow_database_password = Derived("airflow database")  # of the owner of Airflow's database, who is no superuser
    celery_password = Derived("celery results")  # of the owner of the database of Celery's results
    ledger_password = Derived("ledger")  # of the ledger's user in MariaDB
    broker_password = Derived("broker")  # of Celery's user in RabbitMQ

    # secret keys at the lab's store, beside those of its owner
    publisher_secret_key = Derived("s3 publisher")
    gateway_secret_key = Derived("s3 gateway")
    collector_secret_key = Derived("s3 collector")
    files_secret_key = Derived("s3 files")

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
        """Reads `NIGHTSHIFT_SECRET_<NAME>=value` lines. Raises LabError: a secret is missing or empty."""
        values: dict[str, str] = {}
        for line in text.splitlines():
            key, separator, value = line.partition("=")
            if separator and not line.startswith("#"):
                values[key.strip()] = value.strip()
        try:
            found = {one.name: values[_variable(one.name)] for one in fields(cls)}
        except KeyError as missing:
            raise LabError(
                f"{name} lacks {missing.args[0]}: restore the file, or remove it together with the state next to it"
            ) from missing
        if empty := [_variable(one.name) for one in fields(cls) if not found[one.name]]:
            raise LabError(f"{name} has no value for {', '.join(empty)}: restore the file")
        return cls(**found)

    def format(self) -> str:
        lines = ["# Made by `nightshift lab up`. The state beside this file needs these secrets: keep both or neither."]
        lines += [f"{_variable(one.name)}={getattr(self, one.name)}" for one in fields(self)]
        return "\n".join(lines) + "\n"


def _variable(name: str) -> str:
    return f"NIGHTSHIFT_SECRET_{name.upper()}"


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


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)
