"""A repository's freeze: while it holds, nothing is published, reserved, taken away or collected, and no link moves.

One small document in the repository's store (docs/formats.md, freeze), written by compare-and-swap, read by everyone
who changes the repository: publishers, collector and gateway. Why there: docs/decisions, "A freeze is an object of the
store". Readers and stock tools know nothing of it.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from include.cvmfs.errors import FormatError, RepositoryFrozen
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.json_values import first_fault, text_as
from include.storage.errors import NotFound
from include.storage.store import Store, Version

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
    reader: TypeAdapter[T], data: bytes | str, *, what: str, version: int, key: str = "", required: Collection[str] = ()
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
        given = fields.get("format")
        if type(given) is not int or given != version:
            raise bad(f"has format {reprlib.repr(given)}, this program reads {version}", "format")
        if missing := [name for name in required if name not in fields]:
            raise bad(f"lacks the field {missing[0]}", missing[0])
        return reader.validate_python(fields)
    except ValidationError as error:
        raise bad(*_described(error)) from None
    except RecursionError:
        raise bad("is nested too deeply") from None
    except ValueError as error:
        raise bad(f"is not JSON: {error}") from None


def format_document(fields: Mapping[str, Any], *, version: int) -> bytes:
    """The document that ``read_document`` reads, as one line of JSON, keys in order; times are in UTC."""
    document = {"format": version, **fields}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), default=_as_text).encode() + b"\n"


def _as_text(value: object) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


def _described(error: ValidationError) -> tuple[str, str]:
    """Return what is wrong, and with which field, if it is one."""
    fault = first_fault(error)
    if fault.kind == "missing":
        return f"lacks the field {fault.where}", fault.where
    if not fault.where:
        return fault.what, ""
    text = f"field {fault.where} ({reprlib.repr(fault.given)}){': ' if fault.raised else ' '}{fault.what}"
    return text, fault.where


KEY = ".nightshift/freeze"
FORMAT = 1
MAX_REASON = 1000
"""Characters of a reason; those who wait are shown all of it."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """The document. ``id`` names this freeze in the ledger; ``until``: when it ends by itself, None: with a thaw.

    ``thawed``: when it was ended; the document stays, so that the next is written on a version of it.
    """

    id: str
    reason: str
    who: str
    since: Instant
    until: Instant | None = None
    thawed: Instant | None = None

    def __post_init__(self) -> None:
        if not self.reason.strip() or len(self.reason) > MAX_REASON or not self.reason.isprintable():
            raise ValueError(f"a freeze needs a reason of one line, at most {MAX_REASON} characters")
        if self.until is not None and self.until <= self.since:
            raise ValueError(f"the freeze would end at {_time_text(self.until)}, before it begins; give a later time")

    def holds(self, now: datetime) -> bool:
        """Tell whether the repository is frozen at that time."""
        return self.thawed is None and (self.until is None or now < self.until)

    def __str__(self) -> str:
        end = "until it is thawed" if self.until is None else f"until {_time_text(self.until)}"
        return f"frozen since {_time_text(self.since)} by {self.who}, {end}: {self.reason}"

    def format(self) -> bytes:
        """The document as JSON, one line."""
        fields = {name: _time_text(it) if isinstance(it, datetime) else it for name, it in asdict(self).items()}
        return format_document(fields, version=FORMAT)

    @classmethod
    def parse(cls, data: bytes) -> Freeze:
        """Read :meth:`format`. Raises FormatError for anything else."""
        return read_document(_READER, data, what="freeze", version=FORMAT, key=KEY, required=("until", "thawed"))


_READER = TypeAdapter(Freeze)


@dataclass(frozen=True, slots=True)
class Changed:
    """Document before and after a freeze or a thaw; ``changed``: whether anything had to be written."""

    before: Freeze | None
    after: Freeze | None
    changed: bool


def look(store: Store, now: datetime) -> Freeze | None:
    """The freeze that holds at that time, or None: one small read. Raises FormatError, StoreError."""
    document, _ = _read(store)
    return document if document is not None and document.holds(now) else None


def require_thawed(store: Store, fqrn: str, now: datetime) -> None:
    """Called before every change of the repository. Raises RepositoryFrozen, FormatError, StoreError."""
    frozen = look(store, now)
    if frozen is not None:
        raise RepositoryFrozen(fqrn, str(frozen))


def freeze(store: Store, wanted: Freeze) -> Changed:
    """Freeze the repository. One that is frozen for this reason and time already stays as it is.

    Another reason or end replaces what there is; since when it has been frozen stays. Raises Conflict if another one
    wrote meanwhile, FormatError, StoreError.
    """
    before, version = _read(store)
    now = wanted.since
    if before is None or not before.holds(now):
        after = wanted
    elif (before.reason, before.until) == (wanted.reason, wanted.until):
        return Changed(before, before, changed=False)
    else:
        after = replace(wanted, since=min(before.since, wanted.since))
    store.replace(KEY, after.format(), expected=version)
    return Changed(before, after, changed=True)


def thaw(store: Store, now: datetime) -> Changed:
    """End a freeze; nothing is written where none holds. Raises Conflict, FormatError, StoreError."""
    before, version = _read(store)
    if before is None or not before.holds(now):
        return Changed(before, before, changed=False)
    after = replace(before, thawed=now)
    store.replace(KEY, after.format(), expected=version)
    return Changed(before, after, changed=True)


def _read(store: Store) -> tuple[Freeze | None, Version | None]:
    try:
        data, version = store.get_versioned(KEY)
    except NotFound:
        return None, None
    return Freeze.parse(data), version


def _time_text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds")
