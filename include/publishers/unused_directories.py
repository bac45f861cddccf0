"""Which directories to take away so that reservations of which nothing came leave no trace; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from include.cvmfs.format.catalog import MARKER


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
