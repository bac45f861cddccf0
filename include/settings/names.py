"""The rule for every name that becomes a component of a path: slots, builds, projects, platforms."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
MAX_NAME_LENGTH = 128
"""Characters; a component of a CernVM-FS path ends at 255 bytes, an index column of the ledger earlier."""


def name_fault(text: str) -> str | None:
    """What is wrong with `text` as a name, or None; the answer reads on after the name."""
    if not text:
        return "is empty"
    if len(text) > MAX_NAME_LENGTH:
        return f"is longer than {MAX_NAME_LENGTH} characters"
    if not NAME.fullmatch(text):
        return "is not a letter or digit followed by letters, digits and . _ + -"
    return None
