"""Checks the names that become components of paths; the rule itself is `include.settings.names`."""

from __future__ import annotations

from include.nightlies.errors import NightlyError
from include.settings.names import name_fault


def check_name(kind: str, text: str) -> str:
    """`text` itself if it may name a `kind` (slot, build, project, platform); else NightlyError."""
    fault = name_fault(text)
    if fault:
        raise NightlyError(f"{kind} {text!r} {fault}. Rename it: names become components of paths.")
    return text
