"""Storage sites that files are transferred between: their URLs, checksums and temporary areas (config/site.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from include.settings.prepare import Block
from include.settings.text_types import Name, fault, is_below, logical_name_fault, no_userinfo, store_url
from include.storage.kinds import FILE, SCHEMES

PROTOCOLS: Mapping[str, str] = {
    "davs": "http",
    "https": "http",
    "dav": "http",
    "http": "http",
    "root": "root",
    "xroot": "root",
    "gsiftp": "gsiftp",
    "s3": "s3",
    "s3s": "s3",
    "mock": "mock",
    "file": "file",
}
"""Schemes of URLs, each with its protocol: third-party copy needs the same protocol at both ends."""
_PORTS: Mapping[str, int] = {"davs": 443, "https": 443, "dav": 80, "http": 80, "root": 1094, "xroot": 1094}


class ChecksumMode(Enum):
    """Verification of a site's files after a transfer."""

    ADLER32 = "adler32"
    CRC32C = "crc32c"
    READ_BACK = "read-back"
    """The site reports no checksum: the file is read, and its checksum computed here."""
    NONE = "none"
    """Only the size is compared."""


class CredentialSource(Enum):
    """The credential that is used for a site, by FTS and by the cleaner."""

    SERVICE = "service"
    """That of the FTS server's connection: one identity for all users."""
    PROXY = "proxy"
    """The user's X.509 proxy, from the folder `stageout.proxies`."""
    TOKEN = "token"  # noqa: S105 - a name
    """A token of the user, from the issuer `stageout.tokens`."""


def _site_url(text: str, info: ValidationInfo) -> str:
    parts = _split(text)
    if parts is None or parts.scheme not in PROTOCOLS:
        raise fault("not the URL of a storage site", f"Write scheme://host/path; schemes: {', '.join(PROTOCOLS)}.")
    no_userinfo(text)
    if SCHEMES.get(parts.scheme) is FILE:
        text = store_url(text, info)
        parts = urlsplit(text)
    elif not parts.hostname or parts.query or parts.fragment:
        raise fault("the URL has no host, or a query or fragment", "Write scheme://host:port/path and nothing more.")
    wrong = _path_fault(parts)
    if wrong:
        raise fault(f"the path of the URL {wrong}", "Write a plain path, as davs://se.example.org/cms/store.")
    return text.rstrip("/")


def _prefix(text: str) -> str:
    wrong = None if text == "/" else logical_name_fault(text)
    if wrong:
        raise fault(f"the prefix {text!r} {wrong}", 'Write it from the root on, as "/store/user".')
    return text


def _area(text: str) -> str:
    if text == "/":
        raise fault("the temporary area is everything", 'Name a separate folder, such as "/store/temp".')
    return _prefix(text)


SiteUrl = Annotated[str, AfterValidator(_site_url)]
LogicalPrefix = Annotated[str, AfterValidator(_prefix)]
TemporaryArea = Annotated[str, AfterValidator(_area)]


class PrefixRule(Block):
    """The URL of the logical names below a prefix: `url`, then the rest of the name."""

    prefix: LogicalPrefix
    """The beginning of logical names, as `/store`."""
    url: SiteUrl
    """Replacement of the prefix, as `davs://se.example.org/cms/store`."""

    @property
    def protocol(self) -> str:
        """The protocol of the URL, by its scheme."""
        return PROTOCOLS[self.url.partition(":")[0]]


class SiteProbe(Block):
    """The file by which a site is probed, and a folder in which probes may write."""

    file: LogicalPrefix
    """The logical name of a file of some megabytes that stays; it is read in every round."""
    size: Annotated[int, Field(ge=1)]
    """Its bytes."""
    checksum: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
    """Its Adler-32."""
    folder: TemporaryArea | None = None
    """Small files are written, copied and removed in it, and in no other place; None: probes only read."""


class SiteReading(Block):
    """Rules for failures of a site's files that are read at a distance; a caller can have others."""

    retries: Annotated[int, Field(ge=0, le=100)] = 5
    """Attempts without progress before the next replica is read."""
    wait_s: Annotated[float, Field(gt=0, le=600)] = 0.5
    """Wait before the second attempt without progress, doubled for each one after it."""
    longest_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """The longest wait."""
    timeout_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    """Time for a connection, and between two bytes; over xroot for a request."""


