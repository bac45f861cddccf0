"""Texts for the files of clients and servers of a repository: keys, servers, proxies, shared caches, redirections."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from include.settings.errors import SettingsError
from include.settings.model import SiteSettings

DIRECT = "DIRECT"
_URL = re.compile(r"(?:https?://[A-Za-z0-9\[]|file:///)[A-Za-z0-9._~:/%\[\]-]*")
_PROXY = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+")


def client_config(fqrn: str, public_key: Path, *, servers: Sequence[str], proxies: Sequence[str]) -> str:
    """The texts of the client's files, each below a comment that names its place.

    ``public_key``: where the public master key is here. ``servers``: URLs in the order in which they are tried.
    ``proxies`` share the load. Raises SettingsError for a URL that no line of a client's configuration can hold.
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


_SITE = """\
# {place}: a copy of {public_key}

# /etc/cvmfs/config.d/{fqrn}.conf on the clients
CVMFS_SERVER_URL="{servers}"
CVMFS_PUBLIC_KEY={place}
CVMFS_FOLLOW_REDIRECTS=yes
CVMFS_HTTP_PROXY=DIRECT
CVMFS_USE_GEOAPI=no

# /etc/nginx/conf.d/{fqrn}.conf on the site's cache: metadata come from the stratum 1 each time, as XCache never asks
# again for what it has; objects do not change, and come from XCache.
server {{
  listen {port};
  location ~ ^/cvmfs/{name}/data/ {{ return 302 {cache}$uri; }}
  location /cvmfs/{fqrn}/ {{ proxy_pass {stratum1}/; }}
}}

# /etc/xrootd/xrootd-cache.cfg on the site's cache
all.export /cvmfs/{fqrn}
xrd.protocol http:{cache_port} libXrdHttp.so
http.desthttps no
ofs.osslib libXrdPss.so
pss.cachelib libXrdPfc.so
pss.origin {origin}
oss.localroot {folder}
pfc.ram 1g
pfc.blocksize 1m
pfc.prefetch 0
pfc.diskusage 0.90 0.95

# /etc/xrootd/xrootd-origin.cfg on {origin_host}, which has the files of the stratum 1
all.export /cvmfs/{fqrn} r/o
oss.localroot {root}
xrd.port {origin_port}
"""
_HOST = re.compile(r"[A-Za-z0-9._-]+:[0-9]{1,5}")


def proxy_site_config(
    fqrn: str, public_key: Path, *, site: str, servers: Sequence[str], origin: str, root: str, folder: str
) -> str:
    """The texts of all files of a site without a shared file system: XCache before its clients.

    ``site``: URL of the site's cache, as ``http://cache.example.org:8000``; XCache listens on the next port.
    ``servers``: stratum 1s; metadata come from the first, clients go to them where the site's cache fails. ``origin``:
    host and port of XRootD on it. ``root``: the folder there that has ``cvmfs``; ``folder``: of XCache. Raises
    SettingsError for what no line of the files can hold.
    """
    for url in servers:
        _require(_URL, url, "http://stratum1.example.org/cvmfs/" + fqrn)
    _require(_PROXY, site, "http://cache.example.org:8000")
    if not _HOST.fullmatch(origin):
        raise SettingsError(f"{origin!r} is no XRootD server; write it as stratum1.example.org:1094.")
    for path in (root, folder):
        _require_folder(path)
    place, parts = f"/etc/cvmfs/keys/{fqrn}.pub", urlsplit(site)
    port = parts.port or 80
    return _SITE.format(
        fqrn=fqrn, name=re.escape(fqrn), place=place, public_key=public_key, port=port, cache_port=port + 1,
        servers=";".join((f"{site}/cvmfs/{fqrn}", *servers)), cache=f"{parts.scheme}://{parts.hostname}:{port + 1}",
        stratum1=servers[0].rstrip("/"), origin=origin, origin_host=origin.partition(":")[0],
        origin_port=origin.partition(":")[2], root=root, folder=folder,
    )  # fmt: skip


_NO_QUOTA = """\
# A client refuses an alien cache with a quota ("quota management and alien cache mutually exclusive"), and with a
# shared local cache ("shared local disk cache and alien cache mutually exclusive").
CVMFS_QUOTA_LIMIT=-1
CVMFS_SHARED_CACHE=no
# Its workspace is local, and one for each mount.
CVMFS_CACHE_BASE=/var/lib/cvmfs"""


