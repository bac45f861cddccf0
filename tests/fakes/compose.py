"""docker/compose.yaml as `docker compose` understands it: merged, and with its variables filled in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker/compose.yaml"
VARIABLE = re.compile(r"\$\$|\$\{([A-Z0-9_]+)(?:(:-|:\?)([^}]*))?\}|\$")


class Unset(Exception):
    """A variable that the deployment must define is not defined."""


def text() -> str:
    """The file without its comments."""
    return "\n".join(line.partition(" # ")[0] for line in FILE.read_text().splitlines() if line.strip()[:1] != "#")


def load(variables: dict[str, str] | None = None) -> dict[str, Any]:
    """The document; with ``variables``, all of it filled in, else as it is written."""
    document = yaml.safe_load(FILE.read_text())
    return document if variables is None else _filled(document, variables)


def required() -> set[str]:
    """The variables without which `docker compose` refuses."""
    return {name for name, how, _ in VARIABLE.findall(text()) if how == ":?"}


def _filled(value: Any, variables: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, variables) for one in value]
    return VARIABLE.sub(lambda match: _replacement(match, variables), value) if isinstance(value, str) else value


def _replacement(match: re.Match[str], variables: dict[str, str]) -> str:
    name, how, word = match.groups()
    if match[0] == "$$":
        return "$"
    if name is None:
        raise Unset(f"a lone $ in {match.string!r}")
    given = variables.get(name, "")
    if not given and how != ":-":
        raise Unset(name)
    return given or word
