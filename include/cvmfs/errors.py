"""Everything that can go wrong with a repository, in one tree, and rows that no program distinguishes by class.

CvmfsError
├── FormatError(what, detail)             bytes that do not follow the format (docs/formats.md)
├── TrustError                            what we read is not signed by whom we trust
│   ├── SignatureError(what, detail)      manifest, whitelist or certificate signature does not hold
│   └── WhitelistError(fqrn, detail)      whitelist of another repository, or certificate not listed
│       └── WhitelistExpired(fqrn, expires)
├── KeyFileError(path, detail)            a key, certificate or gateway key file that cannot be used
├── CatalogError(path, detail)            a catalog that contradicts itself, its parent or the operation asked of it
├── ObjectError                           an object of the store
│   ├── ObjectMissing(key)
│   └── ObjectDamaged(key, detail)        stored bytes do not have the hash they are named by
├── RepositoryError(fqrn, detail)         no repository there, one there already, or another one than expected
│   ├── ReflogError(fqrn, detail)         reflog absent, or not the one that the manifest names
│   └── HeadDamaged(fqrn, detail)         what the manifest names is lost or cannot be read: no commit can be made
├── CollectionBusy(fqrn, detail, until)   another collection of the repository is at work  (retryable)
├── CollectionRefused(fqrn, detail)       a collection would delete what it should not, or cannot rule that out
├── RepositoryFrozen(fqrn, detail)        all changes were stopped for a while       (retryable)
├── SourceError(member, detail)           an input tree or archive that cannot be taken
├── DestinationError(path, detail)        nothing can be hung there, or nothing is there to take away
│   └── NotReserved(path, detail)         its place is not there (any more); reserve it, then publish
├── LibraryMissing(compressor, fault)     the library of a compressor is not installed
├── TagError(name, detail)                a tag that cannot be made, moved or found
├── MergeError(path, detail)              two changes of one base that exclude each other
└── CommitError                           the switch to a new revision did not happen; the old one stays
    ├── ManifestConflict(fqrn, detail)    another writer switched first             (retryable)
    ├── BaseChanged(path, detail)         the destination is not what we derived from  (retryable)
    ├── UnknownBase(fqrn, detail)         what we derived from is no revision of the repository
    ├── PrepareAgain                      the changeset can no longer be published; its tree can   (retryable)
    │   └── ObjectsLost(path, detail)     the store acknowledged some of its objects and has them not
    ├── CollectionRunning(path, detail)   some of its objects are condemned: publish when they are swept (retryable)
    └── GenerationMoved(fqrn, detail)     a collection went on since the change was judged; judge again (retryable)
"""

from __future__ import annotations

from datetime import datetime

from include.errors import Concern, ErrorRow, NightshiftError


class CvmfsError(NightshiftError):
    """Anything this subject raises on purpose. ``retryable``: the same call may succeed later without intervention."""

    code = "cvmfs-error"


class FormatError(CvmfsError):
    """``what`` names the thing that was read (a manifest, a hash, a reflog), ``detail`` what is wrong with it.

    ``field`` is the member of a JSON document that is missing or wrong, if it is one.
    """

    code = "format-invalid"

    def __init__(self, what: str, detail: str, *, field: str = "") -> None:
        super().__init__(f"{what}: {detail}")
        self.what = what
        self.detail = detail
        self.field = field


class TrustError(CvmfsError):
    """Readable, but not trusted."""

    code = "not-trusted"
    concern = Concern.REPOSITORY


class SignatureError(TrustError):
    """A signature that does not hold. ``what`` names the signed thing."""

    code = "signature-invalid"

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(f"{what}: {detail}")
        self.what = what
        self.detail = detail


class WhitelistError(TrustError):
    """The whitelist does not admit this repository or certificate."""

    code = "whitelist-invalid"

    def __init__(self, fqrn: str, detail: str) -> None:
        super().__init__(f"whitelist of {fqrn}: {detail}")
        self.fqrn = fqrn
        self.detail = detail


class WhitelistExpired(WhitelistError):
    """``expires`` is the hour (UTC) from which on the whitelist no longer counts."""

    code = "whitelist-expired"

    def __init__(self, fqrn: str, expires: datetime) -> None:
        super().__init__(fqrn, f"expired at {expires:%Y-%m-%d %H}:00 UTC; resign the whitelist with the master key")
        self.expires = expires


