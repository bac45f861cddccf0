"""The kinds of text in the configuration, each checked in its place: templates, names, URLs, times.

Relative paths start from the validation's context (``root``), else from the folder that holds `include/`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Formatter
from typing import Annotated
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from include.storage.kinds import SCHEMES

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
MAX_NAME_LENGTH = 128
"""Characters; a component of a CernVM-FS path ends at 255 bytes, an index column of the ledger earlier."""
MAX_LOGICAL_NAME_BYTES = 1000
"""FTS takes URLs of 1,100 characters."""


def name_fault(text: str) -> str | None:
    """Return the fault of `text` as a name, or None; it reads on after the name."""
    if not text:
        return "is empty"
    if len(text) > MAX_NAME_LENGTH:
        return f"is longer than {MAX_NAME_LENGTH} characters"
    if not NAME.fullmatch(text):
        return "is not a letter or digit followed by letters, digits and . _ + -"
    return None


def logical_name_fault(text: str) -> str | None:
    """Return the fault of `text` as the logical name of a file, or None; it reads on after the name."""
    if not text.isprintable():
        return "has control characters, line breaks, invisible characters or bytes that are not UTF-8"
    if len(text.encode()) > MAX_LOGICAL_NAME_BYTES:
        return f"is longer than {MAX_LOGICAL_NAME_BYTES} bytes"
    if "\\" in text or "%" in text:
        return "has a backslash or a percent sign, which servers may take for a slash or an encoded character"
    if not unicodedata.is_normalized("NFC", text):
        return "has accents as characters of their own (not Unicode NFC): another name looks the same"
    root, *components = text.split("/")
    if root or not components:
        return "does not begin with a slash"
    if any(component in {"", ".", ".."} for component in components):
        return "has an empty component, . or .."
    return None


def is_below(name: str, prefix: str) -> bool:
    """Tell whether the path is the prefix, or in the folder that the prefix names."""
    return prefix == "/" or name == prefix or name.startswith(f"{prefix}/")


DESTINATION_FIELDS = frozenset({"slot", "build_id", "project", "platform", "date"})
INDEX_FIELDS = frozenset({"slot", "date"})
FOLDER_FIELDS = frozenset({"slot"})
TAG_FIELDS = frozenset({"slot", "build_id", "date"})
MAX_DESTINATION_LENGTH = 1024
"""Characters of a destination path; the width of the ledger's column."""

_MOUNTED = re.compile(r"/cvmfs/[^/]+\.[^/]+(?:/|\Z)")
SAMPLE: Mapping[str, str] = {"slot": "s", "build_id": "b", "project": "p", "platform": "x", "date": "2026-01-01"}


def fields(template: str) -> frozenset[str]:
    """The names in braces; raises ValueError when the braces do not pair or carry a conversion or a format."""
    patterns = set()
    for _, name, format_spec, conversion in Formatter().parse(template):
        if name is None:
            continue
        if format_spec or conversion:
            raise ValueError(f"the field {{{name}}} carries a format or a conversion")
        patterns.add(name)
    return frozenset(patterns)


def fill(template: str, values: Mapping[str, str]) -> str:
    """`template` with its fields replaced; only fields that `fields()` accepted may be in it."""
    return template.format_map(values)


def destination_fault(template: str) -> str | None:
    """Return the fault of a destination template, or None."""
    fault = _field_fault(template, DESTINATION_FIELDS)
    if fault:
        return fault
    used = fields(template)
    missing = {"project", "platform"} - used
    if missing:
        return f"lacks {_braced(missing)}, so two artifacts would share a destination"
    if not used & {"build_id", "date"}:
        return "has neither {build_id} nor {date}, so every build would share its destinations"
    return _path_fault(template)


def index_fault(template: str) -> str | None:
    """Return the fault of the template of an index's key, or None."""
    fault = _field_fault(template, INDEX_FIELDS)
    if fault:
        return fault
    if "date" not in fields(template):
        return "lacks {date}, so every night would read the same index"
    return _component_fault(fill(template, SAMPLE))


