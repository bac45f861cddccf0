"""Requests for transfers, their checks, and the URLs of logical names at sites; pure.

The ledger has sites and logical names: URLs are made when they are needed, so a site may change its URLs while
transfers wait. Only a file without a site, of a task, has a URL as its name, and the storage of the URL as its site.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from include.fts.jobs import activity_fault
from include.settings.sites import PROTOCOLS, CredentialSource, PrefixRule, RemoteSite
from include.settings.stageout import StageoutSettings
from include.settings.text_types import is_below, logical_name_fault
from include.stageout.errors import FILE_REFUSED, NO_SITE_URL, OUTSIDE_NAME_SPACE, StageoutError
from include.stageout.places.facts import checksum_of
from include.storage.kinds import FILE, SCHEMES

if TYPE_CHECKING:
    from include.settings.model import SiteSettings

MAX_URL_CHARACTERS = 1100
"""The longest URL that FTS stores."""
_UNENCODED = re.compile(r"[A-Za-z0-9/._~+=:@,-]+")
"""Characters that every server and client of every protocol takes as they are."""
_DECODED = frozenset({"http", "s3"})
"""Protocols whose servers decode what is encoded; others take `%20` as three characters."""
MAX_FILES = 10_000
"""Files of one request."""
MAX_SIZE = 1 << 50
"""Bytes of one file: a PiB is a mistake."""
_ALGORITHMS = ("adler32", "crc32c")
"""Algorithms of the checksums that sites report."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_WORDS = {"owner": 128, "key": 128, "workflow": 128, "activity": 128, "user_job": 128, "dataset": 512}
"""Characters that the ledger has for each."""


class FileKind(Enum):
    """Log files are transferred after outputs."""

    OUTPUT = "output"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class FileToTransfer:
    """A file, from the site where a job wrote it to the site where it stays.

    Attributes:
        source: The name of the site that has it.
        source_name: Its logical name there.
        destination: The name of the site that it goes to.
        destination_name: Its logical name there.
        size: Bytes, None if unknown.
        checksum: As `adler32:0a1b2c3d`, or with crc32c; None if unknown. Capitals and missing zeros become this form.
        dataset: Where it is registered; None: it is not registered.
        user_job: The job of the workflow that wrote it.
    """

    source: str
    source_name: str
    destination: str
    destination_name: str
    kind: FileKind = FileKind.OUTPUT
    activity: str = "default"
    size: int | None = None
    checksum: str | None = None
    dataset: str | None = None
    user_job: str | None = None

    def __post_init__(self) -> None:
        # here, so that two spellings are the same file in a digest; what is no checksum stays for `check_request`
        if self.checksum is not None and (checksum := _checksum(self.checksum)):
            object.__setattr__(self, "checksum", checksum)

    @property
    def place(self) -> str:
        """The digest that represents the destination in the ledger's index."""
        return digest_of(self.destination, self.destination_name)


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options that a task of a DAG chooses for its files.

    `fts`: the connection of the FTS server. `verify`: which checksums FTS compares, as in `VerifyChecksum`.
    `overwrite`: whether files at the destinations are replaced. `priority`: at FTS, 1 to 5.
    """

    fts: str
    verify: str
    overwrite: bool = False
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class StageoutRequest:
    """Files that are sent in one call.

    `owner`: the user whom the transfers belong to. `key`: the idempotency key: the same key again is the same request.
    `workflow`: what the files belong to. `files`: at least one, each with a destination of its own. `task`: of a task's
    files only; these may be bare URLs.
    """

    owner: str
    key: str
    workflow: str
    files: tuple[FileToTransfer, ...]
    task: TaskOptions | None = None

    @property
    def digest(self) -> str:
        """The same for the same files in the same workflow."""
        rows = [{**asdict(file), "kind": file.kind.value} for file in self.files]
        return digest_of(self.workflow, json.dumps(rows, sort_keys=True))


def digest_of(*texts: str) -> str:
    """The digest that represents, in an index, texts that are too long for it."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def check_request(request: StageoutRequest, sites: Mapping[str, RemoteSite]) -> None:
    """Check that a request can be recorded; change nothing.

    Raises StageoutError: FILE_REFUSED, with the first thing that is wrong.
    """
    for field in ("owner", "key", "workflow"):
        _check_word("the request", field, getattr(request, field))
    if not 1 <= len(request.files) <= MAX_FILES:
        raise FILE_REFUSED("the request", f"it has {len(request.files)} files, not 1 to {MAX_FILES}")
    _check_destinations(request.files)
    for number, file in enumerate(request.files):
        _check_file(f"file {number}", file, sites, bare=request.task is not None)


