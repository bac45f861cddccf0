"""The lab beside the command: the library imports nothing of it, and an image of production has none."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def lab_part(module: str) -> ModuleType | None:
    """A module of the lab, or None where the lab is not installed."""
    return importlib.import_module(f"lab.{module}") if importlib.util.find_spec("lab") else None
