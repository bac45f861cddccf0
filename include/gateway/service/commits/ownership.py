"""A single gateway per repository where the store keeps no conditional writes; any number of them where it does.

Where it keeps them, a gateway that loses the switch merges again on the winner's revision; there are no owners. Where
it does not, a document in the store names the repository's holder. The holder renews it; a process that finds it
renewed refuses to start, and one that finds it unrenewed takes it over. The holder reads it again before every switch.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field, TypeAdapter

from include.cvmfs.coordination.freeze import WholeNumber, read_document
from include.cvmfs.errors import FormatError
from include.gateway.service.clock import SystemClock
from include.gateway.service.config import ConfigError
from include.storage.errors import NotFound, StoreError
from include.storage.probe import probe
from include.storage.store import Store

log = logging.getLogger(__name__)

KEY = ".nightshift/gateway"
FORMAT = 1
RENEWED_EVERY_S = 5.0
PATIENCE_S = 20.0
"""A document that stays as it is for so long is that of a dead process."""
_WRITERS = 4


class Owned(ConfigError):
    """Another gateway publishes into the repository, and the store would not keep the two apart."""

    code = "repository-owned"


@dataclass(frozen=True, slots=True)
class GatewayOwner:
    """The document. ``id`` is of one run of the process; ``count`` goes up with every renewal."""

    id: str
    host: str
    pid: Annotated[WholeNumber, Field(gt=0, lt=1 << 31)]
    boot: str
    since: str
    count: WholeNumber = 0

    @classmethod
    def of_this_process(cls) -> GatewayOwner:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(secrets.token_hex(16), socket.gethostname(), os.getpid(), SystemClock().boot, since)

    def format(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> GatewayOwner | None:
        """None for what is no such document: then no process renews it either."""
        try:
            return read_document(_READER, data, what="owner", version=FORMAT)
        except FormatError:
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"

    def is_dead_here(self) -> bool:
        """Tell whether it was a process of this machine that is no more."""
        if self.host != socket.gethostname() or not self.boot or self.boot != SystemClock().boot:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


_READER = TypeAdapter(GatewayOwner)


class Ownership:
    """Held from ``claim`` until ``release``; renewed by a thread of its own."""

    def __init__(self, store: Store, fqrn: str, owner: GatewayOwner, *, renewed_every_s: float) -> None:
        self._store = store
        self._fqrn = fqrn
        self._owner = owner
        self._every_s = renewed_every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"gateway-owns-{fqrn}", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Raises Owned if the repository is another's by now, StoreError if that cannot be found out."""
        holder = _read(self._store)
        if holder is None or holder.id != self._owner.id:
            raise Owned(
                f"{self._fqrn} was taken over by {holder or 'another gateway'}; this gateway must not publish into it"
            )

    def release(self) -> None:
        """Let go of it, so that the next one need not wait."""
        self._ended.set()
        self._thread.join()
        try:
            self.require()
            self._store.delete([KEY])
        except (Owned, StoreError) as error:
            log.warning("ownership not released", extra={"fields": {"repository": self._fqrn, "detail": str(error)}})

    def _renew(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self.require()
                self._owner = replace(self._owner, count=self._owner.count + 1)
                self._store.put(KEY, self._owner.format())
            except Owned as error:
                log.error("ownership lost", extra={"fields": {"repository": self._fqrn, "detail": str(error)}})
                return
            except StoreError as error:
                log.warning("ownership not renewed", extra={"fields": {"repository": self._fqrn, "detail": str(error)}})


def claim(
    store: Store,
    fqrn: str,
    *,
    patience_s: float = PATIENCE_S,
    renewed_every_s: float = RENEWED_EVERY_S,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Store, Ownership | None]:
    """The store as it was seen to behave, and the ownership if one is needed.

    Raises Owned, naming the holder, if another gateway is at work there; StoreError.
    """
    traits = store.traits
    if traits is None:
        traits = probe(store, writers=_WRITERS)
        store = store.with_traits(traits)
    if traits.replace:
        return store, None
    holder = _read(store)
    if holder is not None and not holder.is_dead_here():
        log.info("waiting whether the holder lives", extra={"fields": {"repository": fqrn, "holder": str(holder)}})
        _require_dead(store, fqrn, holder, patience_s, sleep)
    owner = GatewayOwner.of_this_process()
    store.put(KEY, owner.format())
    sleep(min(1.0, renewed_every_s))  # another process may have found it free at the same moment
    current = _read(store)
    if current is None or current.id != owner.id:
        raise Owned(_refusal(fqrn, current))
    return store, Ownership(store, fqrn, owner, renewed_every_s=renewed_every_s)


def _require_dead(
    store: Store, fqrn: str, holder: GatewayOwner, patience_s: float, sleep: Callable[[float], None]
) -> None:
    waited = 0.0
    step = min(0.5, patience_s / 4)
    while waited < patience_s:
        sleep(step)
        waited += step
        current = _read(store)
        if current is None:
            return
        if current != holder:
            raise Owned(_refusal(fqrn, current))


def _refusal(fqrn: str, holder: GatewayOwner | None) -> str:
    return (
        f"{fqrn} is published into by another gateway ({holder}), and its store keeps no conditional writes: one would "
        "undo the other's revisions. Stop that gateway, or move the repository to a store that keeps them"
    )


def _read(store: Store) -> GatewayOwner | None:
    try:
        return GatewayOwner.parse(store.get(KEY))
    except NotFound:
        return None