def check_name_space(request: StageoutRequest, settings: StageoutSettings) -> None:
    """Check that every file of a checked request goes below the name space of its owner.

    Raises StageoutError: OUTSIDE_NAME_SPACE, with the first file that does not.
    """
    other = settings.impersonated_by(request.owner)
    if other is not None:
        why = f"`stageout.identities` gives this name to {other}, and has no entry for the user itself"
        raise OUTSIDE_NAME_SPACE(f"user {request.owner[:200]!r}", why)
    user = settings.user_of(request.owner)
    if "/" in user or logical_name_fault(f"/{user}"):
        raise OUTSIDE_NAME_SPACE(f"user {user[:200]!r}", "the name cannot be that of a folder")
    space = settings.name_space_of(request.owner)
    for number, file in enumerate(request.files):
        if file.destination_name == space or not is_below(file.destination_name, space):
            raise OUTSIDE_NAME_SPACE(f"file {number}", f"{file.destination_name[:200]!r} is not below {space}")


def check_sources(request: StageoutRequest, settings: StageoutSettings, sites: Mapping[str, RemoteSite]) -> None:
    """Check that no file of a checked request is taken out of the temporary folder of another user.

    The storage does not check it where one credential serves all users. Raises StageoutError: OUTSIDE_NAME_SPACE, with
    the first file that is.
    """
    for number, file in enumerate(request.files):
        site = sites[file.source]
        if site.credential is not CredentialSource.SERVICE or site.temporary is None or site.shared_temporary:
            continue
        own = settings.temporary_of(request.owner, site.temporary)
        if is_below(file.source_name, site.temporary) and not is_below(file.source_name, own):
            raise OUTSIDE_NAME_SPACE(f"file {number}", f"the source {file.source_name[:200]!r} is not below {own}")


def check_catalogue(request: StageoutRequest, settings: StageoutSettings) -> None:
    """Check that the catalogue can have every file of a checked request that is to be registered.

    Raises StageoutError: FILE_REFUSED, with the first one that it cannot have.
    """
    catalogue, user = settings.catalogue, settings.user_of(request.owner)
    for number, file in enumerate(request.files):
        if file.dataset is None:
            continue
        parts = (user, request.workflow, file.dataset, "0" * 32)
        scope = catalogue.filled(catalogue.scope, *parts)
        names = [file.destination_name, catalogue.filled(catalogue.dataset, *parts)]
        names += [catalogue.filled(catalogue.container, *parts)] if catalogue.container else []
        fault = catalogue.scope_fault(scope)
        faults = ([f"the scope {scope!r} {fault}"] if fault else []) + [
            f"the name {name[:300]!r} {fault}" for name in names if (fault := catalogue.name_fault(name))
        ]
        if faults:
            raise FILE_REFUSED(f"file {number}", f"it could not be registered: {faults[0]}")


def check_all(request: StageoutRequest, settings: SiteSettings) -> None:
    """Check that a request of a user can be recorded, transferred and registered. Raises StageoutError."""
    check_request(request, settings.sites)
    check_name_space(request, settings.stageout)
    check_sources(request, settings.stageout, settings.sites)
    check_catalogue(request, settings.stageout)


def _check_destinations(files: Sequence[FileToTransfer]) -> None:
    first: dict[tuple[str, str], int] = {}
    for number, file in enumerate(files):
        place = (file.destination, file.destination_name)
        if first.setdefault(place, number) != number:
            raise FILE_REFUSED(f"file {number}", f"it has the same destination as file {first[place]}")


def _check_file(subject: str, file: FileToTransfer, sites: Mapping[str, RemoteSite], *, bare: bool) -> None:
    ends = (("source", file.source, file.source_name), ("destination", file.destination, file.destination_name))
    for field, site, name in ends:
        if bare and is_bare(name):
            continue
        if site not in sites:
            raise FILE_REFUSED(subject, f"the {field} site {site!r} is not in the configuration")
        is_url = _SCHEME.match(name) is not None
        wrong = "is a URL: name the site, and the file by its logical name" if is_url else logical_name_fault(name)
        if wrong:
            raise FILE_REFUSED(subject, f"`{field}_name` {name[:200]!r} {wrong}")
    if (file.source, file.source_name) == (file.destination, file.destination_name):
        raise FILE_REFUSED(subject, "source and destination are the same")
    if file.size is not None and not 0 <= file.size <= MAX_SIZE:
        raise FILE_REFUSED(subject, f"the size {file.size} is not from 0 to {MAX_SIZE} bytes")
    if file.checksum is not None and _checksum(file.checksum) is None:
        raise FILE_REFUSED(subject, f"the checksum {file.checksum[:80]!r} {_checksum_fault(file.checksum)}")
    _check_word(subject, "activity", file.activity)
    if fault := activity_fault(file.activity):
        raise FILE_REFUSED(subject, f"the activity {file.activity!r} {fault}")
    _check_urls(subject, file, sites)
    for field in ("dataset", "user_job"):
        if getattr(file, field) is not None:
            _check_word(subject, field, getattr(file, field))


def _checksum(text: str) -> str | None:
    """The checksum in our form, from any spelling of tools and storages; None if it is not one."""
    algorithm, _, digits = text.partition(":")
    return checksum_of(algorithm.lower(), digits) if algorithm.lower() in _ALGORITHMS else None


