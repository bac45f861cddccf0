"""Founds what a night needs and is not there yet: buckets, keys and the repository itself."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from include.cvmfs.create import create_repository
from include.cvmfs.hashes import Algorithm
from include.cvmfs.keys import (
    GatewayKey,
    KeyFile,
    generate_master,
    generate_repository_key,
    load_gateway_key,
    load_master,
    load_signer,
    save_gateway_key,
    save_master,
    save_signer,
)
from include.lab.errors import NightFailed
from include.publishers.connect import Connections
from include.settings.model import Repository, Site, Store
from include.settings.secrets import Secrets
from include.settings.traits import record_traits, recorded_traits
from include.storage.buckets import allow_public_read, ensure_bucket
from include.storage.open import Credentials, StoreOptions
from include.storage.probe import probe

MANIFEST = ".cvmfspublished"

Say = Callable[[str], None]


def found_stores(site: Site, secrets: Secrets, names: set[str], *, say: Say) -> None:
    """Makes the buckets of these stores where they are absent."""
    for name in sorted(names):
        store = site.store(name)
        if store.url.startswith("s3://") and ensure_bucket(store.url, _credentials(store, secrets), _options(store)):
            say(f"made the bucket of store {name}, {store.url}")


def try_stores(site: Site, connections: Connections, names: set[str], *, say: Say) -> None:
    """Sees what each of these stores keeps under racing writers, once, and records it for every client of it."""
    for name in sorted(names):
        store = site.store(name)
        if recorded_traits(connections.ledger, store) is not None:
            continue
        inside = next((one for one in site.repositories.values() if one.store == name), None)
        opened = connections.store(name)
        seen = probe(opened.child(inside.fqrn), public_url=inside.public_url) if inside else probe(opened)
        record_traits(connections.ledger, store, seen, now=datetime.now(UTC))
        if not seen.replace:
            say(f"store {name} ignores conditional replace: only one gateway may write manifests there")


def found_repository(site: Site, secrets: Secrets, connections: Connections, fqrn: str, *, say: Say) -> bool:
    """Has the keys and the repository; returns whether the repository had to be created.

    Raises:
        NightFailed: the repository is there and its keys are not, or the keys belong to another gateway connection.
    """
    repository, folder = site.repository(fqrn), site.gateway.keys
    _own_gateway_key(repository, secrets, folder)
    store = connections.repository_store(fqrn)
    keys_there = KeyFile.MASTER.path(folder, fqrn).exists()
    if store.exists(MANIFEST):
        if not KeyFile.CERTIFICATE.path(folder, fqrn).exists():
            raise NightFailed(
                f"{fqrn} is in {store.url}, but its keys are not in {folder}: restore them, or empty the store"
            )
        return False
    if keys_there:  # of a creation that died half way
        master, signer = load_master(folder, fqrn), load_signer(folder, fqrn)
    else:
        say(f"making the keys of {fqrn} in {folder}")
        master, signer = generate_master(), generate_repository_key(fqrn, datetime.now(UTC))
        save_signer(folder, fqrn, signer)
        save_master(folder, fqrn, master)
    _publish_rules(site, secrets, repository)
    create_repository(
        store,
        fqrn,
        master=master,
        signer=signer,
        now=datetime.now(UTC),
        algorithm=Algorithm.named(repository.hash.value),
        garbage_collectable=repository.garbage_collectable,
    )
    say(f"created {fqrn} in {store.url}")
    return True


def _own_gateway_key(repository: Repository, secrets: Secrets, folder: Path) -> None:
    """The key file that the embedded gateway reads holds what the publishers' connection says."""
    connection = secrets.get(repository.gateway)
    wanted = GatewayKey(connection.login or "", connection.password or "")
    path = KeyFile.GATEWAY.path(folder, repository.fqrn)
    if not path.exists():
        save_gateway_key(folder, repository.fqrn, wanted)
    elif load_gateway_key(path) != wanted:
        raise NightFailed(
            f"{path} and the connection {repository.gateway} hold different keys: "
            f"remove the file if the connection is right, or restore secrets.env"
        )


def _publish_rules(site: Site, secrets: Secrets, repository: Repository) -> None:
    """Lets everybody read the repository, and nothing beside it."""
    store = site.store(repository.store)
    if store.url.startswith("s3://"):
        prefix = "/".join(filter(None, (store.url.removeprefix("s3://").partition("/")[2], repository.fqrn)))
        allow_public_read(store.url, _credentials(store, secrets), _options(store), prefix)


def _credentials(store: Store, secrets: Secrets) -> Credentials:
    found = secrets.get(store.connection or "")
    return Credentials(found.login or "", found.password or "")


def _options(store: Store) -> StoreOptions:
    return StoreOptions(
        endpoint=store.endpoint,
        region=store.region,
        addressing=store.addressing,
        timeout_s=store.timeout_s,
        retries=store.retries,
    )
