"""How the trees for a repository are prepared: its settings, as options of the engine."""

from __future__ import annotations

from pathlib import Path

from include.cvmfs.errors import FormatError, RepositoryError
from include.cvmfs.format.layout import Layout
from include.cvmfs.ingest.autocatalog import Weights
from include.cvmfs.ingest.catalog_boundaries import Cuts
from include.cvmfs.ingest.prepare import PrepareOptions
from include.cvmfs.ingest.spool import SpecialBits, Specials
from include.cvmfs.revision.repository import Repository
from include.cvmfs.sources.dirtab import NAME, Dirtab
from include.cvmfs.sources.owners import IdMap, OwnerMap
from include.settings.prepare import Prepare

NO_NANOSECONDS = (
    "was not created for nanoseconds (its catalogs have {}); remove `prepare.mtime_ns`, or create another repository "
    "with: nightshift repo create --mtime-ns"
)


def tree_options(settings: Prepare, repository: Repository) -> PrepareOptions:
    """Options for metadata and catalogs; the rest is the caller's. ``repository``: the current revision.

    New objects and catalogs are hashed and laid out as those that are there. Raises FormatError for an owner map or a
    dirtab that cannot be read, RepositoryError for nanoseconds in a repository that cannot hold them.
    """
    layout = repository.revision.root.layout
    if settings.mtime_ns and not holds_nanoseconds(layout):
        raise RepositoryError(repository.fqrn, NO_NANOSECONDS.format(layout.value))
    weights = Weights(settings.autocatalogs_max, settings.autocatalogs_min) if settings.autocatalogs else None
    return PrepareOptions(
        algorithm=repository.manifest.root.algorithm,
        layout=layout,
        owner=_owner(settings),
        mtime_ns=settings.mtime_ns,
        specials=Specials(settings.specials),
        special_bits=SpecialBits(settings.special_bits),
        xattrs=settings.xattrs,
        cuts=Cuts(_dirtab(repository) if settings.dirtab else None, weights, settings.catalog_entries),
    )


def holds_nanoseconds(layout: Layout) -> bool:
    """Whether a repository whose root catalog has this layout was created for nanoseconds, not upgraded."""
    return layout is Layout.MTIME_NS


def _owner(settings: Prepare) -> tuple[int, int] | OwnerMap | None:
    if settings.owner is not None:
        return settings.owner.uid, settings.owner.gid
    if settings.uid_map is None and settings.gid_map is None:
        return None
    return OwnerMap(_ids(settings.uid_map), _ids(settings.gid_map))


def _ids(path: Path | None) -> IdMap:
    if path is None:
        return IdMap()
    try:
        return IdMap.parse(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as fault:
        raise FormatError(str(path), f"cannot be read ({fault}); write it, or take it out of the settings") from fault


def _dirtab(repository: Repository) -> Dirtab | None:
    """The rules in the repository; None if it has no such file."""
    entry = repository.revision.lookup(f"/{NAME}")
    if entry is None:
        return None
    return Dirtab.parse(repository.revision.read(f"/{NAME}"), f"/{NAME} of {repository.manifest.fqrn}")
