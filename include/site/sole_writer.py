"""Whether all that publish into a repository go through Nightshift's gateway, as its collector relies on.

A stock publisher that writes beside it knows no lists of condemned objects: it takes an object for stored that a
collection is about to delete. Every sign of one that can be seen is looked for; none is taken for granted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from include.cvmfs.collect.record import read_record
from include.cvmfs.collect.switching import SwitchingSide
from include.cvmfs.errors import CollectionRefused, CvmfsError, ReflogError
from include.cvmfs.format.database import RefType
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.cvmfs.format.keys import Certificate, Signer, fingerprint, parse_certificate
from include.cvmfs.format.objects import load
from include.errors import NightshiftError
from include.gateway.service.commits import ownership
from include.settings.model import RepositorySettings
from include.site.site import Site
from include.storage.errors import NotFound
from include.storage.store import Store

STOCK_CONFIG = Path("/etc/cvmfs/repositories.d")
_RENEWED = timedelta(minutes=1)

log = logging.getLogger(__name__)


def require_sole_writer(
    site: Site, fqrn: str, side: SwitchingSide, signer: Signer, *, accept: str = "", config: Path = STOCK_CONFIG
) -> list[str]:
    """What a report is to say of it. ``accept``: the reason to go on although others may write.

    ``config``: where the stock tools of this machine have their repositories. Raises CollectionRefused naming every
    sign of another writer, and StoreError.
    """
    settings = site.settings.repository(fqrn)
    found = [
        *_by_stock_tools(settings, config),
        *_by_another_gateway(site, settings, side.store),
        *_by_another_key(side, signer),
    ]
    if not found:
        return []
    what = f"others may publish into it without Nightshift's gateway: {'; '.join(found)}"
    if accept:
        return [f"{what}; accepted: {accept}"]
    hint = "let all publishers use the gateway, or run it with --accept REASON while no other publisher runs"
    raise CollectionRefused(fqrn, what, hint=hint)


def _by_stock_tools(settings: RepositorySettings, config: Path) -> Iterator[str]:
    if settings.reflog_checksum is not None:
        yield (
            f"cvmfs_server of this machine works on it, since `reflog_checksum` is set to {settings.reflog_checksum}"
            " (remove that once cvmfs_server does not have the repository any more)"
        )
    file = config / settings.fqrn / "server.conf"
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    values = dict(line.strip().partition("=")[::2] for line in lines if "=" in line)
    upstream = values.get("CVMFS_UPSTREAM_STORAGE", "").strip("'\"")
    if values.get("CVMFS_REPOSITORY_TYPE", "stratum0").strip("'\"") == "stratum0" and not upstream.startswith("gw,"):
        yield f"cvmfs_server of this machine may write to its storage ({file}); remove it with: cvmfs_server rmfs -p"


def _by_another_gateway(site: Site, settings: RepositorySettings, store: Store) -> Iterator[str]:
    try:
        with site.gateway(settings.fqrn) as client:
            if not client.judges_bases():
                yield f"{client.url} is a stock gateway, in spite of `gateway_kind`"
    except NightshiftError as fault:  # behind a gateway that does not answer, nothing is published
        log.info("%s: the gateway was not asked for its kind: %s", settings.fqrn, fault)
    there = store.head(ownership.KEY)
    if there is None or datetime.now(UTC) - there.modified > _RENEWED:
        return
    try:
        owner = ownership.GatewayOwner.parse(store.get(ownership.KEY))
    except NotFound:
        return
    yield f"a gateway that does without conditional writes owns it ({owner or 'unknown'}); let it probe the store again"


def _by_another_key(side: SwitchingSide, signer: Signer) -> Iterator[str]:
    """The certificate of the manifest, and those that came into the reflog since the last collection."""
    own, store = _print(signer.certificate), side.store
    try:
        named = side.read()
    except ReflogError:
        return  # the collection rebuilds it, and reports it
    last = read_record(store)[0].last
    suspects = {named.manifest.certificate}
    if last is not None:
        since = int(last.ended.timestamp())
        suspects |= {ref.hash for ref in named.refs if ref.type is RefType.CERTIFICATE and ref.timestamp > since}
    for name in suspects:
        if name is None:
            continue
        try:
            other = _print(parse_certificate(load(store, name.with_suffix(RefType.CERTIFICATE.suffix))))
        except CvmfsError as fault:
            yield f"a manifest was signed with certificate {name}, which cannot be read ({fault})"
            continue
        if other != own:
            yield f"a manifest was signed with certificate {name}, which is not that of this machine's key"


def _print(certificate: Certificate) -> ObjectHash:
    return fingerprint(certificate, Algorithm.SHA1).hash
