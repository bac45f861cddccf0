"""Reading documents with pydantic: text of formats of ours, and faults in words that name the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import PlainValidator, ValidationError
from pydantic_core import PydanticKnownError

from include.errors import NightshiftError

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
