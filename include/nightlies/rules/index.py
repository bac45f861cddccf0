"""The index of a build, and its signature: one JSON document in which a build system lists the artifacts it made.

Format: docs/formats.md, build index. A fault of the document ends with BadIndex; a fault of one artifact only rejects
that artifact, by name and with its reason, and the others go on.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError, ValidationInfo
from pydantic.types import StrictBool, StrictInt

from include.json_values import JsonValue, first_fault, kind_of, text_as
from include.nightlies.errors import BadIndex, BadIndexKey
from include.settings.text_types import name_fault
from include.storage.kinds import SCHEMES

MIN_RSA_BITS = 2048
MAX_SIGNATURE_BYTES = 16 << 10
IndexKey = Ed25519PublicKey | RSAPublicKey


def public_key(path: Path) -> IndexKey:
    """The key in a PEM file; raises BadIndexKey if it has no key that can check signatures."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadIndexKey(str(path), f"cannot be read: {type(error).__name__}") from None
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise BadIndexKey(str(path), f"is an RSA key of {key.key_size} bits, fewer than {MIN_RSA_BITS}")
    if not isinstance(key, Ed25519PublicKey | RSAPublicKey):
        raise BadIndexKey(str(path), "is neither an Ed25519 nor an RSA key")
    return key


def require_signature(data: bytes, signature: bytes, key: IndexKey, *, file: str) -> None:
    """Raise BadIndex unless `signature`, raw or in base64, is the key's over `data`."""
    if len(signature) > MAX_SIGNATURE_BYTES:
        raise _wrong(file)
    for candidate in (signature, _from_base64(signature)):
        if candidate is None:
            continue
        try:
            if isinstance(key, Ed25519PublicKey):
                key.verify(candidate, data)
            else:
                key.verify(candidate, data, PKCS1v15(), SHA256())
        except InvalidSignature:
            continue
        return
    raise _wrong(file)


