"""Repositories before a night: publicly readable, the same everywhere, signed long enough, not frozen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from include.care.preflight.findings import Finding, Severity
from include.care.preflight.stores import opened
from include.cvmfs.commit.resign import expiry_warning
from include.cvmfs.coordination.freeze import look
from include.cvmfs.revision.repository import Repository
from include.site.site import Site

FATAL = timedelta(days=1)
"""A whitelist that ends earlier than this may end within the night."""


def look_at_repository(site: Site, fqrn: str) -> Iterator[Finding]:
    """What readers see by the public URL and what is in the store, both verified with the public key alone."""
    settings, now = site.settings.repository(fqrn), datetime.now(UTC)
    if not settings.public_key.is_file():
        cure = f"Create the repository (nightshift repo create {fqrn}), or copy its .pub file there."
        yield Finding("repository", fqrn, Severity.ERROR, f"there is no public key {settings.public_key}", cure)
        return
    readers = site.repository(fqrn)
    keys = [settings.public_key.read_bytes()]
    head = Repository.open(opened(site, settings.store).child(fqrn), fqrn=fqrn, public_keys=keys, now=now)
    theirs, ours = readers.manifest.revision, head.manifest.revision
    if theirs < ours:
        cure = "Wait a minute and check again; if it stays, check the caches in front of the store."
        seen = f"readers see revision {theirs}, the store has {ours}"
        yield Finding("repository", fqrn, Severity.WARNING, seen, cure)
    elif theirs > ours or readers.manifest.root != head.manifest.root:
        cure = "Let `store` and `public_url` name the same repository."
        seen = f"readers see revision {theirs} of another repository than the store's {ours}"
        yield Finding("repository", fqrn, Severity.ERROR, seen, cure)
    else:
        yield Finding("repository", fqrn, Severity.OK, f"revision {ours}, by the public URL and in the store")
    whitelist = readers.trusted.whitelist
    if whitelist is None:
        yield Finding("whitelist", fqrn, Severity.ERROR, "not verified", "Give the public key in the configuration.")
        return
    cure = f"Where the master key is: nightshift repo resign {fqrn}"
    warning = expiry_warning(whitelist, now, soon=timedelta(days=settings.care.whitelist_days))
    days = (whitelist.expires - now) / timedelta(days=1)
    if warning is None:
        yield Finding("whitelist", fqrn, Severity.OK, f"lasts {days:.1f} days more")
    else:
        severity = Severity.ERROR if whitelist.expires - now < FATAL else Severity.WARNING
        yield Finding("whitelist", fqrn, severity, f"ends in {days:.1f} days", cure)


def freeze(site: Site, fqrn: str) -> Iterator[Finding]:
    """Whether the repository is frozen: then a night waits."""
    found = look(opened(site, site.settings.repository(fqrn).store).child(fqrn), datetime.now(UTC))
    if found is None:
        yield Finding("freeze", fqrn, Severity.OK, "not frozen")
    else:
        yield Finding("freeze", fqrn, Severity.WARNING, str(found), f"If that is over: nightshift thaw {fqrn}")
