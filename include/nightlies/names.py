"""Checks the names that become components of paths; the rule itself is `include.settings.names`."""

from __future__ import annotations

from include.nightlies.errors import BadName
from include.settings.names import name_fault


def check_name(kind: str, text: str) -> str:
    """`text` itself if it may name a `kind` (slot, build, project, platform); else BadName."""
    fault = name_fault(text)
    if fault:
        raise BadName(kind, text, fault)
    return text
