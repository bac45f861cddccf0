"""Repairs of what a crash or an accident leaves behind and a commit cannot heal by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from include.cvmfs.commit.commit import (
    MANIFEST_KEY,
    REFLOG_KEY,
    Head,
    load_history,
    named_by,
    publish,
    read_head,
    until_first,
)
from include.cvmfs.commit.metadata_objects import Records, keep_checksum, store_compressed
from include.cvmfs.errors import (
    CatalogError,
    CvmfsError,
    FormatError,
    HeadDamaged,
    ManifestConflict,
    ObjectError,
    ObjectMissing,
    ReflogError,
    RepositoryError,
)
from include.cvmfs.format import whitelist as whitelists
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import TRUNK, History, Reflog, RefType, Tag
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, META, ObjectHash
from include.cvmfs.format.keys import ManifestSigner, parse_public_keys
from include.cvmfs.format.layout import MetaInfo, skeleton
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import load
from include.cvmfs.format.whitelist import Whitelist
from include.cvmfs.revision.repository import ManifestVerifier, load_certificate
from include.storage.errors import Conflict, NotFound
from include.storage.store import Store, Version

T = TypeVar("T")
_UNREADABLE = (CvmfsError, NotFound)


@dataclass(frozen=True, slots=True)
class FileFault:
    """A single file of a repository that is lost or cannot be read. ``cure``: the command, in words.

    ``option``: `repair` alone mends it, without a loss. ``first``: nothing else can be mended before it.
    """

    file: str
    problem: str
    cure: str
    option: bool = False
    first: bool = False

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}; cure: {self.cure}"


def examine(store: Store, fqrn: str, public_keys: Sequence[bytes] = (), *, now: datetime) -> list[FileFault]:
    """Read each single file that a repository cannot be without, and name what is wrong and the cure. Changes nothing.

    ``public_keys``: PEM texts of master keys; without any, the signature of the whitelist is not verified.
    Raises StoreError where the store does not answer.
    """
    repair = f"nightshift repo repair {fqrn}"
    faults = []

    def look(file: str, cure: str, read: Callable[[], object], *, option: bool = False, first: bool = False) -> None:
        try:
            read()
        except _UNREADABLE as fault:
            lost = isinstance(fault, (NotFound, ObjectMissing))
            faults.append(FileFault(file, "is lost" if lost else f"cannot be used ({fault})", cure, option, first))

    look(
        f"whitelist {whitelists.KEY}",
        f"nightshift repo resign {fqrn}",
        lambda: _require_whitelist(store, fqrn, public_keys, now),
    )
    try:
        manifest = Manifest.parse(store.get(MANIFEST_KEY)).manifest
    except _UNREADABLE as fault:
        problem = "is lost" if isinstance(fault, NotFound) else f"cannot be used ({fault})"
        faults.append(FileFault(f"manifest {MANIFEST_KEY}", problem, f"{repair} --manifest", first=True))
        return faults
    look("certificate", f"{repair} --metadata", lambda: load_certificate(store, manifest), option=True)
    if (meta := manifest.meta) is not None:
        look("meta info", f"{repair} --metadata", lambda: MetaInfo.parse(load(store, meta)), option=True)
    if (history := manifest.history) is not None:
        look("tags", f"{repair} --empty-history", lambda: History.load(load(store, history)), first=True)
    look(f"reflog {REFLOG_KEY}", f"{repair} --reflog", lambda: _require_reflog(store, manifest), option=True)
    look(
        f"root catalog of revision {manifest.revision}", f"nightshift repo rollback {fqrn}",
        lambda: CatalogCache(store).open_nested("", manifest.root).close(), first=True,
    )  # fmt: skip
    first = [fault for fault in faults if fault.first]
    if len(first) > 1:  # without tags there is no way back, and without the root no new tags
        cure = "copy the objects from a replica; see docs/repo.md, check"
        first = [replace(fault, cure=cure) for fault in first]
    return [*first, *(fault for fault in faults if not fault.first)]


def _require_whitelist(store: Store, fqrn: str, public_keys: Sequence[bytes], now: datetime) -> None:
    signed = Whitelist.parse(store.get(whitelists.KEY))
    if keys := [key for pem in public_keys for key in parse_public_keys(pem)]:
        whitelists.verify(signed, keys, fqrn=fqrn, now=now)
    elif not signed.is_intact:
        raise FormatError("whitelist", "its lines do not have the hash it states")


def _read_reflog(store: Store) -> Reflog:
    reflog = Reflog.load(store.get(REFLOG_KEY))
    reflog.refs()
    return reflog


def _require_reflog(store: Store, manifest: Manifest) -> None:
    reflog = _read_reflog(store)
    missing = [name for name, _ in named_by(manifest) if not reflog.contains(name)]
    if missing:
        raise ReflogError(manifest.fqrn, f"lacks {missing[0]}, which the manifest names")


def empty_history(
    store: Store, fqrn: str, *, signer: ManifestSigner, now: int, voucher: ManifestVerifier | None = None
) -> tuple[Head, bool]:
    """Let a new history with the current revision as its only tag take the place of one that cannot be read.

    Certificate, meta info and reflog are mended with it. No revision is made; names of earlier revisions are gone, so
    that a collection may take these. Returns the new head and whether the history had to be replaced. ``now``: Unix s.
    Raises ManifestConflict, StoreError.
    """

    def mend(head: Head) -> tuple[Head, bool]:
        try:
            load_history(store, head.manifest)
        except HeadDamaged:
            draft, _ = _with_metadata(store, head.manifest, signer)
            history = History.create(fqrn)
            history.rotate_trunk(Tag("", draft.root, draft.revision, draft.timestamp, draft.root_size, ""))
            stored = store_compressed(store, history.to_bytes(), draft.root, HISTORY, again=True)
            _rebuild_reflog(store, head.manifest, now)
            return publish(store, head, replace(draft, history=stored.hash), signer=signer, now=now), True
        return head, False

    return _until_first(store, fqrn, signer, voucher, mend)


def rebuild_manifest(
    store: Store, fqrn: str, *, signer: ManifestSigner, now: int, garbage_collectable: bool, dry_run: bool = False
) -> Manifest:
    """Sign a manifest for the newest revision that the reflog and its tag databases know, where none can be read.

    That of a commit that died right before its switch counts: it is whole. The reflog is not signed; the caller shows
    the revision before it is trusted. ``now``: Unix s. Raises RepositoryError where a manifest is there, or where
    neither can be read; what storing raises.
    """
    version: Version | None = None
    try:
        data, version = store.get_versioned(MANIFEST_KEY)
        Manifest.parse(data)
    except (NotFound, FormatError):
        pass
    else:
        raise RepositoryError(
            fqrn, f"{MANIFEST_KEY} can be read; see what else is wrong: nightshift repo repair {fqrn}"
        )
    try:
        reflog = _read_reflog(store)
    except _UNREADABLE as fault:
        cure = f"copy {MANIFEST_KEY} from a replica, or restore a backup of it"
        raise RepositoryError(fqrn, f"neither its manifest nor its reflog can be read ({fault}); {cure}") from None
    history, trunk = _newest_trunk(store, fqrn, reflog)
    catalog = CatalogCache(store).open_nested("", trunk.hash.with_suffix(CATALOG))
    ttl = catalog.ttl
    catalog.close()
    draft = Manifest(
        root=trunk.hash.with_suffix(CATALOG), root_size=trunk.size, revision=trunk.revision, fqrn=fqrn, ttl=ttl,
        garbage_collectable=garbage_collectable, timestamp=max(now, trunk.timestamp), history=history,
        meta=_newest_meta(store, reflog),
    )  # fmt: skip
    if dry_run:
        return draft
    if draft.meta is None:
        draft = replace(draft, meta=store_compressed(store, skeleton(), draft.root, META, again=True).hash)
    store_compressed(store, signer.certificate_pem, draft.root, CERTIFICATE, again=True)
    return publish(store, Head(draft, version), draft, signer=signer, now=now).manifest


def _newest_trunk(store: Store, fqrn: str, reflog: Reflog) -> tuple[ObjectHash, Tag]:
    """The newest history whose current revision can be read, and the tag of that."""
    trunks: list[tuple[int, int, ObjectHash, Tag]] = []
    followed: set[ObjectHash] = set()
    for ref in reflog.refs(RefType.HISTORY):
        with suppress(CvmfsError):
            history = History.load(load(store, ref.hash))
            trunk = history.tag(TRUNK)
            if (before := history.previous_revision) is not None:
                followed.add(before)
            if trunk is not None:
                CatalogCache(store).open_nested("", trunk.hash.with_suffix(CATALOG)).close()
                trunks.append((trunk.revision, ref.timestamp, ref.hash, trunk))
    newest = [entry for entry in trunks if entry[2] not in followed] or trunks
    if not newest:
        cure = f"copy {MANIFEST_KEY} from a replica, or restore a backup of it"
        raise RepositoryError(fqrn, f"its reflog leads to no revision with tags that can be read; {cure}")
    _, _, name, trunk = max(newest, key=lambda entry: entry[:2])
    return name, trunk


def _newest_meta(store: Store, reflog: Reflog) -> ObjectHash | None:
    for ref in reflog.refs(RefType.META):
        with suppress(CvmfsError):
            MetaInfo.parse(load(store, ref.hash))
            return ref.hash
    return None


def repair_reflog(
    store: Store, fqrn: str, *, signer: ManifestSigner, now: int, voucher: ManifestVerifier | None = None
) -> tuple[Head, int]:
    """Rebuild the reflog from what the manifest leads to, and sign a manifest that names it; no revision is made.

    What a readable reflog holds already is kept, with its times; new rows get ``now`` (Unix s). Returns the new head
    and how many references were added. A commit beside it loses nothing: the repair then begins again on its result.
    Raises ManifestConflict when others keep being faster.
    """

    def rebuild(head: Head) -> tuple[Head, int]:
        added = _rebuild_reflog(store, head.manifest, now)
        return publish(store, head, head.manifest, signer=signer, now=now), added

    return _until_first(store, fqrn, signer, voucher, rebuild)


def _rebuild_reflog(store: Store, manifest: Manifest, now: int) -> int:
    reflog, count, version = _what_is_left(store, manifest.fqrn)
    for name, kind in _reachable(store, manifest):
        if not reflog.contains(name):
            reflog.add(name, kind, now)
    try:
        store.replace(REFLOG_KEY, reflog.to_bytes(), expected=version)
    except Conflict:
        raise ManifestConflict(manifest.fqrn, "another writer is replacing the reflog; read it again") from None
    return len(reflog) - count


def repair_metadata(
    store: Store, fqrn: str, *, signer: ManifestSigner, now: int, voucher: ManifestVerifier | None = None
) -> tuple[Head, bool]:
    """Store the certificate again, and an empty meta info where the repository's is lost; no revision is made.

    Returns the new head and whether the meta info was lost. ``now``: Unix s. Raises ManifestConflict, StoreError.
    """

    def mend(head: Head) -> tuple[Head, bool]:
        draft, lost = _with_metadata(store, head.manifest, signer)
        return publish(store, head, draft, signer=signer, now=now), lost

    return _until_first(store, fqrn, signer, voucher, mend)


def _with_metadata(store: Store, draft: Manifest, signer: ManifestSigner) -> tuple[Manifest, bool]:
    """The manifest with certificate and meta info stored; whether the latter was lost, and is empty now."""
    store_compressed(store, signer.certificate_pem, draft.root, CERTIFICATE, again=True)
    if draft.meta is None:
        return draft, False
    try:
        MetaInfo.parse(load(store, draft.meta))
    except (ObjectError, FormatError):
        return replace(draft, meta=store_compressed(store, skeleton(), draft.root, META, again=True).hash), True
    return draft, False


def adopt_reflog(
    store: Store, fqrn: str, *, signer: ManifestSigner, now: int, voucher: ManifestVerifier | None = None
) -> bool:
    """Sign a manifest that names the reflog which a crash left ahead of it; whether there was one. No revision is made.

    ``now``: Unix s. Raises ReflogError for one that lacks what the manifest names, ManifestConflict, StoreError.
    """

    def adopt(head: Head) -> bool:
        reflog = Records().take_reflog(store, head.manifest)
        if reflog.is_of(head.manifest):
            if signer.reflog_checksum is not None:  # a crash may have come between the manifest and this file
                keep_checksum(signer.reflog_checksum, reflog.hash)
            return False
        publish(store, head, head.manifest, signer=signer, now=now)
        return True

    return _until_first(store, fqrn, signer, voucher, adopt)


def _until_first(
    store: Store, fqrn: str, signer: ManifestSigner, voucher: ManifestVerifier | None, attempt: Callable[[Head], T]
) -> T:
    """Try on the current head until no other writer comes first: one who lost has left a reflog ahead of the manifest.

    Raises the last ManifestConflict when others keep being faster.
    """
    voucher = voucher or ManifestVerifier(signer)
    return until_first(lambda: attempt(read_head(store, fqrn, voucher)))


def _what_is_left(store: Store, fqrn: str) -> tuple[Reflog, int, Version | None]:
    """The reflog to go on from, how many references it has, and the version that it replaces."""
    try:
        data, version = store.get_versioned(REFLOG_KEY)
    except NotFound:
        return Reflog.create(fqrn), 0, None
    try:
        reflog = Reflog.load(data)
        reflog.refs()
    except FormatError:
        return Reflog.create(fqrn), 0, version
    return reflog, len(reflog), version


def _reachable(store: Store, manifest: Manifest) -> list[tuple[ObjectHash, RefType]]:
    """The manifest's own references, its line of earlier revisions and histories, and every tag."""
    references = dict(named_by(manifest))
    catalogs = CatalogCache(store)
    roots = [manifest.root]
    with suppress(HeadDamaged):
        roots += [tag.hash for tag in load_history(store, manifest).tags()]
    while roots:
        root: ObjectHash | None = roots.pop().with_suffix(CATALOG)
        while root is not None and (root not in references or root == manifest.root):
            try:
                previous = catalogs.open_nested("", root).previous_revision
            except (ObjectError, CatalogError, FormatError):
                break  # collected before, or lost
            references[root] = RefType.CATALOG
            root = previous if previous != manifest.root else None
    history = manifest.history
    while history is not None:
        try:
            earlier = History.load(load(store, history)).previous_revision
        except (ObjectError, FormatError):
            break
        references[history] = RefType.HISTORY
        history = earlier if earlier not in references else None
    return list(references.items())
