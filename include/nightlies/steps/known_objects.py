"""Which objects a store already has because an earlier night published them: these cost neither a HEAD nor a PUT."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, select

from include.cvmfs.coordination.condemned import condemned_among
from include.cvmfs.coordination.generation import Look
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.digests import DigestSet
from include.cvmfs.revision.needed_objects import add_identities
from include.cvmfs.revision.walk import Tree
from include.ledger.engine import Bind, reading
from include.nightlies.records.tables import artifacts, builds, publications
from include.nightlies.rules.publication import Publication
from include.nightlies.rules.states import State

NEIGHBOURS = 4
"""How many earlier destinations of a project are read; a night mostly repeats the one before."""
LOOKED_AT = 8 * NEIGHBOURS
"""How many of its newest artifacts are read for these: some were never published."""


def earlier_destinations(bind: Bind, publication: Publication) -> tuple[str, ...]:
    """Where the same project of the same slot was published before, its own platform first, then the newest.

    Looked for among the project's newest artifacts, so that it costs the same however old the ledger is.
    """
    if publication.slot is None or publication.project is None:
        return ()
    platform = artifacts.c.platform
    with reading(bind) as connection:
        own = _published(connection, publication, platform == publication.platform)
        others = _published(connection, publication, platform != publication.platform)
    # dictionaries keep the first of equal ones, in order
    return tuple(dict.fromkeys([*own[:2], *others]))[:NEIGHBOURS]


def _published(connection: Connection, publication: Publication, platform: ColumnElement[bool]) -> list[str]:
    """Where the newest artifacts of the project on these platforms were published, what was published last first."""
    newest = (
        select(artifacts.c.id)
        .join(builds, artifacts.c.build == builds.c.id)
        .where(builds.c.slot == publication.slot, artifacts.c.project == publication.project, platform)
        .order_by(builds.c.build_date.desc(), builds.c.id.desc())
        .limit(LOOKED_AT)
    )
    ids = connection.scalars(newest).all()
    # by its artifact alone: with repository or state beside it a database may walk all that was ever published
    columns = (publications.c.repository, publications.c.state, publications.c.destination)
    when = (publications.c.updated_at, publications.c.id)
    rows = connection.execute(select(*columns, *when).where(publications.c.artifact.in_(ids))).all()
    good = [one for one in rows if one.repository == publication.repository and State(one.state).good]
    return [one.destination for one in sorted(good, key=lambda one: (one.updated_at, one.id), reverse=True)]


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