def folder_fault(template: str) -> str | None:
    """Return the fault of the template of a folder of links, or None."""
    fault = _field_fault(template, FOLDER_FIELDS)
    if fault:
        return fault
    return _path_fault(template)


def tag_fault(template: str) -> str | None:
    """Return the fault of the template of a tag's name, or None."""
    fault = _field_fault(template, TAG_FIELDS)
    if fault:
        return fault
    if not fields(template) & {"build_id", "date"}:
        return "has neither {build_id} nor {date}, so every build would have the same"
    return _component_fault(fill(template, SAMPLE))


def _field_fault(template: str, allowed: frozenset[str]) -> str | None:
    try:
        unknown = fields(template) - allowed
    except ValueError as error:
        return f"is not a template: {error}"
    if unknown:
        return f"has the unknown field {_braced(unknown)}; known are {_braced(allowed)}"
    return None


def _path_fault(template: str) -> str | None:
    path = fill(template, SAMPLE)
    if not path.startswith("/"):
        return "does not begin with /"
    if _MOUNTED.match(path):
        return "begins with /cvmfs/ and a repository, where clients mount it; give the path inside the repository"
    return _component_fault(path[1:])


def _component_fault(path: str) -> str | None:
    for component in path.split("/"):
        fault = name_fault(component)
        if fault:
            return f"has a component {component!r} that {fault}"
    return None


def _braced(names: frozenset[str] | set[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))


PROJECT_ROOT = Path(__file__).resolve().parents[2]


def fault(what: str, cure: str) -> PydanticCustomError:
    """An error of a validator: what is wrong, and how it is put right."""
    return PydanticCustomError("settings", "{what}", {"what": what, "cure": cure})


def _root(info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("root", PROJECT_ROOT))


def _name(text: str) -> str:
    wrong = name_fault(text)
    if wrong:
        raise fault(f"the name {text!r} {wrong}", "Rename it: names become components of paths.")
    return text


def _connection_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise fault(
            "not a connection id", "Use letters, digits and _ . -; the secret itself belongs in the connection."
        )
    return text


def _fqrn(text: str) -> str:
    if len(text) > 128 or not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*)(?:\.[a-z0-9][a-z0-9-]*)+", text):
        raise fault(
            f"{text!r} is not a repository name",
            "Write a fully qualified name in lower case, as nightlies.example.org.",
        )
    return text


def _absolute(path: Path, info: ValidationInfo) -> Path:
    return _root(info) / path


def _zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise fault(
            f"the time zone {text!r} is not known here", "Use an IANA name such as Europe/Zurich or UTC."
        ) from None
    return text


def _schedule(text: str) -> str:
    from croniter import croniter  # type: ignore[import-untyped]

    if text.startswith("@") or len(text.split()) != 5 or not croniter.is_valid(text):
        raise fault("not a cron expression", 'Write five fields: minute hour day month weekday, as "0 2 * * *".')
    return text


def store_url(text: str, info: ValidationInfo) -> str:
    """A validator: the URL of a store; a relative folder starts from the root."""
    if text.startswith("file:"):
        path = text.removeprefix("file:")
        if path.startswith("//") and not path.startswith("///"):
            raise fault("a file URL names no host", "Write file:///absolute/path, or file:relative/path.")
        return f"file://{_root(info) / ('/' + path.lstrip('/') if path.startswith('/') else path)}"
    parts = urlsplit(text)
    kind = SCHEMES.get(parts.scheme)
    if kind is None or kind.is_local or not parts.netloc:
        raise fault(
            "not the URL of a store", "Use s3://bucket/prefix, file:///path, or http(s)://host/path to read only."
        )
    no_userinfo(text)
    if parts.query or parts.fragment:
        raise fault("the URL has a query or a fragment", "Remove everything from ? or # on.")
    return text.rstrip("/")


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise fault("not an http(s) URL", "Write http://host:port or https://host:port.")
    no_userinfo(text)
    return text.rstrip("/")


