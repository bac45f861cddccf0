"""The index of a build: one JSON document in which a build system lists the artifacts it made.

Format: docs/formats.md, build index. A fault of the document ends with BadIndex; a fault of one artifact only rejects
that artifact, by name and with its reason, and the others go on.
"""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from include.nightlies.errors import BadIndex
from include.settings.names import name_fault
from include.storage.kinds import SCHEMES

FORMAT = 1
MAX_INDEX_BYTES = 64 * 1024**2
MAX_ARTIFACT_BYTES = 1 << 40
MAX_PRIORITY = 1_000_000
MAX_URL_LENGTH = 2048
MAX_SERIAL = (1 << 63) - 1
_YEARS = (1970, 9998)  # what stays an instant in every zone
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One tarball of a build: a project on a platform.

    `size` in bytes; `url` relative to the index's store, or full.
    """

    project: str
    platform: str
    url: str
    size: int
    sha256: str
    dependencies: tuple[str, ...] = ()
    priority: int = 0

    @property
    def name(self) -> str:
        return f"{self.project}/{self.platform}"

    def to_json(self) -> dict[str, Any]:
        return {
            "project": self.project,
            "platform": self.platform,
            "url": self.url,
            "size": self.size,
            "sha256": self.sha256,
            "dependencies": list(self.dependencies),
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True)
class RejectedArtifact:
    """An artifact that cannot be installed, and why; the other artifacts go on.

    `project` and `platform` are None where the index does not have them in a usable form.
    """

    name: str
    reason: str
    position: int
    project: str | None = None
    platform: str | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RejectedArtifact:
        return cls(value["name"], value["reason"], value["position"], value["project"], value["platform"])

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "reason": self.reason,
            "position": self.position,
            "project": self.project,
            "platform": self.platform,
        }


@dataclass(frozen=True, slots=True)
class ParentBuild:
    """The build of the same slot that a partial build takes from whatever it does not list itself."""

    build_id: str
    date: datetime.date

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
        document = _document(data, file)
        fields = _Fields(document, file)
        if fields.get("format", int) != FORMAT:
            raise BadIndex(file, f"`format` is not {FORMAT}", "Write the index in that format, or update Nightshift.")
        found_slot, build_id = fields.name("slot"), fields.name("build_id")
        if found_slot != slot:
            what = f"belongs to slot {found_slot!r}, not {slot!r}"
            raise BadIndex(file, what, "Correct `slot`, or put the index where that slot looks for it.")
        found_date = fields.date("date")
        if build_date is not None and found_date != build_date:
            what = f"is of {found_date}, not of {build_date}"
            raise BadIndex(file, what, "Correct `date`, or put the index where that date is looked for.")
        complete = fields.get("complete", bool)
        base, serial, created = fields.base(build_id), fields.serial(), fields.created()
        artifacts, rejected = _artifacts(fields.get("artifacts", list), store)
        return cls(found_slot, build_id, found_date, complete, artifacts, rejected, base, serial, created)

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


class _Fields:
    """The fields of the document itself, each missing or wrong one an BadIndex."""

    def __init__(self, document: Mapping[str, Any], file: str, within: str = "") -> None:
        self._document = document
        self._file = file
        self._within = within

    def get(self, name: str, kind: type[Any]) -> Any:
        if name not in self._document:
            raise self._fault(name, "is missing", "Add it; see docs/formats.md, build index.")
        value = self._document[name]
        if type(value) is not kind:
            raise self._fault(name, f"is {_kind(value)}, not {_KINDS[kind]}", "Correct its type.")
        return value

    def name(self, name: str) -> str:
        value = str(self.get(name, str))
        wrong = name_fault(value)
        if wrong:
            raise self._fault(name, f"{_brief(value)} {wrong}", "Rename it: it becomes a component of paths.")
        return value

    def date(self, name: str) -> datetime.date:
        value = str(self.get(name, str))
        try:
            return _date(value)
        except ValueError:
            raise self._fault(name, f"{_brief(value)} is not a date", "Write YYYY-MM-DD.") from None

    def base(self, build_id: str) -> ParentBuild | None:
        """The parent build of a partial build; `build_id` is its own."""
        partial = self.get("partial", bool) if "partial" in self._document else False
        if not partial:
            if "base" in self._document:
                cure = 'Add `"partial": true`, or remove `base`.'
                raise self._fault("base", "is given and the build is not partial", cure)
            return None
        inner = _Fields(self.get("base", dict), self._file, within="base.")
        base = ParentBuild(inner.name("build_id"), inner.date("date"))
        if base.build_id == build_id:
            raise self._fault("base.build_id", "is this very build", "Name an earlier build of the slot.")
        return base

    def serial(self) -> int | None:
        if "serial" not in self._document:
            return None
        value = int(self.get("serial", int))
        if not 0 <= value <= MAX_SERIAL:
            raise self._fault("serial", f"is not between 0 and {MAX_SERIAL}", "Count from 0 on.")
        return value

    def created(self) -> datetime.datetime | None:
        if "created" not in self._document:
            return None
        text = str(self.get("created", str))
        try:
            value = datetime.datetime.fromisoformat(text)
        except ValueError:
            value = None
        if value is None or value.tzinfo is None or not _YEARS[0] <= value.year <= _YEARS[1]:
            cure = "Write ISO 8601 with a zone, as 2026-11-21T02:00:00+00:00."
            raise self._fault("created", f"{_brief(text)} is not an instant", cure)
        return value.astimezone(datetime.UTC)

    def _fault(self, name: str, what: str, cure: str) -> BadIndex:
        return BadIndex(self._file, f"`{self._within}{name}` {what}", cure)


_KINDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    float: "a number with a fraction",
    type(None): "null",
}


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
        raise BadIndex(file, f"is {_kind(document)}, not an object", "See docs/formats.md, build index.")
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
    """One artifact that is listed several times as the very same file: after all that any entry wants before it."""
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
        raise ValueError(f"is {_kind(item)}, not an object. Write one object for each artifact.")
    sha256 = _typed(item, "sha256", str)
    if not _SHA256.fullmatch(sha256):
        raise ValueError(
            f"`sha256` {_brief(sha256)} is not 64 lower-case hexadecimal digits. Write the file's sha256sum."
        )
    project, dependencies = _name(_typed(item, "project", str), "project"), _typed(item, "dependencies", list, [])
    for dependency in dependencies:
        if type(dependency) is not str:
            raise ValueError(f"`dependencies` holds {_kind(dependency)}. Write names of projects.")
        _name(dependency, "dependencies")
    return Artifact(
        project=project,
        platform=_name(_typed(item, "platform", str), "platform"),
        url=_url(_typed(item, "url", str), store),
        size=_number(_typed(item, "size", int), "size", 1, MAX_ARTIFACT_BYTES),
        sha256=sha256,
        dependencies=tuple(name for name in dict.fromkeys(dependencies) if name != project),
        priority=_number(_typed(item, "priority", int, 0), "priority", -MAX_PRIORITY, MAX_PRIORITY),
    )


def _typed(item: Mapping[str, Any], field: str, kind: type[Any], default: Any = None) -> Any:
    if field not in item:
        if default is not None:
            return default
        raise ValueError(f"`{field}` is missing. Add it; see docs/formats.md, build index.")
    if type(item[field]) is not kind:
        raise ValueError(f"`{field}` is {_kind(item[field])}, not {_KINDS[kind]}. Correct its type.")
    return item[field]


def _name(text: str, field: str) -> str:
    wrong = name_fault(text)
    if wrong:
        raise ValueError(f"`{field}` {_brief(text)} {wrong}. Rename it: names become components of paths.")
    return text


def _number(value: int, field: str, lowest: int, highest: int) -> int:
    if not lowest <= value <= highest:
        raise ValueError(f"`{field}` {value} is not between {lowest} and {highest}. Correct it.")
    return value


def _url(text: str, store: str | None) -> str:
    if not text or len(text) > MAX_URL_LENGTH:
        raise ValueError(f"`url` is empty or longer than {MAX_URL_LENGTH} characters. Write where the file is.")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError("`url` cannot be parsed. Write a key of the index's store, or the full URL.") from None
    if "@" in parts.netloc:
        # the URL is not repeated here: it may carry a password
        raise ValueError("`url` carries a login. Name a store of the configuration; its connection has the login.")
    decoded = unquote(text)
    if any(ord(letter) < 0x20 or 0xD800 <= ord(letter) < 0xE000 or letter in "\\\x7f" for letter in decoded):
        raise ValueError(
            f"`url` {_brief(text)} has a control character, a lone surrogate or a backslash. Rename the file."
        )
    path = unquote(parts.path) if parts.scheme else decoded
    if parts.query or parts.fragment:
        raise ValueError("`url` has a query or a fragment. Write the plain URL of the file.")
    if not parts.scheme and (text.startswith("/") or not path):
        raise ValueError(f"`url` {_brief(text)} is absolute. Write it relative to the index's store.")
    components = path.split("/")[1:] if parts.scheme else path.split("/")
    if any(component in {"", ".", ".."} for component in components) or not components:
        raise ValueError(f"`url` {_brief(text)} has an empty, . or .. component. Write the plain path of the file.")
    if parts.scheme:
        _allowed(text, parts.scheme, store)
    return text


def _allowed(text: str, scheme: str, store: str | None) -> None:
    if store is not None:
        if not text.startswith(store.rstrip("/") + "/"):
            raise ValueError(f"`url` {_brief(text)} lies outside the store of the index, {store}. Move the file there.")
    elif (kind := SCHEMES.get(scheme)) is None or kind.is_local:
        raise ValueError(f"`url` {_brief(text)} is of a scheme that is not read here. Use s3 or http(s).")


def _date(text: str) -> datetime.date:
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    return datetime.date.fromisoformat(text)


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _brief(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
