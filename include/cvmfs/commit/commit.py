"""The switch of a repository to a new revision, written once for all who make one.

Order: catalogs, history, reflog, manifest (docs/formats.md, manifest). All but the last are invisible to readers; the
manifest is replaced only if it still is the one that the revision was derived from. A crash anywhere leaves the old
revision or the new one. A reflog that is ahead of the manifest, left by such a crash, is taken over by the next commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from include.cvmfs.commit.edit import NewRoot
from include.cvmfs.commit.group import Change, Group, NewTag
from include.cvmfs.commit.metadata_objects import (
    REFLOG_KEY,
    Records,
    Stored,
    StoredReflog,
    keep_checksum,
    require_stored,
    store_all,
    store_alternatives,
    store_compressed,
)
from include.cvmfs.errors import (
    CvmfsError,
    FormatError,
    HeadDamaged,
    ManifestConflict,
    ObjectError,
    ReflogError,
    RepositoryError,
)
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import History, Reflog, RefType, Tag
from include.cvmfs.format.hashes import CERTIFICATE, HISTORY, ObjectHash, hash_bytes
from include.cvmfs.format.keys import ManifestSigner
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.needed_objects import Lineage
from include.cvmfs.revision.repository import ManifestVerifier
from include.errors import NightshiftError
from include.storage.errors import Conflict, NotFound, StoreError
from include.storage.store import Store, Version

__all__ = ["MANIFEST_KEY", "REFLOG_KEY", "Change", "Head", "NewTag", "SwitchStep", "store_all"]

T = TypeVar("T")

MANIFEST_KEY = ".cvmfspublished"
ATTEMPTS = 8
"""Times that one who switches begins again when other writers are faster."""


class SwitchStep(Enum):
    """The points of a switch, in order; passed to ``on_step`` when they are reached."""

    HEAD_READ = "head read"
    MERGED = "merged"
    CATALOGS_STORED = "catalogs stored"
    HISTORY_STORED = "history stored"
    REFLOG_WRITTEN = "reflog written"
    BEFORE_SWITCH = "before the switch"
    FENCED = "fenced"
    SWITCHED = "switched"


@dataclass(frozen=True, slots=True)
class Head:
    """The manifest that readers see now, and the store's version of it for compare-and-swap; None if it is lost."""

    manifest: Manifest
    version: Version | None


Fence = Callable[[Sequence[int]], Mapping[int, Exception]]
"""Called right before the manifest is replaced with the numbers of the changes that are to become visible; gives which
of them must not, and why. If there are any, nothing is switched."""


class _TakenOut(NightshiftError):
    """Some of a group may not be switched."""

    code = "changes-not-switchable"

    def __init__(self, refused: Mapping[int, Exception]) -> None:
        super().__init__()
        self.refused = refused


def read_head(store: Store, fqrn: str, voucher: ManifestVerifier | None = None) -> Head:
    """Read the manifest from the writer's side of the store; a caller that signs on top of it gives a ``voucher``.

    Raises RepositoryError, FormatError, StoreError, and SignatureError for a manifest that ``voucher`` does not accept.
    """
    try:
        data, version = store.get_versioned(MANIFEST_KEY)
    except NotFound:
        cure = f"nightshift repo {f'repair {fqrn} --manifest' if store.exists(REFLOG_KEY) else f'create {fqrn}'}"
        raise RepositoryError(fqrn, f"no {MANIFEST_KEY} in {store.url}; run: {cure}") from None
    try:
        signed = Manifest.parse(data)
    except FormatError as fault:
        cure = f"run: nightshift repo repair {fqrn} --manifest"
        raise FormatError(fault.what, f"{fault.detail}; {cure}", field=fault.field) from None
    if signed.manifest.fqrn != fqrn:
        raise RepositoryError(fqrn, f"the store {store.url} holds {signed.manifest.fqrn!r}")
    if voucher is not None:
        voucher.require(store, signed)
    return Head(signed.manifest, version)


