"""Read the index of a build from its slot's store; signed ones only after their signature."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date

from include.nightlies.errors import BadIndex, BuildMissing
from include.nightlies.index import MAX_INDEX_BYTES, BuildIndex
from include.nightlies.signed import MAX_SIGNATURE_BYTES, public_key, require_signature
from include.publishers.connect import Connections
from include.settings.model import Slot
from include.settings.templates import fill
from include.storage.errors import NotFound
from include.storage.store import Store

LOOKS = 3
PAUSE_S = 1.0
"""A run that waits for nothing looks this often at an index that may be half written, with these pauses."""


def index_place(slot: Slot, build_date: date) -> str:
    """The key of a build's index in the slot's store."""
    return fill(slot.index, {"slot": slot.name, "date": build_date.isoformat()})


def read_index(connections: Connections, slot: Slot, wanted: date) -> tuple[BuildIndex, str]:
    """The build of a slot's date and the URL of its index.

    Raises BuildMissing, BadIndex (where the slot asks for a signature, also for a missing or wrong one), or
    StoreError.
    """
    store, key = connections.store(slot.store), index_place(slot, wanted)
    url = f"{store.url}/{key}"
    try:
        data = _bounded(store, key, MAX_INDEX_BYTES)
    except NotFound:
        raise BuildMissing(slot.name, wanted, url) from None
    if slot.index_signature is not None:
        signer = slot.index_signature
        try:
            signature = _bounded(store, key + signer.suffix, MAX_SIGNATURE_BYTES)
        except NotFound:
            what = f"has no signature at {url}{signer.suffix}"
            raise BadIndex(url, what, "Let the builder sign it, and write both.") from None
        require_signature(data, signature, public_key(signer.public_key), file=url)
    within = connections.site.store(slot.store).url
    return BuildIndex.parse(data, slot=slot.name, build_date=wanted, file=url, store=within), url


def read_again(
    connections: Connections, slot: Slot, wanted: date, *, pause: Callable[[float], object] = time.sleep
) -> tuple[BuildIndex, str]:
    """As `read_index`, but one that cannot be used is looked at again: it may be written in this very moment."""
    for _ in range(LOOKS - 1):
        try:
            return read_index(connections, slot, wanted)
        except BadIndex:
            pause(PAUSE_S)
    return read_index(connections, slot, wanted)


def index_version(connections: Connections, slot: Slot, wanted: date) -> object:
    """What changes whenever the index or its signature is written anew; None while there is no index."""
    store, key = connections.store(slot.store), index_place(slot, wanted)
    keys = [key] if slot.index_signature is None else [key, key + slot.index_signature.suffix]
    found = [store.head(one) for one in keys]
    return None if found[0] is None else tuple((one.version, one.size, one.modified) if one else None for one in found)


def _bounded(store: Store, key: str, limit: int) -> bytes:
    """The object, or just more than `limit` bytes of it, which whoever parses them refuses by their number."""
    data = bytearray()
    for block in store.stream(key):
        data += block
        if len(data) > limit:
            break
    return bytes(data)
