"""Values to JSON and back, and from rows of the ledger, by the types of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter


def _time(value: object) -> object:
    # by the standard library, whose zones all others know
    return datetime.fromisoformat(value) if isinstance(value, str) else value


Time = Annotated[datetime, BeforeValidator(_time), PlainSerializer(datetime.isoformat)]
"""A time that is written with its offset in digits, `+00:00`."""


_adapter: Callable[[type], TypeAdapter[Any]] = cache(TypeAdapter)


class JsonValue:
    """Base of dataclasses that cross XCom, a file or the ledger. Fields become keys; unknown keys are ignored."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        document: dict[str, Any] = _adapter(type(self)).dump_python(self, mode="json")
        return document

    @classmethod
    def from_json(cls, value: Mapping[Any, Any]) -> Self:
        """Read what `to_json` wrote, or a row with these columns. Raises ValueError for another shape."""
        read: Self = _adapter(cls).validate_python(dict(value))
        return read
