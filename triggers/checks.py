"""What a task can wait for. A kind of wait is one function here and one row of `CHECKS`.

A check looks once, takes nothing and changes nothing. The triggerer runs it in a thread; a sensor runs it itself first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from include.site.site import Site


@dataclass(frozen=True, slots=True)
class Observation:
    """Whether what is waited for is there, why, and what a sensor returns then."""

    ready: bool
    reason: str
    result: Any = None


Connect = Callable[[], "Site"]
"""Gives the clients of the site; a check that needs none does not call it."""


def lease_free(connect: Connect, repository: str, path: str) -> Observation:
    """No lease overlaps `path`; an empty path means the whole repository."""
    from include.gateway.client.client import GatewayClient
    from include.settings.urls import base_url

    site = connect()
    settings = site.settings
    address = base_url(site.secrets.get(settings.repository(repository).gateway), port=settings.gateway.port)
    place = f"{repository}{path or '/'}"
    # listing leases needs no key, so the client is given none
    with GatewayClient(address, "", "", retries=0) as client:
        holder = client.holder(repository, path)
    if holder is None:
        return Observation(True, f"{place} is free")
    return Observation(False, f"{place} is held by {holder.hostname!r} with key {holder.key_id}")


def object_stored(connect: Connect, store: str, key: str) -> Observation:
    """The object `key` is in a configured store; the result is its URL."""
    opened = connect().store(store)
    url = f"{opened.url}/{key}"
    meta = opened.head(key)
    reason = f"{url} does not exist" if meta is None else f"{url} has {meta.size} bytes"
    return Observation(meta is not None, reason, url)


def place_ready(connect: Connect, repository: str, path: str, wanted: str, replaces: bool = False) -> Observation:
    """The place of a tree is as `wanted`: `free` or `reserved`. Raises DestinationError if it can never be."""
    from include.site.path_state import WantedPlace, look_at

    seen = look_at(connect(), repository, path, WantedPlace(wanted), replaces=replaces)
    result = {"repository": repository, "path": seen.path, "revision": seen.revision, "reason": seen.reason}
    return Observation(seen.ready, seen.reason, result)


def unfrozen(connect: Connect, repository: str) -> Observation:
    """No freeze holds in the repository; it ends by a thaw or at its own end."""
    from include.cvmfs.coordination.freeze import look

    freeze = look(connect().repository_store(repository), datetime.now(UTC))
    return Observation(freeze is None, f"{repository} is {freeze or 'no longer frozen'}")


def paused(connect: Connect) -> Observation:  # noqa: ARG001
    """Nothing shows when it is over: the deadline ends the wait, and the task looks itself."""
    return Observation(False, "the pause is over")


class WaitCheck(NamedTuple):
    """A row of `CHECKS`: the function, and the seconds between two looks where the task does not say."""

    look: Callable[..., Observation]
    poll_s: float


CHECKS: Mapping[str, WaitCheck] = {
    "lease-free": WaitCheck(lease_free, 2.0),
    "object": WaitCheck(object_stored, 30.0),
    "place": WaitCheck(place_ready, 5.0),
    "thaw": WaitCheck(unfrozen, 15.0),
    "pause": WaitCheck(paused, 300.0),
}
"""By the key that Airflow's database stores for a deferred task: keys and the names of arguments never change."""
