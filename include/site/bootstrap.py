"""Founds what publishing needs and is not there yet: buckets, keys and the repository itself."""

from __future__ import annotations

import secrets as random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY
from include.cvmfs.commit.create import create_repository
from include.cvmfs.errors import FormatError
from include.cvmfs.format import keys
from include.cvmfs.format.database import Reflog, RefType
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.keys import GatewayKey, KeyFile, Signer
from include.publishers.errors import PublisherError
from include.settings.model import RepositorySettings
from include.settings.traits import record_traits, recorded_traits
from include.site.site import Site, credentials_of, options_of, try_store
from include.storage.buckets import allow_public_read, ensure_bucket
from include.storage.errors import NotFound
from include.storage.kinds import S3, kind_of
from include.storage.open import split_s3_url
from include.storage.store import Store

Say = Callable[[str], None]


def found_stores(site: Site, names: set[str], *, say: Say) -> None:
    """Make the buckets of these stores where they are absent."""
    for name in sorted(names):
        store = site.settings.store(name)
        credentials = credentials_of(store, site.secrets)
        if credentials and kind_of(store.url) is S3 and ensure_bucket(store.url, credentials, options_of(store)):
            say(f"made the bucket of store {name}, {store.url}")


def try_stores(site: Site, names: set[str], *, say: Say) -> None:
    """See what each of these stores keeps under racing writers, once, and record it for every client of it."""
    settings = site.settings
    for name in sorted(names):
        store = settings.store(name)
        if recorded_traits(site.ledger, store) is not None:
            continue
        traits = try_store(settings, site.secrets, name)
        if traits is None:
            continue
        record_traits(site.ledger, store, traits, now=datetime.now(UTC))
        if not traits.replace:
            say(f"store {name} ignores conditional replace: only one gateway may write manifests there")


def found_repository(site: Site, fqrn: str, *, say: Say, mtime_ns: bool = False) -> bool:
    """Have the keys and the repository; returns whether the repository had to be created.

    ``mtime_ns``: one that is created keeps nanoseconds, as it also does if its trees are to be prepared with them.

    Nothing is written before the store has answered, and taken what is written to it. Raises PublisherError if it is
    there and its keys are not, if they belong to another gateway connection, or if its store can only be read;
    StoreError, KeyFileError, MissingConnection, BadConnection.
    """
    repository, folder = site.settings.repository(fqrn), site.settings.gateway.keys
    if repository.server is not None and repository.server.behind != "nightshift":
        cure = f"create it there (cvmfs_server mkfs on {repository.server.host}, or on the gateway's machine)"
        raise PublisherError(fqrn, f"its keys and its storage belong to its publisher node; {cure}")
    store = site.gateway_store(fqrn)
    if not store.writable:
        cure = "name a store with s3:// or file:// in its settings"
        where = site.settings.store(repository.store).url
        raise PublisherError(fqrn, f"store {repository.store}, {where}, can only be read; {cure}")
    exists = store.exists(MANIFEST_KEY)
    if not exists:
        _require_never_there(store, fqrn)
    key = _gateway_key(site, repository, folder)
    if exists and not KeyFile.CERTIFICATE.path(folder, fqrn).exists():
        raise PublisherError(
            fqrn, f"it is in {store.url}, but its keys are not in {folder}: restore them, or empty the store"
        )
    if not exists:
        _publish_rules(site, repository)
        _require_taken(store)
    if key is not None:
        keys.save_gateway_key(folder, fqrn, key)
    if exists:
        return False
    master, signer = _keys(folder, fqrn, say)
    create_repository(
        store,
        fqrn,
        master=master,
        signer=signer,
        now=datetime.now(UTC),
        algorithm=Algorithm.named(repository.hash.value),
        garbage_collectable=repository.garbage_collectable,
        mtime_ns=mtime_ns or repository.prepare.mtime_ns,
    )
    say(f"created {fqrn} in {store.url}")
    return True


def _require_never_there(store: Store, fqrn: str) -> None:
    """Raise PublisherError for a repository that lost its manifest: another one must not be made over it.

    A creation that died may have left a reflog with the first revision.
    """
    try:
        revisions = Reflog.load(store.get(REFLOG_KEY)).refs(RefType.CATALOG)
    except NotFound:
        return
    except FormatError:
        revisions = []
    if len(revisions) != 1:
        cure = f"nightshift repo repair {fqrn} --manifest, or empty the store"
        raise PublisherError(fqrn, f"{store.url} holds a repository that lost its {MANIFEST_KEY}; run: {cure}")


def _keys(folder: Path, fqrn: str, say: Say) -> tuple[RSAPrivateKey, Signer]:
    """The repository's keys; of those that a creation left that died, the missing ones are made."""
    kinds = (KeyFile.REPOSITORY, KeyFile.CERTIFICATE, KeyFile.MASTER, KeyFile.PUBLIC)
    with keys.locked_keys(folder):
        key, certificate, master, public = (kind.path(folder, fqrn).exists() for kind in kinds)
        if not (key and certificate and master and public):
            say(f"making the keys of {fqrn} in {folder}")
        if key and not certificate:
            pair = keys.generate_repository_key(
                fqrn, datetime.now(UTC), keys.load_private_key(kinds[0].path(folder, fqrn))
            )
            keys.save_key_file(folder, fqrn, KeyFile.CERTIFICATE, pair.certificate_pem)
        elif not key:
            keys.save_signer(folder, fqrn, keys.generate_repository_key(fqrn, datetime.now(UTC)))
        if master and not public:
            text = keys.format_public_key(keys.load_master(folder, fqrn).public_key())
            keys.save_key_file(folder, fqrn, KeyFile.PUBLIC, text)
        elif not master:
            keys.save_master(folder, fqrn, keys.generate_master())
        return keys.load_master(folder, fqrn), keys.load_signer(folder, fqrn)


def _gateway_key(site: Site, repository: RepositorySettings, folder: Path) -> GatewayKey | None:
    """The key of the publishers' connection, if it is yet to be written for the embedded gateway."""
    connection = site.secrets.get(repository.gateway)
    key = GatewayKey(connection.login or "", connection.password or "")
    path = KeyFile.GATEWAY.path(folder, repository.fqrn)
    if not path.exists():
        return key
    if keys.load_gateway_key(path) != key:
        raise PublisherError(
            repository.fqrn,
            f"{path} and the connection {repository.gateway} hold different keys: remove the file if the connection is "
            "right, or correct the connection (that of the embedded services is made from their secrets.env)",
        )
    return None


def _publish_rules(site: Site, repository: RepositorySettings) -> None:
    """Make the repository, and nothing beside it, publicly readable."""
    store = site.settings.store(repository.store)
    if store.gateway_connection is not None:
        return  # the bucket's owner has set the policy by roles, and only the owner may
    credentials = credentials_of(store, site.secrets)
    if credentials and kind_of(store.url) is S3:
        prefix = "/".join(filter(None, (split_s3_url(store.url)[1], repository.fqrn)))
        allow_public_read(store.url, credentials, options_of(store), prefix)


def _require_taken(store: Store) -> None:
    """Raise what the store raises for a small object; a folder that cannot be made, say, is not seen by reading."""
    trial = f".nightshift-trial-{random.token_hex(8)}"
    store.put(trial, b"")
    store.delete([trial])
