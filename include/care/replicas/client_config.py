"""The configuration of a client of a repository: which servers, through which proxies, by which key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from include.settings.errors import SettingsError

DIRECT = "DIRECT"
_URL = re.compile(r"(?:https?://[A-Za-z0-9\[]|file:///)[A-Za-z0-9._~:/%\[\]-]*")
_PROXY = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+")


def client_config(fqrn: str, public_key: Path, *, servers: Sequence[str], proxies: Sequence[str]) -> str:
    """The texts of the client's files, each below a comment that names its place.

    Args:
        fqrn: The repository.
        public_key: Where its public master key is here.
        servers: URLs of the repository, in the order in which they are tried.
        proxies: URLs of forward proxies that share the load; empty: none.

    Raises:
        SettingsError: for a URL that no line of a client's configuration can hold.
    """
    for url in servers:
        _require(_URL, url, "http://stratum1.example.org/cvmfs/" + fqrn)
    for url in proxies:
        _require(_PROXY, url, "http://squid.example.org:3128")
    place = f"/etc/cvmfs/keys/{fqrn}.pub"
    lines = [
        f"# {place}: a copy of {public_key}",
        f"#   install -D -m 0644 {public_key.name} {place}",
        "",
        f"# /etc/cvmfs/config.d/{fqrn}.conf",
        f'CVMFS_SERVER_URL="{";".join(servers)}"',
        f"CVMFS_PUBLIC_KEY={place}",
        "CVMFS_USE_GEOAPI=no",
    ]
    if any(urlsplit(url).scheme == "https" for url in servers):
        lines.append("CVMFS_USE_SSL_SYSTEM_CA=true")
    lines += [
        "",
        "# /etc/cvmfs/default.local",
        f'CVMFS_HTTP_PROXY="{"|".join(proxies) or DIRECT}"',
        "CVMFS_QUOTA_LIMIT=4000",
        "",
        f"# then: cvmfs_config setup; cvmfs_config probe {fqrn}",
    ]
    return "\n".join(lines) + "\n"


def _require(pattern: re.Pattern[str], url: str, example: str) -> None:
    if not pattern.fullmatch(url):
        raise SettingsError(f"{url!r} is no URL for a client; write it as {example}, without login and query.")
