"""The rules for names: components of a path (slots, builds, projects, platforms), and logical names of files."""

from __future__ import annotations

import re
import unicodedata

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
MAX_NAME_LENGTH = 128
"""Characters; a component of a CernVM-FS path ends at 255 bytes, an index column of the ledger earlier."""
MAX_LOGICAL_NAME_BYTES = 1000
"""FTS takes URLs of 1,100 characters."""


def name_fault(text: str) -> str | None:
    """What is wrong with `text` as a name, or None; the answer reads on after the name."""
    if not text:
        return "is empty"
    if len(text) > MAX_NAME_LENGTH:
        return f"is longer than {MAX_NAME_LENGTH} characters"
    if not NAME.fullmatch(text):
        return "is not a letter or digit followed by letters, digits and . _ + -"
    return None


def logical_name_fault(text: str) -> str | None:
    """What is wrong with `text` as the logical name of a file, or None; the answer reads on after the name."""
    if not text.isprintable():
        return "has control characters, line breaks, invisible characters or bytes that are not UTF-8"
    if len(text.encode()) > MAX_LOGICAL_NAME_BYTES:
        return f"is longer than {MAX_LOGICAL_NAME_BYTES} bytes"
    if "\\" in text or "%" in text:
        return "has a backslash or a percent sign, which servers may take for a slash or an encoded character"
    if not unicodedata.is_normalized("NFC", text):
        return "has accents as characters of their own (not Unicode NFC): another name looks the same"
    root, *components = text.split("/")
    if root or not components:
        return "does not begin with a slash"
    if any(component in {"", ".", ".."} for component in components):
        return "has an empty component, . or .."
    return None


def is_below(name: str, prefix: str) -> bool:
    """Whether the path is the prefix, or in the folder that the prefix names."""
    return prefix == "/" or name == prefix or name.startswith(f"{prefix}/")
