"""The site of a benchmark: the repository is opened, prepared for and published to as nights and commands do it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from publishing.places import Place
from publishing.repositories import FQRN

from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets, connection_variable
from include.site.site import Site


def bench_site(place: Place, client: Mapping[str, str], public_key: Path, var: Path) -> Site:
    """``place``: of the repository (``Place.repository``); ``client``: what its gateway's clients need.

    ``var``: a folder for ledger and caches, the content index among them; publishers may share it.
    """
    settings = SiteSettings.model_validate(
        {
            "ledger": f"sqlite:///{var}/ledger.db",
            "paths": {"root": str(var), "var": str(var)},
            "stores": {
                "bench": {
                    "url": place.url.removesuffix(f"/{FQRN}"),
                    "endpoint": place.endpoint,
                    "connection": "store" if place.credentials else None,
                    "connections": place.connections,
                    "fsync": place.fsync,
                }
            },
            "repositories": {
                FQRN: {
                    "store": "bench",
                    "public_url": "http://127.0.0.1",
                    "public_key": str(public_key),
                    "gateway": "gateway",
                }
            },
        }
    )
    connections = {
        "store": {"login": place.access_key, "password": place.secret_key},
        "gateway": {"host": client["gateway"], "login": client["key_id"], "password": client["secret"]},
    }
    return Site(settings, EnvSecrets({connection_variable(name): json.dumps(one) for name, one in connections.items()}))
