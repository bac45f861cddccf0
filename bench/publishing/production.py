"""The site of a benchmark: the repository is opened, prepared for and published to as nights and commands do it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bench.publishing.places import Place
from bench.publishing.repositories import FQRN
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets, connection_variable
from include.site.site import Site
from include.storage.buckets import Role


def bench_site(
    place: Place,
    client: Mapping[str, str],
    public_key: Path,
    var: Path,
    roles: Mapping[Role, Place] | None = None,
    keys: Path | None = None,
) -> Site:
    """``place``: of the repository (``Place.repository``); ``client``: what its gateway's clients need.

    ``var``: a folder for ledger and caches, the content index among them; publishers may share it. ``roles``: the same
    place by the keys of other roles; ``keys``: the folder of the signing key, for who switches without the gateway.
    """
    own = {role: found for role, found in (roles or {}).items() if found.credentials}
    settings = SiteSettings.model_validate(
        {
            "ledger": f"sqlite:///{var}/ledger.db",
            "paths": {"root": str(var), "var": str(var)},
            "stores": {
                "bench": {
                    "url": place.url.removesuffix(f"/{FQRN}"),
                    "endpoint": place.endpoint,
                    "connection": "store" if place.credentials else None,
                    **{f"{role.value}_connection": role.value for role in own},
                    "connections": place.connections,
                    "fsync": place.fsync,
                }
            },
            "repositories": {
                FQRN: {
                    "store": "bench",
                    "public_url": "http://127.0.0.1",
                    "public_key": str(public_key),
                    "gateway": "service",
                    "gateway_kind": "embedded",
                    "prepare": {"compression": client.get("compression", "stock")},
                }
            },
            **({"gateway": {"keys": str(keys)}} if keys is not None else {}),
        }
    )
    connections = {
        "store": {"login": place.access_key, "password": place.secret_key},
        "service": {"host": client["gateway"], "login": client["key_id"], "password": client["secret"]},
        **{role.value: {"login": found.access_key, "password": found.secret_key} for role, found in own.items()},
    }
    return Site(settings, EnvSecrets({connection_variable(name): json.dumps(one) for name, one in connections.items()}))
