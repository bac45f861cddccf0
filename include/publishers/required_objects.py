"""Objects that a changeset needs, which must be in the store when it is published; directories that stay unused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from include.cvmfs import errors
from include.cvmfs.coordination.condemned import condemned_among, condemned_shards
from include.cvmfs.coordination.generation import CHANGESET_LIFE, CLOCK_SKEW, SHARDS, Look
from include.cvmfs.format.catalog import MARKER, Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, DigestSet, ObjectHash, hash_of_key, identity
from include.cvmfs.format.paths import ancestors, parent_of
from include.cvmfs.format.schema import Counts
from include.cvmfs.ingest.changeset import Changeset, objects_of
from include.cvmfs.revision.revision import Revision
from include.storage.store import Store

_RESERVED = Counts(regular=1, dir=1)  # a reserved destination: its own directory and the catalog's marker


def missing_directories(view: Revision, destinations: Sequence[str]) -> list[str]:
    """The destinations and directories above them that are absent, parents first.

    Raises DestinationError where a file or a plain directory is in the way, and for a destination inside another.
    """
    _require_apart(destinations)
    missing: dict[str, None] = {}
    for destination in destinations:
        for path in ancestors(destination):
            if path in missing or parent_of(path) in missing:
                missing[path] = None
                continue
            entry = view.lookup(path)
            if entry is None:
                missing[path] = None
            elif not entry.is_directory:
                raise errors.DestinationError(
                    destination, f"{path} is a {entry.kind}; remove it or choose another destination"
                )
            elif path == destination and not entry.mountpoint:
                raise errors.DestinationError(path, "a directory that is no nested catalog is there; remove it first")
    return list(missing)


def is_reserved(view: Revision, path: str) -> bool:
    """Tell whether an empty nested catalog is at the path."""
    return view.nested_at(path) is not None and view.inside(path).statistics.total == _RESERVED


def is_tree(there: NestedRef | None, root: ObjectHash) -> bool:
    """Tell whether a nested catalog is that of the tree ``root``."""
    return there is not None and there.hash.digest == root.digest


def is_free(view: Revision, path: str, root: ObjectHash) -> bool:
    """Tell whether the tree ``root`` may be put there without replacing anything."""
    there = view.nested_at(path)
    return there is None or is_tree(there, root) or is_reserved(view, path)


def is_derived_from(catalogs: CatalogCache, changeset: Changeset, there: NestedRef) -> bool:
    """Tell whether a changeset was derived from this very tree. Raises BaseChanged if its base was collected."""
    path, base = changeset.destination, changeset.base_root
    try:
        return base is not None and is_tree(Revision(catalogs, base, sizes=True).nested_at(path), there.hash)
    except errors.ObjectMissing:
        raise errors.BaseChanged(
            path, f"revision {base} that this was derived from was collected; derive again"
        ) from None


def occupied(path: str) -> errors.DestinationError:
    """Return what is said of a destination that is not free when replacing was not asked for."""
    return errors.DestinationError(
        path, "holds something already, and replacing was not asked for; ask for it, or choose another destination"
    )


def _require_apart(destinations: Sequence[str]) -> None:
    """A destination inside another would go with all that is published there when the outer one is swapped."""
    apart = set(destinations)
    for destination in destinations:
        for above in ancestors(parent_of(destination)):
            if above in apart:
                raise errors.DestinationError(destination, f"lies inside the destination {above}; keep them apart")


def unused(view: Revision, paths: Collection[str], floor: str | None, created: Collection[str]) -> tuple[str, ...]:
    """Return ``topmost`` of the paths that are reserved and still empty."""
    empty = [path for path in paths if is_reserved(view, path)]
    return topmost(empty, floor, lambda above: [entry.name for entry in view.inside(above).listing(above)], created)


def topmost(
    paths: Collection[str], floor: str | None, children: Callable[[str], Sequence[str]], created: Collection[str] = ()
) -> tuple[str, ...]:
    """The fewest directories whose removal takes away exactly `paths` and what would be empty without them.

    Only directories below `floor` or among `created` are given up for their children. `.cvmfscatalog` is no child.
    """
    found = set(paths)
    pending = sorted(found)
    while pending:
        above = pending.pop().rpartition("/")[0]
        given_up = above in created or (floor is not None and above.startswith(f"{floor}/"))
        if above in found or not given_up:
            continue
        inside = {f"{above}/{name}" for name in children(above) if name != MARKER}
        if inside <= found:
            found = (found - inside) | {above}
            pending.append(above)
    return tuple(sorted(found))


_AT_ONCE = 32


class ChangesetCheck:
    """Judges one changeset. What is true at one point of a collection is not looked up twice."""

    def __init__(self, store: Store, catalogs: CatalogCache, changeset: Changeset) -> None:
        self._store = store
        self._catalogs = catalogs
        self._changeset = changeset
        self._clear: set[str] = set()  # tokens: they stay the same while shards are swept, and so does this judgement
        self._faults: dict[tuple[str, int], errors.CommitError] = {}
        self._hashes: DigestSet | None = None

    def fault(self, look: Look, now: datetime) -> errors.CommitError | None:
        """Return why the changeset must not be published at the generation that was read; None if it may be.

        Its age and, only if a collection ran or runs since it was begun, its objects: those on the list of a collection
        that has ended were deleted, those on the list of one that runs were or will be, shard by shard. Where an
        object was sent after its shard was swept, neither counts. Raises what reading them raises.
        """
        made = self._changeset
        age = now - made.created
        if age > CHANGESET_LIFE or age < -CLOCK_SKEW:
            hours = CHANGESET_LIFE.total_seconds() / 3600
            what = (
                f"the changeset was begun at {made.created:%Y-%m-%d %H:%M} UTC, more than {hours:.0f} h away from now"
            )
            return errors.CHANGESET_EXPIRED(made.destination, what)
        at = look.token, look.swept
        if look.token not in self._clear and at not in self._faults:
            if (fault := self._collected(look)) is None:
                self._clear.add(look.token)
            else:
                self._faults[at] = fault
        return None if look.token in self._clear else self._faults[at]

    def require_catalogs(self, root: Catalog) -> None:
        """Look for the catalogs below the root: a store may acknowledge and lose. Raises ObjectsLost."""
        path, wanted, seen = self._changeset.destination, root.statistics.total.nested, 0
        level = root.nested()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while level:
                there = pool.map(lambda reference: self._store.exists(reference.hash.with_suffix(CATALOG).key), level)
                lost = [reference for reference, found in zip(level, there, strict=True) if not found]
                if lost:
                    raise self._lost(path, lost)
                seen += len(level)
                # only catalogs say what is below them: when all are seen, the last level need not be read
                level = (
                    [] if seen >= wanted else [below for reference in level for below in self._open(reference).nested()]
                )

    def _open(self, reference: NestedRef) -> Catalog:
        return self._catalogs.open_nested(reference.path, reference.hash)

    @staticmethod
    def _lost(path: str, lost: Sequence[NestedRef]) -> errors.ObjectsLost:
        keys = tuple(reference.hash.with_suffix(CATALOG).key for reference in lost)
        return errors.ObjectsLost(path, f"{len(lost)} of its catalogs are not in the store, as {keys[0]}", keys)

    def _collected(self, look: Look) -> errors.CommitError | None:
        path, began = self._changeset.destination, self._changeset.moment
        since = look.lists_since(began)
        if since is None:
            return errors.OBJECTS_COLLECTED(
                path, f"begun at generation {began.completed}; what was collected until {look.token} is unknown"
            )
        running = look.running_since(began)
        if not since and running is None:
            return None
        try:
            if self._hashes is None:
                self._hashes = objects_of(self._changeset, self._catalogs)
        except errors.ObjectMissing as gone:
            return errors.OBJECTS_COLLECTED(
                path, f"{gone.key} is gone, and a collection ran or runs since it was begun"
            )
        shards = condemned_shards(self._store, running, self._hashes) if running is not None else ()
        # first: what is prepared again now would wait for these as well, and would have to be prepared once more
        if unswept := tuple(shard for shard in shards if shard >= look.swept):
            return _waiting(look, path, unswept, self._changeset.repository)
        if shards:
            return errors.OBJECTS_COLLECTED(
                path, f"shards with its objects were swept by collection {look.token} meanwhile"
            )
        for missed in since:
            if gone_now := condemned_among(self._store, missed.name, self._hashes, missed.shards):
                return errors.OBJECTS_COLLECTED(
                    path, f"{len(gone_now)} of its objects were collected since it was begun"
                )
        return None


def require_spared(store: Store, look: Look, path: str, objects: Iterable[tuple[str, bytes]], *, fqrn: str) -> None:
    """Raises CollectionRunning if one of these objects is about to be deleted.

    They are sent to their keys after the look: what is in a shard that was swept by then stays.
    """
    running = look.running_since(look.moment)
    identities = [identity(hash_of_key(key)) for key, _ in objects]
    if running is not None and (unswept := condemned_shards(store, running, identities)):
        raise _waiting(look, path, unswept, fqrn)


def _waiting(look: Look, path: str, shards: tuple[int, ...], fqrn: str) -> errors.CollectionRunning:
    return errors.CollectionRunning(
        path,
        f"some of its objects are on the list of collection {look.token}, in {len(shards)} shards that are not swept "
        f"yet, the last of them {shards[-1]}, of {SHARDS}; {look.swept} are swept",
        number=look.moment.completed + 1,
        shards=shards,
        repository=fqrn,
    )