class RemoteSite(Block):
    """A storage site that data are transferred to and from.

    Its rules are in the order of preference. For each protocol the first one counts whose prefix the name is below.
    """

    name: str
    store: str | None = None
    """The object store of this deployment that is the site, where there is one."""
    read: tuple[PrefixRule, ...] = ()
    """URLs by which its files are read."""
    write: tuple[PrefixRule, ...] = ()
    """URLs by which files are written and removed."""
    third_party: tuple[PrefixRule, ...] = ()
    """URLs of copies that its server makes from or to another site."""
    allowed: tuple[SiteUrl, ...] = ()
    """Prefixes of URLs of the site; empty: the URLs of its rules."""
    checksum: ChecksumMode = ChecksumMode.ADLER32
    credential: CredentialSource = CredentialSource.SERVICE
    rse: Annotated[str, Field(pattern=r"^[A-Z0-9]+([_-][A-Z0-9]+)*$")] | None = None
    """The name of the site in Rucio, for `stageout.catalogue` of kind `rucio`; each site that files go to needs one."""
    temporary: TemporaryArea | None = None
    """Below it jobs leave their files; nothing is ever removed elsewhere."""
    shared_temporary: bool = False
    """With `credential: service`: lets users name sources in folders of others in the temporary area."""
    clean: bool = False
    """Removes a source in the temporary area after its transfer was verified."""
    clean_on_size: bool = False
    """With `checksum: none`: whether the same size is enough for removing a source."""
    clean_unknown: bool = False
    """Lets the census delete old files in the temporary area that the ledger does not know."""
    probe: SiteProbe | None = None
    """Probes of the site; None: its health is known by transfers and readers alone."""
    reading: SiteReading = SiteReading()

    @property
    def rules(self) -> tuple[PrefixRule, ...]:
        """The rules of all operations."""
        return (*self.read, *self.write, *self.third_party)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes of the URLs of the site."""
        return self.allowed or tuple(rule.url for rule in self.rules)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Prefixes that are folders of this machine."""
        urls = map(urlsplit, self.prefixes)
        return tuple(Path(url.path) for url in urls if SCHEMES.get(url.scheme) is FILE)

    def allows(self, url: str) -> bool:
        """Tell whether a URL is the site's: below an allowed prefix, without login, query or hidden path parts."""
        parts = _split(url)
        if parts is None or "@" in parts.netloc or parts.query or parts.fragment or _path_fault(parts):
            return False
        *server, path = _place(parts)
        places = map(_place_of, self.prefixes)
        return any(server == host and is_below(path, prefix) for *host, prefix in places)

    @model_validator(mode="after")
    def _rules_are_allowed(self) -> RemoteSite:
        for rule in self.rules:
            if not self.allows(rule.url):
                raise fault(f"the URL {rule.url} is not below one in `allowed`", "Add its beginning to `allowed`.")
        return self

    @model_validator(mode="after")
    def _probes_have_urls(self) -> RemoteSite:
        if self.probe is None:
            return self
        for key, name, rules in (("file", self.probe.file, self.read), ("folder", self.probe.folder, self.write)):
            if name is not None and not any(is_below(name, rule.prefix) for rule in rules):
                verb = "read" if key == "file" else "write"
                raise fault(
                    f"`probe.{key}` is below no prefix of `{verb}`", f"Name a {key} that the site has URLs for."
                )
        return self

    @model_validator(mode="after")
    def _cleaning_is_possible(self) -> RemoteSite:
        if (self.clean or self.clean_unknown) and self.temporary is None:
            raise fault("cleaning without a temporary area", "Add `temporary:`, or remove `clean` and `clean_unknown`.")
        unchecked = self.checksum is ChecksumMode.NONE
        if self.clean_on_size and not unchecked:
            raise fault("clean_on_size with a checksum", "Remove `clean_on_size`: the checksum decides.")
        if self.clean and unchecked and not self.clean_on_size:
            hint = "Choose another `checksum`, or add `clean_on_size: true` if the same size is enough."
            raise fault("cleaning without a checksum", hint)
        return self


class FederationSettings(Block):
    """Health of sites."""

    owner: Name | None = None
    """The Airflow user whose credential probes have at sites that ask for that of a user."""
    ban: bool = False
    """Bans the storages of a failed site at the FTS servers, where their connections have that right: files that they
    have already wait too."""


def require_folders_below(folder: Path, sites: Iterable[RemoteSite]) -> None:
    """A validator: URLs of sites that are folders of this machine are below `folder`."""
    for site in sites:
        for strange in (owned for owned in site.folders if not owned.is_relative_to(folder)):
            raise fault(
                f"site {site.name}: the folder {strange} is outside {folder}", "Use a folder below `paths.var`."
            )


def is_same_place(url: str, other: str) -> bool:
    """Tell whether two URLs differ at most in a standard port, the host of a folder, or slashes that are doubled."""
    return _plain(url) == _plain(other)


def _plain(url: str) -> tuple[object, ...]:
    scheme, host, port, path = _place(urlsplit(url))
    return scheme, None if SCHEMES.get(scheme) is FILE else host, port, re.sub("/+", "/", path)


def _split(url: str) -> SplitResult | None:
    if not url.isprintable() or "\\" in url or url != url.strip():
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for one that is no number
    except ValueError:
        return None
    return parts


def _path_fault(parts: SplitResult) -> str | None:
    # xrootd's URLs have two slashes before an absolute path
    path = parts.path.removeprefix("/") if parts.path.startswith("//") else parts.path
    plain = unquote(path, errors="surrogateescape").rstrip("/")
    return logical_name_fault(plain) if plain else None


def _place(parts: SplitResult) -> tuple[str, str | None, int | None, str]:
    """Scheme, host, port and path."""
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme), parts.path.rstrip("/") or "/"


@lru_cache(4096)
def _place_of(prefix: str) -> tuple[str, str | None, int | None, str]:
    """Remember `_place`: every URL of a site is compared with the same few."""
    return _place(urlsplit(prefix))
