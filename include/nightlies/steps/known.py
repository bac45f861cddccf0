"""Which objects a store already has because an earlier night published them: these cost neither a HEAD nor a PUT."""

from __future__ import annotations

from sqlalchemy import select

from include.cvmfs.condemned import condemned_among
from include.cvmfs.digests import DigestSet
from include.cvmfs.errors import CvmfsError
from include.cvmfs.generation import Look
from include.cvmfs.known import add_identities
from include.cvmfs.walk import Tree
from include.ledger.engine import Bind, reading
from include.nightlies.records import Publication
from include.nightlies.states import State
from include.nightlies.tables import artifacts, builds, publications

NEIGHBOURS = 4
"""How many earlier destinations of a project are read; a night mostly repeats the one before."""


def earlier_destinations(bind: Bind, publication: Publication) -> tuple[str, ...]:
    """Where the same project of the same slot was published before, its own platform first, then the newest."""
    if publication.slot is None or publication.project is None:
        return ()
    query = (
        select(publications.c.destination, artifacts.c.platform)
        .join(artifacts, publications.c.artifact == artifacts.c.id)
        .join(builds, artifacts.c.build == builds.c.id)
        .where(
            publications.c.repository == publication.repository,
            publications.c.state.in_([State.PUBLISHED.value, State.UNCHANGED.value]),
            builds.c.slot == publication.slot,
            artifacts.c.project == publication.project,
        )
        .order_by(publications.c.updated_at.desc(), publications.c.id.desc())
        .limit(NEIGHBOURS * 8)
    )
    with reading(bind) as connection:
        rows = connection.execute(query).all()
    own = [path for path, platform in rows if platform == publication.platform]
    others = [path for path, platform in rows if platform != publication.platform]
    # dictionaries keep the first of equal ones, in order
    return tuple(dict.fromkeys([*own[:2], *others]))[:NEIGHBOURS]


def known_objects(tree: Tree, destinations: tuple[str, ...]) -> DigestSet:
    """The identities of everything that the current revision holds there.

    Only what a revision names is safe to rely on: a collection never takes it. What cannot be read is left out.
    """
    found = DigestSet()
    for path in destinations:
        try:
            if tree.lookup(path) is not None:
                add_identities(tree, path, found)
        except CvmfsError:
            continue  # damage elsewhere is for the check to report; here it only costs a look at the store
    return found


def leave_condemned(known: DigestSet, look: Look, tree: Tree) -> None:
    """Take out what a collection is about to delete."""
    if look.running_list is not None:
        for one in condemned_among(tree.store, look.running_list, known):
            known.discard(one)