def cache_config(settings: SiteSettings, name: str, *, servers: Sequence[str], redirects: bool) -> str:
    """The texts of the files of a shared cache's clients, each below a comment that names its place.

    ``servers``: URLs with the placeholder ``@fqrn@``; none: the origins of the cache, else the public URL. Raises
    SettingsError for repositories of several domains, and a URL that no line of a client's configuration can hold.
    """
    cache = settings.cache(name)
    domains = {fqrn.partition(".")[2] for fqrn in cache.repositories}
    if len(domains) > 1:
        raise SettingsError(f"cache {name} has repositories of several domains; make one cache for each.")
    (domain,) = domains
    return alien_cache_config(
        settings, cache.repositories, cache.path, domain=domain, servers=servers or cache.origins, redirects=redirects
    )


def alien_cache_config(
    settings: SiteSettings, repositories: Sequence[str], path: Path, *, domain: str, servers: Sequence[str],
    redirects: bool,
) -> str:  # fmt: skip
    """The same for a folder that needs not be in the configuration. ``domain``: of all these repositories."""
    if not _FOLDER.fullmatch(str(path)) or ".." in path.parts:
        raise SettingsError(f"{str(path)!r} is no folder for a client; write it as /mnt/shared/cvmfs-cache.")
    for fqrn in repositories:
        if (own := fqrn.partition(".")[2]) != domain:
            raise SettingsError(f"{fqrn} is not in the domain {domain!r}; write {own!r}.")
    public = settings.repository(repositories[0])
    urls = list(servers) or [public.public_url.replace(public.fqrn, "@fqrn@")]
    for url in urls:
        _require(_URL, url.replace("@fqrn@", "fqrn"), f"http://stratum1.{domain}/cvmfs/@fqrn@")
    lines = [
        *(f"# /etc/cvmfs/keys/{domain}/{fqrn}.pub: a copy of {settings.repository(fqrn).public_key}"
          for fqrn in repositories),
        "",
        f"# /etc/cvmfs/domain.d/{domain}.local",
        f'CVMFS_SERVER_URL="{";".join(urls)}"',
        f"CVMFS_KEYS_DIR=/etc/cvmfs/keys/{domain}",
        f"CVMFS_ALIEN_CACHE={path}",
        "CVMFS_HTTP_PROXY=DIRECT",
        _NO_QUOTA,
        *(("CVMFS_FOLLOW_REDIRECTS=yes",) if redirects else ()),
        "",
        f"# then: cvmfs_config setup; cvmfs_config probe {repositories[0]}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _require(pattern: re.Pattern[str], url: str, example: str) -> None:
    if not pattern.fullmatch(url):
        raise SettingsError(f"{url!r} is no URL for a client; write it as {example}, without login and query.")


def _require_folder(path: str) -> None:
    if not _FOLDER.fullmatch(path) or ".." in path:
        raise SettingsError(f"{path!r} is no folder for a server; write it as /srv/cvmfs.")


_REDIRECT = """\
# A stratum 1 that redirects: this front end answers metadata, and sends clients for data to {count} servers, each
# object always to the same one. Clients need CVMFS_FOLLOW_REDIRECTS=yes; they follow at most 4 redirections.
# /etc/nginx/conf.d/{fqrn}.conf on the front end:
split_clients $uri $nightshift_data {{
{shares}
}}
server {{
  listen {listen};
  location ~ ^/cvmfs/(?<rest>{name}/data/.*)$ {{ return 302 $nightshift_data/cvmfs/$rest; }}
  location /cvmfs/ {{ alias {root}/; }}
}}

# on each data server:
server {{
  listen {data_port};
  location ~ ^/cvmfs/(?<rest>{name}/data/.*)$ {{ alias {root}/$rest; }}
}}
"""
_FOLDER = re.compile(r"/[A-Za-z0-9._/-]*[A-Za-z0-9._-]")


def redirect_config(fqrn: str, *, data: Sequence[str], root: str, listen: str = "8000") -> str:
    """The texts of nginx's files for a stratum 1 that redirects.

    ``data``: URLs of the data servers, as ``http://data1.example.org:8001``. ``root``: the folder on each machine that
    has the repository's. Raises SettingsError for what no line of the file can hold, and for fewer than one server.
    """
    if not data:
        raise SettingsError("a redirection needs data servers; give --data, several times.")
    for url in data:
        _require(_PROXY, url, "http://data1.example.org:8001")
    _require_folder(root)
    if not re.fullmatch(r"([A-Za-z0-9.\[\]:-]+:)?[0-9]{1,5}", listen):
        raise SettingsError(f"{listen!r} is nothing to listen on; write a port, or address:port.")
    share = 100 / len(data)
    shares = [f"  {share:.2f}% {url};" for url in data[:-1]] + [f"  * {data[-1]};"]
    return _REDIRECT.format(
        count=len(data), fqrn=fqrn, name=re.escape(fqrn), shares="\n".join(shares), listen=listen, root=root,
        data_port=urlsplit(data[0]).port or 80,
    )  # fmt: skip
