"""URLs of logical names at sites; pure.

The ledger has sites and logical names: URLs are made when they are needed, so a site may change its URLs while
transfers wait. Only a file without a site, of a task, has a URL as its name, and the storage of the URL as its site.
"""

from __future__ import annotations

import re
from enum import Enum
from urllib.parse import quote, urlsplit

from include.settings.sites import PROTOCOLS, PrefixRule, RemoteSite
from include.settings.text_types import is_below, logical_name_fault
from include.stageout.errors import FILE_REFUSED, NO_SITE_URL
from include.storage.kinds import FILE, SCHEMES

MAX_URL_CHARACTERS = 1100
"""What FTS stores of a URL."""
_UNENCODED = re.compile(r"[A-Za-z0-9/._~+=:@,-]+")
"""What no server and no client of any protocol takes for something else."""
_DECODED = frozenset({"http", "s3"})
"""Protocols whose servers decode what is encoded; others take `%20` as three characters."""


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