def switch(
    store: Store,
    head: Head,
    root: NewRoot,
    *,
    signer: ManifestSigner,
    now: int,
    tags: Sequence[NewTag] = (),
    superseded: Sequence[ObjectHash] = (),
    records: Records | None = None,
    before_switch: Callable[[], None] = lambda: None,
    on_step: Callable[[SwitchStep], None] = lambda _: None,
) -> Head:
    """Store a revision and let readers see it. ``now``: Unix seconds.

    ``superseded``: roots that publishers stored on the way; the reflog keeps them so that a collection finds them.
    ``records``: what the signer keeps between commits. ``before_switch`` runs last before the manifest is replaced and
    stops the commit by raising. Raises ManifestConflict when another writer switched since ``head`` was read.
    """
    store_all(store, [(packed.hash.key, packed.data) for packed in root.catalogs] + list(root.objects))
    on_step(SwitchStep.CATALOGS_STORED)
    timestamp = max(now, head.manifest.timestamp)
    tagged = Tag("", root.hash, root.revision, timestamp, root.size, "")
    records = records or Records()
    history = store_history(store, head.manifest, _rotated(tagged, tags), records)
    on_step(SwitchStep.HISTORY_STORED)
    stored = [Stored(packed.hash, len(packed.data)) for packed in root.catalogs] + ([history] if history else [])
    draft = replace(
        head.manifest,
        root=root.hash, root_size=root.size, ttl=root.ttl, revision=root.revision, timestamp=timestamp,
        history=history.hash if history else None,
    )  # fmt: skip
    return publish(
        store, head, draft, signer=signer, now=now, stored=stored, superseded=superseded, records=records,
        before_switch=before_switch, on_step=on_step,
    )  # fmt: skip


def publish(
    store: Store,
    head: Head,
    draft: Manifest,
    *,
    signer: ManifestSigner,
    now: int,
    stored: Sequence[Stored] = (),
    superseded: Sequence[ObjectHash] = (),
    records: Records | None = None,
    before_switch: Callable[[], None] = lambda: None,
    on_step: Callable[[SwitchStep], None] = lambda _: None,
) -> Head:
    """Certificate, reflog, signature and manifest for a draft whose other objects are all stored.

    ``stored``: what was stored for it just now, with sizes. Raises ManifestConflict, and before anything is replaced
    ObjectMissing or ObjectDamaged if some of that is not in the store, HeadDamaged if something else is not that the
    manifest would name and ``head`` has not been replaced.
    """
    certificate = store_compressed(store, signer.certificate_pem, draft.root, CERTIFICATE)
    draft = replace(draft, certificate=certificate.hash)
    require_stored(store, [*stored, certificate])
    try:
        require_stored(store, map(Stored, draft.named))
    except ObjectError as fault:
        if not _is_current(store, head):
            raise ManifestConflict(draft.fqrn) from None
        raise HeadDamaged(draft.fqrn, str(fault)) from fault
    store_alternatives(store, draft)
    records = records or Records()
    written = _write_reflog(store, head.manifest, draft, superseded, now, records)
    draft = replace(draft, reflog=written.after.hash)
    on_step(SwitchStep.REFLOG_WRITTEN)
    signed = signer.sign(draft.letter(), draft.root.algorithm)
    on_step(SwitchStep.BEFORE_SWITCH)
    try:
        before_switch()
    except Exception:
        written.put_back(store)  # only here is it certain that no manifest names the new one
        raise
    on_step(SwitchStep.FENCED)
    try:
        version = store.replace(MANIFEST_KEY, signed, expected=head.version)
    except Conflict:
        raise ManifestConflict(draft.fqrn) from None
    on_step(SwitchStep.SWITCHED)
    if signer.reflog_checksum is not None:
        keep_checksum(signer.reflog_checksum, written.after.hash)
    records.keep_reflog(written.after)
    return Head(draft, version)


