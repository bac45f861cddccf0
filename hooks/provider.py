"""The declaration of Nightshift as a provider: operators, sensors, connection types and their forms.

The entry point `apache_airflow_provider` of pyproject.toml leads here. Every component imports it, so it
imports nothing.
"""

from __future__ import annotations

from typing import Any

DISTRIBUTION = "nightshift"
_CVMFS, _OBJECTS, _TRANSFERS, _CEPH = "CernVM-FS", "Object store", "FTS", "Ceph"


def get_provider_info() -> dict[str, Any]:
    """The provider's description in Airflow's own form; `package-name` must be the distribution's name."""
    return {
        "package-name": DISTRIBUTION,
        "name": "Nightshift",
        "description": "CernVM-FS gateways, object stores and FTS servers, as the DAGs of Nightshift use them.",
        "integrations": [
            {"integration-name": name, "tags": ["software"]} for name in (_CVMFS, _OBJECTS, _TRANSFERS, _CEPH)
        ],
        "operators": [
            {"integration-name": _CVMFS, "python-modules": ["operators.cvmfs", "operators.caches"]},
            {"integration-name": _OBJECTS, "python-modules": ["operators.objects"]},
            {"integration-name": _TRANSFERS, "python-modules": ["operators.fts"]},
        ],
        "sensors": [
            {"integration-name": _CVMFS, "python-modules": ["sensors.cvmfs"]},
            {"integration-name": _OBJECTS, "python-modules": ["sensors.objects"]},
            {"integration-name": _TRANSFERS, "python-modules": ["sensors.fts"]},
            {"integration-name": _CEPH, "python-modules": ["sensors.ceph"]},
        ],
        "hooks": [
            {"integration-name": _CVMFS, "python-modules": ["hooks.gateway"]},
            {"integration-name": _OBJECTS, "python-modules": ["hooks.object_store"]},
        ],
        "connection-types": [_GATEWAY, _OBJECT_STORE, _FTS],
    }


_AUTHORITIES: dict[str, Any] = {
    "label": "Certificate authorities",
    "description": "Path of a PEM bundle to check the server's certificate against; empty: the system's.",
    "schema": {"type": ["string", "null"]},
}

_GATEWAY: dict[str, Any] = {
    "connection-type": "cvmfs_gateway",
    "hook-class-name": "hooks.gateway.CvmfsGatewayHook",
    "hook-name": "CernVM-FS gateway",
    "ui-field-behaviour": {
        "hidden-fields": [],
        "relabeling": {"login": "Key id", "password": "Key secret", "schema": "Scheme"},
        "placeholders": {
            "host": "gateway.example.org",
            "port": "4929",
            "schema": "http",
            "login": "the second word of the .gw key file",
            "password": "the third word of the .gw key file",
        },
    },
    "conn-fields": {
        "max_lease_time_s": {
            "label": "Lease lifetime (s)",
            "description": "max_lease_time of the gateway; a publication waits at least that long for a busy path.",
            "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 86_400},
        },
        "authorities": _AUTHORITIES,
    },
}

_OBJECT_STORE: dict[str, Any] = {
    "connection-type": "object_store",
    "hook-class-name": "hooks.object_store.ObjectStoreHook",
    "hook-name": "Object store (S3)",
    "ui-field-behaviour": {
        "hidden-fields": [],
        "relabeling": {"login": "Access key", "password": "Secret key", "schema": "Scheme"},
        "placeholders": {"host": "s3.example.org", "port": "443", "schema": "https"},
    },
    "conn-fields": {
        "url": {
            "label": "Bucket",
            "description": "s3://bucket/prefix that is opened when no other URL is asked for.",
            "schema": {"type": ["string", "null"]},
        },
        "region": {
            "label": "Region",
            "description": "us-east-1 for most stores that are not Amazon's.",
            "schema": {"type": ["string", "null"]},
        },
        "addressing": {
            "label": "Addressing",
            "description": "path: endpoint/bucket/key; virtual: bucket.endpoint/key.",
            "schema": {"type": ["string", "null"], "enum": ["path", "virtual"]},
        },
    },
}

_FTS: dict[str, Any] = {
    "connection-type": "fts",
    "hook-class-name": "hooks.fts.FtsHook",
    "hook-name": "FTS (file transfer service)",
    "ui-field-behaviour": {
        "hidden-fields": ["login"],
        "relabeling": {"password": "Bearer token", "schema": "Scheme"},
        "placeholders": {"host": "fts3.example.org", "port": "8446", "schema": "https"},
    },
    "conn-fields": {
        "certificate": {
            "label": "Certificate file",
            "description": "Path, on the worker, of a proxy or certificate in PEM; used when no token is given.",
            "schema": {"type": ["string", "null"]},
        },
        "key": {
            "label": "Key file",
            "description": "Path of the certificate's key; leave empty for a proxy, which carries its own.",
            "schema": {"type": ["string", "null"]},
        },
        "authorities": _AUTHORITIES,
    },
}
