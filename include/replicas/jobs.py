"""Jobs of a stratum 1 over SSH: snapshots, collections, and the configuration of a client."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from include.publishers.server.maintenance import DetachedJob
from include.publishers.server.open import address_of
from include.publishers.server.outcomes import Verb
from include.settings.errors import SettingsError
from include.settings.ssh import chosen
from include.site.site import Site

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


_OPTIONS = {Verb.SNAPSHOT: (), Verb.COLLECT: ("-f",)}


def job_on(site: Site, fqrn: str, replica: str, verb: str) -> DetachedJob:
    """The job of a replica's machine: `snapshot` or `gc`. Raises SettingsError for a replica without `node:`."""
    (settings,) = chosen(fqrn, site.settings.repository(fqrn).replicas, [replica])
    if settings.node is None:
        raise SettingsError(f"replica {replica} of {fqrn} has no machine; add `node:` to it in the configuration.")
    login, kind = settings.node, Verb(verb)
    command = (*login.command, kind.value, *_OPTIONS[kind], fqrn)
    return DetachedJob(address_of(fqrn, login, site.secrets), kind, login.spool.replace("{fqrn}", fqrn), command)
