"""JSON documents that publishers and collectors leave for each other, read with pydantic: types, formats, ranges.

The text is decoded by the standard library, since documents may hold names with lone surrogates; what pydantic gets are
Python values. A number is never taken from text, nor a text from a number. Unknown members are ignored.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.validation import first_fault, text_as

T = TypeVar("T")


def _instant(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("it is a time without its zone")
    return time.astimezone(UTC)  # a zone may lead out of the first or the last year


Instant = Annotated[datetime, text_as(_instant)]
CatalogHash = Annotated[ObjectHash, text_as(partial(ObjectHash.parse, suffix=CATALOG))]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
WholeNumber = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
Flag = Annotated[bool, Field(strict=True)]


def read_document(
    reader: TypeAdapter[T],
    data: bytes | str,
    *,
    what: str,
    version: int,
    key: str = "",
    required: Collection[str] = (),
) -> T:
    """The value in a document of format ``version``. Raises FormatError, of ``what``, which names the field.

    ``key`` is where the document is, for messages. ``required`` must be there although the value has defaults.
    """

    def bad(fault: str, field: str = "") -> FormatError:
        return FormatError(what, f"{key} cannot be read: {fault}" if key else fault, field=field)

    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise bad("is not a JSON object")
        found = fields.get("format")
        if type(found) is not int or found != version:
            raise bad(f"has format {reprlib.repr(found)}, this program reads {version}", "format")
        if missing := [name for name in required if name not in fields]:
            raise bad(f"lacks the field {missing[0]}", missing[0])
        return reader.validate_python(fields)
    except ValidationError as error:
        raise bad(*_described(error)) from None
    except RecursionError:
        raise bad("is nested too deeply") from None
    except ValueError as error:
        raise bad(f"is not JSON: {error}") from None


def _described(error: ValidationError) -> tuple[str, str]:
    """What is wrong, and with which field, if it is one."""
    fault = first_fault(error)
    if fault.kind == "missing":
        return f"lacks the field {fault.where}", fault.where
    if not fault.where:
        return fault.what, ""
    text = f"field {fault.where} ({reprlib.repr(fault.given)}){': ' if fault.raised else ' '}{fault.what}"
    return text, fault.where
