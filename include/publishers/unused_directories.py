"""Which directories to take away so that reservations of which nothing came leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from include.cvmfs.format.catalog import MARKER
from include.cvmfs.revision.revision import Revision
from include.publishers.destinations import is_reserved


def unused(view: Revision, paths: Collection[str], floor: str | None, created: Collection[str]) -> tuple[str, ...]:
    """As ``topmost``, of those of the paths that are reserved and still empty."""
    empty = [path for path in paths if is_reserved(view, path)]
    return topmost(empty, floor, lambda above: [entry.name for entry in view.inside(above).listing(above)], created)


def topmost(
    paths: Collection[str],
    floor: str | None,
    children: Callable[[str], Sequence[str]],
    created: Collection[str] = (),
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