class KeyFileError(CvmfsError):
    """A key file that is absent, in the way, or not of the kind that its name means; the detail has the hint."""

    code = "key-file-unusable"
    concern = Concern.REPOSITORY

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


class CatalogError(CvmfsError):
    """``path`` is the absolute path inside the repository, ``""`` for its root."""

    code = "catalog-inconsistent"

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path or '/'}: {detail}")
        self.path = path
        self.detail = detail


class ObjectError(CvmfsError):
    """Something about one object; ``key`` is relative to the repository's store."""

    code = "object-error"

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(f"{key}: {detail}")
        self.key = key
        self.detail = detail


class ObjectMissing(ObjectError):
    """Named by a manifest, catalog or tag, but not in the store."""

    code = "object-missing"

    def __init__(self, key: str, detail: str = "not in the store") -> None:
        super().__init__(key, detail)


class ObjectDamaged(ObjectError):
    """Stored, but with bytes that do not have the hash in its name."""

    code = "object-damaged"

    def __init__(
        self, key: str, detail: str = "its bytes do not have the hash that names it; delete and upload it again"
    ) -> None:
        super().__init__(key, detail)


class RepositoryError(CvmfsError):
    """The repository as a whole is not what was asked for."""

    code = "repository-mismatch"

    def __init__(self, fqrn: str, detail: str) -> None:
        super().__init__(f"repository {fqrn}: {detail}")
        self.fqrn = fqrn
        self.detail = detail


class ReflogError(RepositoryError):
    """The reflog is absent or is not the one that the manifest names."""

    code = "reflog-mismatch"
    concern = Concern.REPOSITORY


class HeadDamaged(RepositoryError):
    """The root catalog or the tags of the current revision are lost or cannot be read; ``detail`` has the cure."""

    code = "head-damaged"
    concern = Concern.REPOSITORY


class SourceError(CvmfsError):
    """``member`` names the file, directory or archive member that cannot be taken; ``detail``: why, and the hint."""

    code = "source-invalid"

    def __init__(self, member: str, detail: str) -> None:
        super().__init__(f"{member}: {detail}")
        self.member = member
        self.detail = detail


class DestinationError(CvmfsError):
    """``path`` is the destination inside the repository."""

    code = "destination-invalid"

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"destination {path or '/'}: {detail}")
        self.path = path
        self.detail = detail


class NotReserved(DestinationError):
    """Its reservation is missing: it was never made, or was taken away after the artifact had failed."""

    code = "destination-not-reserved"

    def __init__(self, path: str, detail: str = "is not reserved") -> None:
        super().__init__(path, f"{detail}; reserve it, then publish")


class TagError(CvmfsError):
    """``name`` is the tag's name."""

    code = "tag-invalid"

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"tag {name!r}: {detail}")
        self.name = name
        self.detail = detail


class MergeError(CvmfsError):
    """Both sides changed ``path`` in ways that cannot both hold."""

    code = "merge-conflict"

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"merge at {path or '/'}: {detail}")
        self.path = path
        self.detail = detail


class RepositoryFrozen(CvmfsError):
    """All changes of the repository were stopped; ``detail`` states by whom, why and until when."""

    code = "repository-frozen"
    retryable = True

    def __init__(self, fqrn: str, detail: str) -> None:
        super().__init__(f"repository {fqrn} is {detail}. Wait, or end it with: nightshift thaw {fqrn}")
        self.fqrn = fqrn
        self.detail = detail


class CommitError(CvmfsError):
    """No new revision came to be. Readers still see the old one."""

    code = "commit-error"


class ManifestConflict(CommitError):
    """The manifest was replaced by another writer between our reading and our switch."""

    code = "manifest-conflict"
    retryable = True
    concern = Concern.REPOSITORY

    def __init__(
        self, fqrn: str, detail: str = "another writer switched the manifest first; read it again and commit on it"
    ) -> None:
        super().__init__(f"repository {fqrn}: {detail}")
        self.fqrn = fqrn
        self.detail = detail


class BaseChanged(CommitError):
    """``path`` no longer has what the change was derived from, or a collection swept that."""

    code = "base-changed"
    retryable = True

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path or '/'}: {detail}")
        self.path = path
        self.detail = detail


