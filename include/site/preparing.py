"""Prepare a tree for a destination, for nights and for commands: packed for a node, or stored without what is there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from include.cvmfs.coordination.condemned import condemned_among
from include.cvmfs.coordination.generation import Look
from include.cvmfs.format.hashes import DigestSet, hash_of_key, identity
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import Base, PrepareProgress, prepare
from include.cvmfs.ingest.upload import JournaledStore, UploadJournal
from include.cvmfs.revision.needed_objects import known_objects
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.source import SourceLimits, TreeSource
from include.publishers.base import tree_options
from include.settings.prepare import Prepare
from include.site.site import Site

CONTENT_INDEX = "content-index.db"
SENT = "sent"
"""Below the site's ``var``; caches, shared by all preparations of a machine."""


@dataclass(frozen=True, slots=True)
class TreeToPrepare:
    """A tree, where it goes, and what of it need not be sent.

    ``known_from``: paths whose objects the current revision has; ``damaged``: keys of objects that are sent again.
    ``prepare`` takes the place of the repository's settings.
    """

    destination: str
    source: TreeSource
    now: datetime
    known_from: Iterable[str] = ()
    damaged: Collection[str] = ()
    limits: SourceLimits = field(default_factory=SourceLimits)
    prepare: Prepare | None = None
    progress: Callable[[PrepareProgress], None] | None = None
    dry_run: bool = False


def prepare_for(
    site: Site, head: Repository, seen: Look, tree: TreeToPrepare, journal: UploadJournal | None = None
) -> Changeset:
    """Make a tree's changeset. ``seen`` was read before ``head``; ``journal`` has what an interrupted try sent.

    What the current revision or the journal names is not sent again, unless it is condemned or damaged. Raises what
    preparing raises.
    """
    base = Base(head.manifest.root, head.manifest.revision, seen.moment)
    packing = site.packing(head.fqrn, head)
    if packing is not None:
        if tree.prepare is not None:
            packing = replace(packing, options=tree_options(tree.prepare, head))
        return packing.pack(
            tree.source, destination=tree.destination, now=tree.now, base=base, limits=tree.limits,
            progress=tree.progress, dry_run=tree.dry_run,
        )  # fmt: skip
    store = site.repository_store(head.fqrn)
    settings = site.settings.repository(head.fqrn)
    known = known_objects(head.revision, tree.known_from)
    if journal is not None:
        for sent in journal.known:
            known.add(sent)
    leave_condemned(known, seen, head.revision)
    for key in tree.damaged:
        known.discard(identity(hash_of_key(key)))
    options = replace(
        tree_options(tree.prepare or settings.prepare, head),
        connections=site.settings.store(settings.store).connections,
        limits=tree.limits,
        index=site.settings.paths.var / CONTENT_INDEX,
    )
    return prepare(
        tree.source, store=store if journal is None else JournaledStore(store, journal), fqrn=head.fqrn,
        destination=tree.destination, now=tree.now, options=options, known=known, base=base, progress=tree.progress,
        dry_run=tree.dry_run,
    )  # fmt: skip


def journal_of(site: Site, fqrn: str, seen: Look, tree: TreeToPrepare, *origin: str | None) -> UploadJournal | None:
    """The journal of a tree from ``origin``, also of an earlier try; None where nothing is sent over a network."""
    store = site.repository_store(fqrn)
    if tree.dry_run or store.is_local or site.settings.repository(fqrn).server is not None:
        return None  # where the store is files, to look is to write
    about = (store.url, tree.destination, *origin)
    return UploadJournal(site.settings.paths.var / SENT, about=about, generation=seen.completed, now=tree.now)


def leave_condemned(known: DigestSet, look: Look, revision: Revision) -> None:
    """Take out what a collection is about to delete."""
    if look.running_list is not None:
        for name in condemned_among(revision.catalogs.store, look.running_list, known):
            known.discard(name)
