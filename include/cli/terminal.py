"""The terminal of a command: its width, and the program as it can be typed there."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def lab_part(module: str) -> ModuleType | None:
    """A module of the lab, or None where the lab is not installed."""
    return importlib.import_module(f"lab.{module}") if importlib.util.find_spec("lab") else None


NOT_A_TERMINAL = 100  # columns of a log, a pipe or a mail


def console() -> Console:
    """Return the console for tables: as wide as the terminal, elsewhere 100 columns."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = NOT_A_TERMINAL
    return made


def program() -> str:
    """The command `nightshift` as it can be typed here: with its path where the shell does not find it."""
    ours = Path(sys.executable).parent / "nightshift"
    found = shutil.which("nightshift")
    if found and Path(found).resolve() == ours.resolve():
        return "nightshift"
    here = Path.cwd()
    return str(ours.relative_to(here) if ours.is_relative_to(here) else ours)


def typed(text: str, commands: Collection[str]) -> str:
    """A text whose commands of `nightshift` can be typed as they are; the hints of the library do not know the path."""
    words = "|".join(map(re.escape, commands))
    return re.sub(rf"(?<![\w./-])nightshift(?= (?:{words})\b)", lambda _: program(), text)