def commit_group(
    store: Store,
    changes: Sequence[Change],
    *,
    fqrn: str,
    signer: ManifestSigner,
    now: int,
    voucher: ManifestVerifier | None = None,
    catalogs: CatalogCache | None = None,
    records: Records | None = None,
    lineage: Lineage | None = None,
    fence: Fence = lambda _: {},
    on_step: Callable[[SwitchStep], None] = lambda _: None,
) -> list[Head | Exception]:
    """Merge changes one after another into the current revision and switch to the result: one revision for all.

    For each change, the revision that holds it, or why it was refused; the others go on without it. A change that the
    current revision already holds makes no new one, unless it is to be tagged and no revision that holds it has that
    tag. Another writer's switch in between is met by merging again on his result. ``voucher``: for manifests that
    others signed; without one only the signer's own are built upon. ``lineage``: then a change must be derived from a
    revision, and nothing may have touched its path since. What hinders all of them is the outcome of each.
    """

    def overtaken(failures: Iterable[Exception]) -> bool:
        """Tell whether what cannot be read is of a revision that was replaced meanwhile: a collection may have it."""
        lost = any(isinstance(failure, HeadDamaged | ObjectError) for failure in failures)
        return lost and conflicts + 1 < ATTEMPTS and not _is_current(store, head)

    voucher, records = voucher or ManifestVerifier(signer), records or Records()
    cache = catalogs or CatalogCache(store)
    waiting, outcomes, conflicts = dict(enumerate(changes)), dict[int, Head | Exception](), 0
    while waiting:
        try:
            head = read_head(store, fqrn, voucher)
            on_step(SwitchStep.HEAD_READ)
        except (CvmfsError, StoreError) as error:
            return [outcomes.get(number, error) for number in range(len(changes))]
        try:
            group = Group.merged(store, cache, head.manifest, waiting, records=records, lineage=lineage)
        except (CvmfsError, StoreError) as error:
            if overtaken([error]):
                conflicts += 1
                continue
            return [outcomes.get(number, error) for number in range(len(changes))]
        if overtaken(group.refused.values()):
            conflicts += 1
            group.edit.close()
            continue
        on_step(SwitchStep.MERGED)
        outcomes |= group.refused | dict.fromkeys(group.standing, head)
        waiting = {number: waiting[number] for number in group.members}
        if not waiting:
            group.edit.close()
            break

        def before_switch(members: Sequence[int] = tuple(waiting)) -> None:
            if refused := fence(members):
                raise _TakenOut(refused)

        try:
            new = switch(
                store, head, group.edit.finish(now), signer=signer, now=now, tags=group.tags,
                superseded=[change.new_root for change in waiting.values()], records=records,
                before_switch=before_switch, on_step=on_step,
            )  # fmt: skip
        except _TakenOut as stopped:
            outcomes |= stopped.refused
            waiting = {number: change for number, change in waiting.items() if number not in stopped.refused}
        except ManifestConflict as error:
            conflicts += 1
            if conflicts == ATTEMPTS:
                outcomes |= dict.fromkeys(waiting, error)
                break
        except (CvmfsError, StoreError) as error:
            if overtaken([error]):
                conflicts += 1
                continue
            outcomes |= dict.fromkeys(waiting, error)
            break
        else:
            if lineage is not None:
                lineage.add(new.manifest)
            outcomes |= dict.fromkeys(waiting, new)
            break
        finally:
            group.edit.close()
    return [outcomes[number] for number in range(len(changes))]


def _is_current(store: Store, head: Head) -> bool:
    """Tell whether the manifest is the one that was read; True as well where the store cannot tell."""
    try:
        return store.get_versioned(MANIFEST_KEY)[1] == head.version
    except NotFound:
        return head.version is None
    except StoreError:
        return True


def fence(
    store: Store, fqrn: str, *, signer: ManifestSigner, now: int, voucher: ManifestVerifier | None = None
) -> Head:
    """Let no commit pass that has read anything before this call: the same revision is signed with a later time.

    A writer about to switch on the manifest before it meets a conflict and begins again. What a collector waits for
    after it has published what it condemned. ``now``: Unix s. Raises ManifestConflict, SignatureError, StoreError.
    """

    def attempt() -> Head:
        head = read_head(store, fqrn, voucher or ManifestVerifier(signer))
        later = max(now, head.manifest.timestamp + 1)
        return publish(store, head, replace(head.manifest, timestamp=later), signer=signer, now=now)

    return until_first(attempt)


def until_first(attempt: Callable[[], T], *conflicts: type[CvmfsError]) -> T:
    """Try until no other writer comes first; the last conflict is raised when others keep being faster."""
    for _ in range(ATTEMPTS - 1):
        with suppress(ManifestConflict, *conflicts):
            return attempt()
    return attempt()


