"""Set symbolic links in a repository: all in one revision where nobody is at work beside them, else one by one."""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.revision.view import View, ancestors
from include.gateway.errors import PathBusy
from include.nightlies.rules.links import relative
from include.publishers.base import Published
from include.publishers.connect import Connections
from include.publishers.single_changes import common_ancestor

Decide = Callable[[View, Sequence[str]], Mapping[str, str]]
"""Given a revision and places: which links are to be set there, and the absolute path that each leads to."""

_DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)

log = logging.getLogger(__name__)


def set_links(
    connections: Connections,
    fqrn: str,
    places: Sequence[str],
    decide: Decide,
    *,
    beside: str,
    holder: str,
    now: datetime,
    nested: Collection[str] = (),
    tag: NewTag | None = None,
) -> tuple[Published, ...]:
    """Set what ``decide`` says of each place; under each lease it is asked again, of what stands there then.

    One lease on the directory above all of them and one revision; if somebody holds a lease below it, one lease on each
    link's own path. Directories above are made, those in ``nested`` as nested catalogs. ``tag`` names the last
    revision; without a link to set its lease is on ``beside``. Nothing to do takes no lease. Raises PathBusy,
    DestinationError, what ``decide`` raises, and what a commit raises.
    """
    publisher, entry = connections.publisher(fqrn), _DIRECTORY.changed(mtime=int(now.timestamp()))

    def setting(paths: Sequence[str]) -> Callable[[Edit], None]:
        def apply(edit: Edit) -> None:
            for path, target in decide(edit, paths).items():
                for above in list(ancestors(path))[:-1]:
                    if edit.lookup(above) is None:
                        edit.make_nested(above, entry) if above in nested else edit.add(above, entry)
                edit.symlink(path, relative(path, target), now=int(now.timestamp()))

        return apply

    head = connections.head(fqrn)
    view = View(head.catalogs, head.manifest.root)
    moving = list(decide(view, places))
    if not moving:
        if tag is None:
            return ()
        return (publisher.change(beside, setting(places), holder=holder, now=now, tag=tag),)
    tops = sorted({_topmost_missing(view, path) for path in moving})
    together = tops[0] if len(tops) == 1 else common_ancestor(tops)
    if len(moving) > 1 and together:
        try:
            return (publisher.change(together, setting(moving), holder=holder, now=now, tag=tag),)
        except PathBusy as busy:
            log.info("%d links one by one, since %s", len(moving), busy)
    done = []
    for number, path in enumerate(moving, 1):
        head = connections.head(fqrn)
        lease = _topmost_missing(View(head.catalogs, head.manifest.root), path)
        last = tag if number == len(moving) else None
        done.append(publisher.change(lease, setting([path]), holder=holder, now=now, tag=last))
    return tuple(done)


def _topmost_missing(view: View, path: str) -> str:
    """Where the lease for a link has to be: the parent of a lease's path must be there."""
    return next((above for above in ancestors(path) if view.lookup(above) is None), path)