class UnknownBase(CommitError):
    """The root that a change was derived from has never been a revision, or is too old to be known."""

    code = "unknown-base"

    def __init__(self, fqrn: str, detail: str) -> None:
        super().__init__(f"repository {fqrn}: {detail}")
        self.fqrn = fqrn
        self.detail = detail


class PrepareAgain(CommitError):
    """The changeset for ``path`` needs objects that are not sure to be there; prepared again, it can be published."""

    code = "prepare-again"
    retryable = True

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}; prepare it again")
        self.path = path
        self.detail = detail


class ObjectsLost(PrepareAgain):
    """Some of what it needs was sent, but is not in the store; ``keys`` names them."""

    code = "objects-lost"

    def __init__(self, path: str, detail: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(path, detail)
        self.keys = keys


class CollectionRunning(CommitError):
    """An object that the changeset for ``path`` needs is about to be deleted; sent now, it might be deleted too.

    ``number``: of the collection; ``shards``: of its list that have to be swept first, none if it has to end.
    """

    code = "collection-running"
    retryable = True
    concern = Concern.REPOSITORY
    listed = False
    """Like that of a busy path: the gateway's list of leases does not show when it is over."""
    time_remaining_s = 6 * 3600.0
    """Time for which waiting for a sweep is worthwhile."""

    def __init__(
        self, path: str, detail: str, number: int = 0, shards: tuple[int, ...] = (), repository: str | None = None
    ) -> None:
        until = "swept these shards" if shards else "ended"
        super().__init__(f"{path}: {detail}; try again when the collection has {until}")
        self.path = path
        self.detail = detail
        self.number = number
        self.shards = shards
        self.repository = repository

    def why_given_up(self, waited_s: float) -> str:
        """Return what is recorded and shown once it was waited for in vain."""
        return f"{self}; waited for {waited_s:.0f} s. See whether the collection goes on, then clear this task."


class CollectionBusy(CvmfsError):
    """Another collection of the repository is at work; it counts as dead at ``until`` unless it renews its claim."""

    code = "collection-busy"
    retryable = True
    concern = Concern.REPOSITORY

    def __init__(self, fqrn: str, detail: str, until: datetime) -> None:
        super().__init__(f"repository {fqrn}: {detail}")
        self.fqrn = fqrn
        self.until = until


class CollectionRefused(CvmfsError):
    """A collection is not begun, or ended before it deleted anything, since something is not as it should be."""

    code = "collection-refused"
    concern = Concern.REPOSITORY

    def __init__(self, fqrn: str, detail: str, *, hint: str = "check what is named, then run it again") -> None:
        super().__init__(f"repository {fqrn}: {detail}; nothing was deleted; {hint}")
        self.fqrn = fqrn
        self.hint = hint


class GenerationMoved(CommitError):
    """The collection generation is not the one at which the change was judged; a new judgement may let it pass.

    It says no more than that: who answers a publisher adds what helps.
    """

    code = "collection-generation-changed"
    retryable = True

    def __init__(self, fqrn: str, detail: str) -> None:
        super().__init__(f"repository {fqrn}: {detail}")
        self.fqrn = fqrn
        self.detail = detail


class LibraryMissing(CvmfsError):
    """A way to compress whose library this machine does not have."""

    code = "compressor-missing"
    concern = Concern.CONFIGURATION
    hint = "run `make venv`, or set `prepare: {compression: stock}`, which needs no library"

    def __init__(self, compressor: str, fault: ImportError) -> None:
        super().__init__(f"compression {compressor}: its library cannot be loaded ({fault}); {self.hint}")
        self.compressor = compressor


REVISION_UNKNOWN = ErrorRow(RepositoryError, "revision-unknown")
"""No revision of that number is known any more, or none ever was."""
SOURCE_LIMIT_EXCEEDED = ErrorRow(SourceError, "source-limit-exceeded")
"""More members or bytes than allowed."""
CHANGESET_EXPIRED = ErrorRow(PrepareAgain, "changeset-expired")
"""Its orphans are no longer spared by the collector."""
LAYOUT_CHANGED = ErrorRow(PrepareAgain, "catalog-layout-changed")
"""Its catalogs have other columns than those of the repository, or in another order."""
OBJECTS_COLLECTED = ErrorRow(PrepareAgain, "objects-collected")
"""A collection ran since it was begun, and some of what it needs was on its list, or may have been."""
