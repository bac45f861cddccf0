"""Fields of the forms that start runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk import Param


def choice(names: Iterable[str], **schema: Any) -> Param:
    """One of these names: the only one by default; where there are several, the field is required and empty."""
    known = sorted(names)
    return Param(*known[:1] if len(known) == 1 else (), type="string", enum=known, **schema)