def load_history(store: Store, manifest: Manifest) -> History:
    return Records().take_history(store, manifest)


def store_history(
    store: Store, manifest: Manifest, change: Callable[[History], object], records: Records | None = None
) -> Stored | None:
    """Change the tags of a revision and store them; None if no tag is left, since such a history is not published."""
    records = records or Records()
    history = records.take_history(store, manifest)
    change(history)
    if manifest.history is not None:
        history.set_previous(manifest.history)
    if not len(history):
        return None
    stored = store_compressed(store, history.to_bytes(), manifest.root, HISTORY)
    records.keep_history(stored.hash, history)
    return stored


def _rotated(tagged: Tag, tags: Sequence[NewTag]) -> Callable[[History], object]:
    def change(history: History) -> None:
        history.rotate_trunk(tagged)
        for tag in tags:
            history.add(replace(tagged, name=tag.name, description=tag.description))

    return change


@dataclass(frozen=True, slots=True)
class _WrittenReflog:
    """A reflog that went ahead of the manifest, and the file that it replaced."""

    after: StoredReflog
    before: bytes

    def put_back(self, store: Store) -> None:
        """Undo, unless another writer went on from it; one that stays ahead is taken over by the next commit."""
        with suppress(StoreError):
            store.replace(REFLOG_KEY, self.before, expected=self.after.version)


def _write_reflog(
    store: Store, before: Manifest, draft: Manifest, superseded: Sequence[ObjectHash], now: int, records: Records
) -> _WrittenReflog:
    """Replace the reflog by one that knows all that the draft needs."""
    stored = records.take_reflog(store, before)
    reflog = stored.reflog
    if not stored.is_of(before):
        # Ahead of the manifest: a commit died before its switch. It holds all that it should and some more.
        missing = [name for name, _ in named_by(before) if not reflog.contains(name)]
        if missing:
            raise ReflogError(
                draft.fqrn, f"lacks {missing[0]}, which the manifest names; run: nightshift repo repair --reflog"
            )
    for name, kind in named_by(draft):
        # What stays current keeps its time, which is when the root, or the history, before it was superseded.
        if name not in (before.root, before.history) or not reflog.contains(name):
            reflog.add(name, kind, now)
    for root in superseded:
        reflog.add(root, RefType.CATALOG, now)
    ahead = reflog.to_bytes()
    with ThreadPoolExecutor(1, thread_name_prefix="reflog-hash") as pool:  # it has megabytes
        digest = pool.submit(hash_bytes, ahead, draft.root.algorithm)
        try:
            version = store.replace(REFLOG_KEY, ahead, expected=stored.version)
        except Conflict:
            raise ManifestConflict(draft.fqrn, "another writer is replacing the reflog; read it again") from None
        return _WrittenReflog(StoredReflog(reflog, ahead, version, digest.result()), stored.data)


def named_by(manifest: Manifest) -> list[tuple[ObjectHash, RefType]]:
    """The objects that a manifest names, with what they are."""
    named = [
        (manifest.root, RefType.CATALOG),
        (manifest.certificate, RefType.CERTIFICATE),
        (manifest.history, RefType.HISTORY),
        (manifest.meta, RefType.META),
    ]
    return [(name, kind) for name, kind in named if name is not None]


def first_reflog(store: Store, manifest: Manifest, now: int) -> ObjectHash:
    """Write the reflog of a repository that is being created; returns the hash of the file.

    One that a creation left that died is replaced. Raises ManifestConflict if another writer replaces it, too.
    """
    reflog = Reflog.create(manifest.fqrn)
    for name, kind in named_by(manifest):
        reflog.add(name, kind, now)
    data = reflog.to_bytes()
    try:
        kept, version = store.get_versioned(REFLOG_KEY)
    except NotFound:
        kept, version = b"", None
    if kept != data:
        try:
            store.replace(REFLOG_KEY, data, expected=version)
        except Conflict:
            if store.get(REFLOG_KEY) != data:
                raise ManifestConflict(manifest.fqrn, "another process is creating it; run again") from None
    return hash_bytes(data, manifest.root.algorithm)
