"""Whether a path is ready for something that is yet to be built: reserved or free, and without a lease."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from include.cvmfs.sources.source import checked_destination
from include.publishers.destinations import is_reserved, missing_directories, occupied
from include.site.site import Site


class WantedPlace(Enum):
    """What a builder waits for."""

    FREE = "free"
    """The path does not exist, or is reserved."""
    RESERVED = "reserved"
    """The path is reserved: publishing to it is one short commit."""


@dataclass(frozen=True, slots=True)
class SeenPlace:
    """What was seen of a place: whether it is as wanted, why, and in which revision."""

    path: str
    ready: bool
    reason: str
    revision: int


def look_at(site: Site, fqrn: str, path: str, wanted: WantedPlace, *, replaces: bool = False) -> SeenPlace:
    """Check whether a builder may count on a place; nothing is taken, and nothing written.

    ``replaces``: what is at the path is going to be replaced, so that any tree is as good as a reservation. Raises
    DestinationError, which waiting does not resolve: for a tree at the path, a file in the way, or an invalid path.
    """
    path = checked_destination(path.rstrip("/") or "/")
    with site.gateway(fqrn) as client:
        holder = client.holder(fqrn, path)
    head = site.head(fqrn)
    revision, view = head.manifest.revision, head.revision
    missing = missing_directories(view, [path])
    if not missing and not replaces and not is_reserved(view, path):
        raise occupied(path)
    if holder is not None:
        until = f"{holder.expires:%Y-%m-%d %H:%M:%S} UTC"
        why = f"{holder.full_path} is leased by {holder.hostname!r} with key {holder.key_id} until {until} at most"
        return SeenPlace(path, False, why, revision)
    if not missing:
        return SeenPlace(path, True, f"revision {revision} has it", revision)
    if wanted is WantedPlace.FREE:
        return SeenPlace(path, True, f"does not exist in revision {revision}", revision)
    return SeenPlace(path, False, f"{missing[0]} is not there in revision {revision}: it is not reserved", revision)