def _checksum_fault(text: str) -> str:
    algorithm, colon, digits = text.partition(":")
    if not colon:
        return "has no algorithm before a colon; write adler32:0a1b2c3d or crc32c:0a1b2c3d"
    if algorithm.lower() not in _ALGORITHMS:
        return f"is not one of {' or '.join(_ALGORITHMS)}; sites report no others"
    if digits and not digits.strip("0") and len(digits) <= 8:
        return "is zero, which tools print after a failed computation; leave it out"
    return "has not 1 to 8 hexadecimal digits after the colon"


def _check_urls(subject: str, file: FileToTransfer, sites: Mapping[str, RemoteSite]) -> None:
    """Check that FTS can keep the URLs; a rule that is missing may be added while the transfer waits."""
    try:
        source, destination = sites.get(file.source), sites.get(file.destination)
        third_party_urls((source, file.source_name), (destination, file.destination_name))
    except StageoutError as error:
        if error.code != NO_SITE_URL.code:
            raise FILE_REFUSED(subject, f"{error.subject[:200]}: {error.what}") from None


def _check_word(subject: str, field: str, text: str) -> None:
    if not 1 <= len(text) <= _WORDS[field] or not text.isprintable() or text != text.strip():
        raise FILE_REFUSED(subject, f"`{field}` is not a text of 1 to {_WORDS[field]} visible characters")


class SiteOperation(Enum):
    """The use of a URL."""

    READ = "read"
    WRITE = "write"
    THIRD_PARTY = "third_party"


def is_bare(name: str) -> bool:
    """Tell whether a file has no site: its name is a URL, which no logical name is."""
    return "://" in name


def storage_of(url: str) -> str:
    """Return what FTS calls the storage of a URL: scheme and host, without a port."""
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return "file://localhost"
    host = rest.partition("/")[0]
    # an IPv6 address has colons of its own
    plain = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return f"{scheme}://{plain}".lower()


def site_urls(site: RemoteSite | None, operation: SiteOperation, name: str) -> dict[str, str]:
    """The URLs of a logical name at a site, by protocol, the preferred one first. Without a site the name is the URL.

    Raises StageoutError: FILE_REFUSED for a name that no URL may be made of, NO_SITE_URL where no rule has its prefix,
    and for a site that is not configured.
    """
    if is_bare(name):
        return {PROTOCOLS.get(urlsplit(name).scheme, ""): name}
    if site is None:
        raise NO_SITE_URL(f"the site of {name}", "it is not configured")
    wrong = logical_name_fault(name)
    if wrong:
        raise FILE_REFUSED(repr(name), f"the logical name {wrong}")
    found: dict[str, str] = {}
    for rule in _RULES[operation](site):
        if rule.protocol not in found and is_below(name, rule.prefix):
            found[rule.protocol] = _url(site, rule, name)
    if not found:
        raise NO_SITE_URL(f"site {site.name}", f"no `{operation.value}` rule has a prefix of {name}")
    return found


def third_party_urls(
    source: tuple[RemoteSite | None, str], destination: tuple[RemoteSite | None, str]
) -> tuple[str, str]:
    """Source and destination URL of a third-party copy, in the first protocol of the source that both sites have.

    `source`: the site and the logical name there. Two URLs are taken as they are. Raises StageoutError: as `site_urls`;
    NO_SITE_URL, too, where the sites have no protocol in common.
    """
    if is_bare(source[1]) and is_bare(destination[1]):
        return source[1], destination[1]
    origin, target = (site_urls(site, SiteOperation.THIRD_PARTY, name) for site, name in (source, destination))
    for protocol, url in origin.items():
        if protocol in target:
            return _with_host(url), _with_host(target[protocol])
    names = [site.name if site else storage_of(name) for site, name in (source, destination)]
    what = f"no protocol in common for a third-party copy ({', '.join(origin)}; {', '.join(target)})"
    raise NO_SITE_URL(f"sites {' and '.join(names)}", what)


def _with_host(url: str) -> str:
    """A URL of a folder with the host that FTS wants; only the embedded service copies between folders."""
    parts = urlsplit(url)
    return parts._replace(netloc="localhost").geturl() if SCHEMES.get(parts.scheme) is FILE else url


_RULES = {
    SiteOperation.READ: lambda site: site.read,
    SiteOperation.WRITE: lambda site: site.write,
    SiteOperation.THIRD_PARTY: lambda site: site.third_party,
}


def _url(site: RemoteSite, rule: PrefixRule, name: str) -> str:
    if rule.protocol not in _DECODED and not _UNENCODED.fullmatch(name):
        raise FILE_REFUSED(repr(name), f"the logical name has characters that {rule.protocol} URLs cannot carry")
    rest = quote(name if rule.prefix == "/" else name.removeprefix(rule.prefix), safe="/._~+=:@,-")
    url = rule.url + rest
    if len(url) > MAX_URL_CHARACTERS:
        raise FILE_REFUSED(repr(name), f"its URL at {site.name} is longer than {MAX_URL_CHARACTERS} characters")
    if not site.allows(url):
        raise NO_SITE_URL(f"site {site.name}", f"the URL of {name} is not below one in `allowed`")
    return url
