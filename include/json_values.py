"""Values to JSON and back, by their types: fields of a dataclass become keys, and unknown keys are ignored."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import PlainSerializer, TypeAdapter

T = TypeVar("T")

Time = Annotated[datetime, PlainSerializer(datetime.isoformat)]
"""A time that is written with its offset in digits, `+00:00`."""


def to_json(value: object) -> Any:
    """Return the value as what `json.dumps` takes."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


def from_json(kind: type[T], value: object) -> T:
    """Return the value that `to_json` wrote. Raises ValueError for another shape."""
    own: Any = kind
    read: T = _adapter(own).validate_python(value)
    return read


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
