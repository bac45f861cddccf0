"""Set symbolic links in a repository: all in one revision where no lease below is held, else one by one."""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.paths import ancestors, common_top
from include.cvmfs.revision.revision import Revision
from include.gateway.errors import PathBusy
from include.nightlies.attempt import Attempt
from include.nightlies.rules.links import relative
from include.publishers.base import Published
from include.site.site import Site

Decide = Callable[[Revision, Sequence[str]], Mapping[str, str]]
"""Given a revision and places: which links are to be set there, and the absolute path that each leads to."""

_DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkChange:
    """Links to set: what ``decide`` returns for the places.

    Directories above are made, those in ``nested`` as nested catalogs. ``tag`` names the last revision; without a link
    to set its lease is on ``beside``.
    """

    places: Sequence[str]
    decide: Decide
    beside: str = ""
    nested: Collection[str] = ()
    tag: NewTag | None = None


def set_links(site: Site, attempt: Attempt, fqrn: str, change: LinkChange) -> tuple[Published, ...]:
    """Set the links; under each lease ``decide`` is asked again, of what is there then.

    One lease on the directory above all of them and one revision; if a lease below it is held, one lease on each
    link's own path. Nothing to do takes no lease. Raises PathBusy, DestinationError, what ``decide`` raises, and what a
    commit raises.
    """
    now, holder, tag = attempt.clock(), attempt.holder, change.tag
    publisher, entry = site.publisher(fqrn), _DIRECTORY.changed(mtime=int(now.timestamp()))

    def setting(paths: Sequence[str]) -> Callable[[Edit], None]:
        def apply(edit: Edit) -> None:
            for path, target in change.decide(edit, paths).items():
                for above in list(ancestors(path))[:-1]:
                    if edit.lookup(above) is None:
                        edit.make_nested(above, entry) if above in change.nested else edit.add(above, entry)
                edit.symlink(path, relative(path, target), now=int(now.timestamp()))

        return apply

    head = site.head(fqrn)
    view = head.revision
    moving = list(change.decide(view, change.places))
    if not moving:
        if tag is None:
            return ()
        return (publisher.change(change.beside, setting(change.places), holder=holder, now=now, tag=tag),)
    tops = sorted({_topmost_missing(view, path) for path in moving})
    together = common_top(tops)
    if len(moving) > 1 and together:
        try:
            return (publisher.change(together, setting(moving), holder=holder, now=now, tag=tag),)
        except PathBusy as busy:
            log.info("%d links one by one, since %s", len(moving), busy)
    done = []
    for number, path in enumerate(moving, 1):
        head = site.head(fqrn)
        lease = _topmost_missing(head.revision, path)
        last = tag if number == len(moving) else None
        done.append(publisher.change(lease, setting([path]), holder=holder, now=now, tag=last))
    return tuple(done)


def _topmost_missing(view: Revision, path: str) -> str:
    """Where the lease for a link has to be: the parent of a lease's path must be there."""
    return next((above for above in ancestors(path) if view.lookup(above) is None), path)