def _from_base64(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def _wrong(file: str) -> BadIndex:
    cure = (
        "If it stays so, another program wrote the index, or the slot's `index_signature` names another key than the "
        "builder's. Nothing of it is taken."
    )
    return BadIndex(file, "is not what its signature is over", cure)


FORMAT = 1
MAX_INDEX_BYTES = 64 * 1024**2
MAX_ARTIFACT_BYTES = 1 << 40
MAX_PRIORITY = 1_000_000
MAX_URL_LENGTH = 2048
MAX_SERIAL = (1 << 63) - 1
_ADD = "Add it; see docs/formats.md, build index."
_RETYPE = "Correct its type."
_YEARS = (1970, 9998)  # what stays an instant in every zone
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Artifact(JsonValue):
    """Tarball of a build: a project on a platform.

    `size` in bytes; `url` relative to the index's store, or full.
    """

    project: Name
    platform: Name
    url: Annotated[str, AfterValidator(_url)]
    size: Annotated[StrictInt, _between(1, MAX_ARTIFACT_BYTES)]
    sha256: Annotated[str, AfterValidator(_sha256)]
    dependencies: Annotated[tuple[Name, ...], AfterValidator(_of_others)] = ()
    priority: Annotated[StrictInt, _between(-MAX_PRIORITY, MAX_PRIORITY)] = 0

    @property
    def name(self) -> str:
        return f"{self.project}/{self.platform}"


@dataclass(frozen=True, slots=True)
class RejectedArtifact(JsonValue):
    """An artifact that cannot be installed, and why; the other artifacts go on.

    `project` and `platform` are None where the index does not have them in a usable form.
    """

    name: str
    reason: str
    position: int
    project: str | None = None
    platform: str | None = None


@dataclass(frozen=True, slots=True)
class ParentBuild:
    """The build of the same slot that a partial build takes from whatever it does not list itself."""

    build_id: Name
    date: Date

    def __str__(self) -> str:
        return f"build {self.build_id} of {self.date}"


@dataclass(frozen=True, slots=True)
class BuildIndex:
    """A build as its index describes it.

    `base`: None for a build that lists all it has. `serial` and `created` order the versions of one index; either may
    be missing.
    """

    slot: str
    build_id: str
    date: datetime.date
    complete: bool
    artifacts: tuple[Artifact, ...]
    rejected: tuple[RejectedArtifact, ...] = ()
    base: ParentBuild | None = None
    serial: int | None = None
    created: datetime.datetime | None = None

    @classmethod
    def parse(
        cls,
        data: bytes,
        *,
        slot: str,
        build_date: datetime.date | None = None,
        file: str = "index.json",
        store: str | None = None,
    ) -> BuildIndex:
        """The build in `data`, which must be of `slot` and, where given, of `build_date`; raises BadIndex.

        `file` is what messages call the index. `store` is the URL of the store below which a full artifact URL must
        lie; without it every s3 and http(s) URL is taken, and no file URL.
        """
        try:
            head = _Head.model_validate(_document(data, file))
        except ValidationError as error:
            raise BadIndex(file, *_described(error)) from None
        if head.slot != slot:
            what = f"belongs to slot {head.slot!r}, not {slot!r}"
            raise BadIndex(file, what, "Correct `slot`, or put the index where that slot looks for it.")
        if build_date is not None and head.date != build_date:
            what = f"is of {head.date}, not of {build_date}"
            raise BadIndex(file, what, "Correct `date`, or put the index where that date is looked for.")
        artifacts, rejected = _artifacts(head.artifacts, store)
        return cls(
            slot, head.build_id, head.date, head.complete, artifacts, rejected, head.base, head.serial, head.created
        )

    def format(self) -> bytes:
        """The index as a file; `rejected` is not part of it."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "slot": self.slot,
            "build_id": self.build_id,
            "date": self.date.isoformat(),
            "complete": self.complete,
        }
        if self.serial is not None:
            document["serial"] = self.serial
        if self.created is not None:
            document["created"] = self.created.isoformat()
        if self.base is not None:
            base = {"build_id": self.base.build_id, "date": self.base.date.isoformat()}
            document |= {"partial": True, "base": base}
        document["artifacts"] = [artifact.to_json() for artifact in self.artifacts]
        return json.dumps(document, indent=1).encode() + b"\n"


def _document(data: bytes, file: str) -> Mapping[str, Any]:
    if len(data) > MAX_INDEX_BYTES:
        raise BadIndex(file, f"is larger than {MAX_INDEX_BYTES} bytes", "Split the build into several.")
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadIndex(file, f"is not UTF-8 at byte {error.start}", "Write it again; it may be truncated.") from None
    except RecursionError:
        raise BadIndex(file, "is nested too deeply", "Write it as in docs/formats.md, build index.") from None
    except ValueError as error:
        raise BadIndex(file, f"is not JSON: {error}", "Write it again; it may be truncated.") from None
    if not isinstance(document, dict):
        raise BadIndex(file, f"is {kind_of(document)}, not an object", "See docs/formats.md, build index.")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {_brief(twice)} is given twice in one object")
    return document


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _artifacts(listed: list[Any], store: str | None) -> tuple[tuple[Artifact, ...], tuple[RejectedArtifact, ...]]:
    read: list[tuple[int, Artifact]] = []
    rejected: list[RejectedArtifact] = []
    for position, item in enumerate(listed):
        try:
            read.append((position, _artifact(item, store)))
        except ValueError as error:
            project, platform = _identity(item)
            name = f"{project}/{platform}" if project and platform else f"artifacts[{position}]"
            rejected.append(RejectedArtifact(name, str(error), position, project, platform))
    claims: dict[str, list[tuple[int, Artifact]]] = {}
    for position, artifact in read:
        claims.setdefault(artifact.name, []).append((position, artifact))
    spoilt = Counter(
        f"{artifact.project}/{artifact.platform}" for artifact in rejected if artifact.project and artifact.platform
    )
    kept = []
    for name, entries in claims.items():
        files = {(artifact.sha256, artifact.size) for _, artifact in entries}
        if len(files) == 1 and not spoilt[name]:
            kept.append(_united([artifact for _, artifact in entries]))
            continue
        # which of two is meant cannot be known, and a rejected one may be the right one: neither goes in
        sums = len({artifact.sha256 for _, artifact in entries})
        unlike = f" with {sums} different sums" if sums > 1 else " with different sizes" if len(files) > 1 else ""
        times = f"is listed {len(entries) + spoilt[name]} times{unlike}"
        reason = f"{times}. Keep one entry for each project and platform."
        for position, entry in entries:
            rejected.append(RejectedArtifact(entry.name, reason, position, entry.project, entry.platform))
    return tuple(kept), tuple(sorted(rejected, key=lambda artifact: artifact.position))


def _united(entries: Sequence[Artifact]) -> Artifact:
    """Return one artifact that is listed several times as the very same file: after all that any entry wants before
    it."""
    needs = dict.fromkeys(name for entry in entries for name in entry.dependencies)
    return replace(entries[0], dependencies=tuple(needs), priority=max(entry.priority for entry in entries))


def _identity(item: object) -> tuple[str | None, str | None]:
    if not isinstance(item, dict):
        return None, None
    names = (item.get("project"), item.get("platform"))
    project, platform = (name if isinstance(name, str) and not name_fault(name) else None for name in names)
    return project, platform


def _artifact(item: object, store: str | None) -> Artifact:
    if not isinstance(item, dict):
        raise ValueError(f"is {kind_of(item)}, not an object. Write one object for each artifact.")
    try:
        return _ARTIFACT.validate_python(item, context=store)
    except ValidationError as error:
        raise ValueError(". ".join(_described(error))) from None


def _described(error: ValidationError) -> tuple[str, str]:
    """Return what is wrong with the first field that is, and what helps."""
    fault = first_fault(error)
    what, cure = fault.raised.args if fault.raised else (fault.what, _ADD if fault.kind == "missing" else _RETYPE)
    return f"`{fault.where or 'the name of a field'}` {what}", cure


@lru_cache(1 << 12)  # platforms and dependencies are those of other artifacts, too
def _named(text: str) -> str:
    if wrong := name_fault(text):
        raise ValueError(f"{_brief(text)} {wrong}", "Rename it: names become components of paths.")
    return text


def _sha256(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise ValueError(f"{_brief(text)} is not 64 lower-case hexadecimal digits", "Write the file's sha256sum.")
    return text


def _between(lowest: int, highest: int) -> AfterValidator:
    def checked(value: int) -> int:
        if not lowest <= value <= highest:
            raise ValueError(f"{_brief(value)} is not between {lowest} and {highest}", "Correct it.")
        return value

    return AfterValidator(checked)


def _of_others(names: tuple[str, ...], given: ValidationInfo) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys(names) if name != given.data.get("project"))


def _url(text: str, given: ValidationInfo) -> str:
    if not text or len(text) > MAX_URL_LENGTH:
        raise ValueError(f"is empty or longer than {MAX_URL_LENGTH} characters", "Write where the file is.")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError("cannot be parsed", "Write a key of the index's store, or the full URL.") from None
    if "@" in parts.netloc:
        # the URL is not repeated here: it may carry a password
        raise ValueError("carries a login", "Name a store of the configuration; its connection has the login.")
    decoded = unquote(text)
    if any(ord(letter) < 0x20 or 0xD800 <= ord(letter) < 0xE000 or letter in "\\\x7f" for letter in decoded):
        raise ValueError(f"{_brief(text)} has a control character, a lone surrogate or a backslash", "Rename the file.")
    path = unquote(parts.path) if parts.scheme else decoded
    if parts.query or parts.fragment:
        raise ValueError("has a query or a fragment", "Write the plain URL of the file.")
    if not parts.scheme and (text.startswith("/") or not path):
        raise ValueError(f"{_brief(text)} is absolute", "Write it relative to the index's store.")
    components = path.split("/")[1:] if parts.scheme else path.split("/")
    if any(component in {"", ".", ".."} for component in components) or not components:
        raise ValueError(f"{_brief(text)} has an empty, . or .. component", "Write the plain path of the file.")
    if parts.scheme:
        _allowed(text, parts.scheme, given.context)
    return text


def _allowed(text: str, scheme: str, store: str | None) -> None:
    if store is not None:
        if not text.startswith(store.rstrip("/") + "/"):
            raise ValueError(f"{_brief(text)} lies outside the store of the index, {store}", "Move the file there.")
    elif (kind := SCHEMES.get(scheme)) is None or kind.is_local:
        raise ValueError(f"{_brief(text)} is of a scheme that is not read here", "Use s3 or http(s).")


def _date(text: str) -> datetime.date:
    try:
        if _DATE.fullmatch(text):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass  # no such day
    raise ValueError(f"{_brief(text)} is not a date", "Write YYYY-MM-DD.")


def _instant(text: str) -> datetime.datetime:
    try:
        value = datetime.datetime.fromisoformat(text)
    except ValueError:
        value = None
    if value is None or value.tzinfo is None or not _YEARS[0] <= value.year <= _YEARS[1]:
        cure = "Write ISO 8601 with a zone, as 2026-11-21T02:00:00+00:00."
        raise ValueError(f"{_brief(text)} is not an instant", cure)
    return value.astimezone(datetime.UTC)


def _this_format(value: int) -> int:
    if value != FORMAT:
        raise ValueError(f"is not {FORMAT}", "Write the index in that format, or update Nightshift.")
    return value


def _parent(base: ParentBuild | None, given: ValidationInfo) -> ParentBuild | None:
    if base is None and given.data.get("partial"):
        raise ValueError("is missing", _ADD)
    if base is not None and not given.data.get("partial"):
        raise ValueError("is given and the build is not partial", 'Add `"partial": true`, or remove `base`.')
    if base is not None and base.build_id == given.data.get("build_id"):
        raise ValueError("names this very build", "Name an earlier build of the slot.")
    return base


Name = Annotated[str, AfterValidator(_named)]
Date = Annotated[datetime.date, text_as(_date)]


class _Head(BaseModel):
    """The document; its artifacts are read one by one, since a fault of one rejects only that one."""

    model_config = ConfigDict(validate_default=True)

    format: Annotated[StrictInt, AfterValidator(_this_format)]
    slot: Name
    build_id: Name
    date: Date
    complete: StrictBool
    partial: StrictBool = False
    base: Annotated[ParentBuild | None, AfterValidator(_parent)] = None
    serial: Annotated[StrictInt, _between(0, MAX_SERIAL)] | None = None
    created: Annotated[datetime.datetime, text_as(_instant)] | None = None
    artifacts: list[Any]


_ARTIFACT = TypeAdapter(Artifact)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