def _public_url(text: str, info: ValidationInfo) -> str:
    return store_url(text, info) if text.startswith("file:") else _http_url(text)


def no_userinfo(text: str) -> None:
    """A validator: the URL carries no login."""
    if "@" in urlsplit(text).netloc:
        raise fault("the URL carries a login", "Put login and password into a connection and name that connection.")


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:%-]+", text) or text.startswith("-"):
        raise fault("not the name or address of a host", "Write the name alone, as publisher.example.org; see `port`.")
    return text


def _node_folder(text: str) -> str:
    if not re.fullmatch(r"(?:/(?!\.\.?(?:/|$))[^/\0\n]+)+", text):
        cure = 'Write it from the root on, without a closing slash, as "/var/spool/cvmfs/{fqrn}".'
        raise fault("not the path of a folder on the node", cure)
    return text


def _ledger_url(text: str, info: ValidationInfo) -> str:
    if text.startswith("sqlite:///"):
        path = text.removeprefix("sqlite:///")
        if not path or path.startswith(":memory:"):
            raise fault("a ledger in memory is lost with its process", "Write sqlite:///path/ledger.db.")
        return f"sqlite:///{_root(info) / path}"
    parts = urlsplit(text)
    if parts.scheme != "mysql+pymysql" or not parts.hostname or not parts.path.strip("/"):
        raise fault(
            "not the URL of a ledger", "Use sqlite:///path/ledger.db or mysql+pymysql://login@host:port/database."
        )
    if parts.password is not None or "password" in parts.query or "passwd" in parts.query:
        raise fault(
            "the URL carries a password",
            "Put it into a connection named by `ledger_connection`, or give the whole URL in NIGHTSHIFT_LEDGER_URL.",
        )
    return text


def _template(what: str, fault_of: Callable[[str], str | None], example: str) -> AfterValidator:
    """A text with fields in braces, of which ``fault_of`` says what is wrong."""

    def check(text: str) -> str:
        wrong = fault_of(text)
        if wrong:
            raise fault(f"the {what} {wrong}", f"As in {example}.")
        return text

    return AfterValidator(check)


def _time_of_day(text: str) -> str:
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", text):
        raise fault("not a time of day", 'Write "HH:MM", quoted, in the slot\'s time zone.')
    return text


def _cutoff(text: str) -> str:
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d|[1-9]\d{0,2}[hm]", text):
        cure = 'Write "HH:MM", quoted, in the slot\'s time zone, or a time after the schedule as 5h or 90m.'
        raise fault("neither a time of day nor a length of time", cure)
    return text


Name = Annotated[str, AfterValidator(_name)]
ConnectionId = Annotated[str, AfterValidator(_connection_id)]
Fqrn = Annotated[str, AfterValidator(_fqrn)]
SitePath = Annotated[Path, AfterValidator(_absolute)]
NodeFolder = Annotated[str, AfterValidator(_node_folder)]
StoreUrl = Annotated[str, AfterValidator(store_url)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
PublicUrl = Annotated[str, AfterValidator(_public_url)]
LedgerUrl = Annotated[str, AfterValidator(_ledger_url)]
HostName = Annotated[str, AfterValidator(_host)]
Zone = Annotated[str, AfterValidator(_zone)]
Schedule = Annotated[str, AfterValidator(_schedule)]
TimeOfDay = Annotated[str, AfterValidator(_time_of_day)]
Cutoff = Annotated[str, AfterValidator(_cutoff)]
DestinationTemplate = Annotated[
    str, _template("destination", destination_fault, '"/nightlies/{slot}/{build_id}/{project}/{platform}"')
]
IndexTemplate = Annotated[
    str, _template("index", index_fault, '"{slot}/{date}/index.json", relative to the slot\'s store')
]
FolderTemplate = Annotated[str, _template("folder", folder_fault, '"/nightlies/{slot}"')]
TagTemplate = Annotated[str, _template("tag", tag_fault, '"{slot}-{build_id}"')]
