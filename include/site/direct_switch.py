"""Replacing a manifest beside the gateway: for tags, rollbacks and repairs, which no lease protocol knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from include.cvmfs.errors import KeyFileError
from include.cvmfs.format.keys import KeyFile, Signer, load_signer
from include.publishers.capabilities import Operation, require
from include.settings.traits import recorded_traits
from include.site.site import Site
from include.storage.store import Store


@contextlib.contextmanager
def switching(
    site: Site, fqrn: str, operation: Operation, *, holder: str, leased: bool | None = None
) -> Iterator[tuple[Store, Signer]]:
    """The store and signing key of a repository, for callers that replace its manifest beside the gateway.

    Where the store does not keep conditions on a replacement, everything is leased meanwhile, as ``holder``: then no
    commit is made; ``leased`` decides it, whatever the store keeps. Raises RepositoryFrozen, KeyFileError where the key
    is not, NotSupported behind a gateway that does not bear it, GatewayError where that cannot be found out, and what
    leasing raises.
    """
    site.require_thawed(fqrn)
    store, signer = require_switchable(site, fqrn, operation)
    traits = recorded_traits(site.ledger, site.settings.store(site.settings.repository(fqrn).store))
    if leased is None:
        leased = not (store.is_local or (traits is not None and traits.replace))
    if not leased:
        yield store, signer
        return
    with site.gateway(fqrn).lease(fqrn, "", hostname=holder):
        yield store, signer


def require_switchable(site: Site, fqrn: str, operation: Operation) -> tuple[Store, Signer]:
    """The store and signing key, if this machine may replace the manifest; whatever is frozen or leased.

    Raises KeyFileError, NotSupported and GatewayError as :func:`switching`.
    """
    found = _signing(site, fqrn)
    require(site.way_of_switching(fqrn), operation, fqrn=fqrn, path="")
    return found


def _signing(site: Site, fqrn: str) -> tuple[Store, Signer]:
    folder = site.settings.gateway.keys
    path = KeyFile.REPOSITORY.path(folder, site.settings.repository(fqrn).fqrn)
    if not path.exists():
        cure = "run this where the gateway is, or import the keys there: nightshift repo import-keys"
        raise KeyFileError(str(path), f"the signing key of {fqrn} is not on this machine; {cure}")
    checksum = site.settings.repository(fqrn).reflog_checksum
    return site.manifest_store(fqrn), load_signer(folder, fqrn, reflog_checksum=checksum)
