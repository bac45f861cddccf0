"""Values to JSON and back, and documents read with pydantic: faults in words that name the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticKnownError

from include.errors import NightshiftError


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


_KINDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    float: "a number with a fraction",
    type(None): "null",
}
_WANTED: Mapping[str, type] = {
    "string_type": str,
    "int_type": int,
    "bool_type": bool,
    "list_type": list,
    "tuple_type": list,
    "dict_type": dict,
    "model_type": dict,
    "dataclass_type": dict,
}

_PREFIX = re.compile("^(Value error, |Input |String )")


class Fault(NamedTuple):
    """``kind``: pydantic's type of error; ``where``: the path of keys, empty for the document itself.

    ``what`` reads on after the field, and quotes nothing of what was ``given``, which may be secret, and of any size.
    ``raised`` is the error of a check of ours.
    """

    kind: str
    where: str
    what: str
    given: object
    raised: Exception | None


def first_fault(error: ValidationError) -> Fault:
    """The first thing that is wrong."""
    found = error.errors(include_url=False)[0]
    kind, given = found["type"], found["input"]
    raised = found["ctx"]["error"] if kind == "value_error" else None
    if kind == "missing":
        what = "is missing"
    elif kind == "string_unicode":
        what = "is text with a lone surrogate"
    elif kind in _WANTED:
        what = f"is {kind_of(given)}, not {_KINDS[_WANTED[kind]]}"
    else:
        what = _PREFIX.sub("", found["msg"])[:500]
    # names of unknown fields are the writer's, of any length
    return Fault(kind, ".".join(map(str, found["loc"]))[:200], what, given, raised)


def kind_of(value: object) -> str:
    """Return what a value of a JSON document is."""
    return _KINDS.get(type(value), type(value).__name__)


def text_as(parse: Callable[[str], Any]) -> PlainValidator:
    """For a field that is text: ``parse`` gives its value, or raises ValueError or an error of ours."""

    def validate(value: object) -> Any:
        if not isinstance(value, str):
            raise PydanticKnownError("string_type")
        try:
            return parse(value)
        except (NightshiftError, OverflowError) as fault:
            raise ValueError(str(fault)) from None

    return PlainValidator(validate)
