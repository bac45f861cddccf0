"""Errors of the configuration and of the connections that it names.

SettingsError
├── SettingsFileMissing    there is no file where one was looked for
├── InvalidSettings        the file has problems; all of them at once, each with file, line and cure
├── MissingConnection      a connection is named but not defined
└── BadConnection          a connection is defined but cannot be read

None of them can be cured by trying again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from include.errors import Concern, ErrorRow, NightshiftError


class SettingsError(NightshiftError):
    """Base of everything in this file; never carries a secret."""

    code = "settings-error"
    concern = Concern.CONFIGURATION


INIT_REFUSED = ErrorRow(SettingsError, "init-refused")
"""An answer that no first configuration can be written of, or a file that it would replace; nothing was written."""


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """A fault of the configuration file, with its place and its hint."""

    file: str
    line: int
    key: str
    what: str
    cure: str
    given: str | None = None

    @property
    def text(self) -> str:
        """Fault and hint, without the place."""
        given = f" (given: {self.given})" if self.given is not None else ""
        return f"{self.what}{given}. {self.cure}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.key}: {self.text}"


class SettingsFileMissing(SettingsError):
    code = "settings-file-missing"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.what = "no such configuration file. Create it, or name another one in NIGHTSHIFT_CONFIG."
        super().__init__(f"{path}: {self.what}")


class InvalidSettings(SettingsError):
    """All the problems of one file; `str()` is one line for each."""

    code = "settings-invalid"

    def __init__(self, problems: Iterable[SettingsProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.key)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class MissingConnection(SettingsError):
    code = "connection-missing"

    def __init__(self, connection_id: str, variable: str, similar: str | None = None) -> None:
        self.connection_id = connection_id
        self.similar = similar
        hint = f" Was {similar!r} meant?" if similar else ""
        super().__init__(
            f"connection {connection_id!r} is not defined.{hint} Set the environment variable {variable} "
            "(JSON or URI), or add the connection in Airflow's UI under Admin > Connections."
        )


class BadConnection(SettingsError):
    code = "connection-invalid"

    def __init__(self, connection_id: str, variable: str, what: str) -> None:
        self.connection_id = connection_id
        self.what = what
        super().__init__(
            f"connection {connection_id!r}: {variable} {what}. "
            'Write it as JSON, {"conn_type": …, "host": …, "login": …, "password": …}, or as type://login:password@host:port.'
        )
