"""The publisher that production makes for a repository whose settings say only what they must."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from publishing.repositories import FQRN

from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.repository import Repository
from include.gateway.client.client import GatewayClient
from include.publishers.base import Publisher
from include.settings.model import RepositorySettings
from include.site.site import native_publisher
from include.storage.store import Store


def production_publisher(store: Store, gateway: GatewayClient, public_key: Path) -> Publisher:
    """Of the benchmarks' repository; ``gateway`` stays the caller's, who closes it."""
    settings = RepositorySettings(
        name=FQRN, store="bench", public_url="http://127.0.0.1", public_key=public_key, gateway="bench"
    )
    keys = [public_key.read_bytes()]

    def read_manifest() -> Manifest:
        return Repository.open(store, fqrn=FQRN, public_keys=keys, now=datetime.now(UTC)).manifest

    return native_publisher(settings, store, gateway, read_manifest)
