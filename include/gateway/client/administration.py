"""Calls with an administrator's key: end leases, open and close a repository, collect garbage, and who did so."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from enum import Enum
from urllib.parse import quote

from include.gateway import protocol
from include.gateway.client.transport import Call, Reply, ReplyVerdict
from include.gateway.client.values import Lease, RepositoryInfo
from include.gateway.errors import NOT_SWITCHED
from include.gateway.protocol import LeasePath, checked_path

LOGGER = "nightshift.leases"

log = logging.getLogger(LOGGER)


class LeaseEvent(Enum):
    """What became of a lease. All but the first two are an end: the last line of a lease is one of these."""

    ACQUIRED = "lease acquired"
    RENEWED = "lease renewed"
    COMMITTED = "lease committed"
    DROPPED = "lease dropped"
    EXPIRED = "lease expired"
    ABANDONED = "lease abandoned"
    """It could not be given back, and ends by expiry."""


def record(event: LeaseEvent, lease: Lease, *, held_s: float, outcome: str, trace: str | None) -> None:
    """Write the line. ``held_s``: seconds since the lease was granted; ``trace``: the gateway's id of the call."""
    fields: dict[str, object] = {
        "repository": lease.repository,
        "path": lease.path or "/",
        "holder": lease.hostname,
        "key": lease.key_id,
        "held_s": round(held_s, 3),
        "outcome": outcome,
        **({"epoch": lease.epoch} if lease.epoch is not None else {}),
        **({"trace": trace} if trace else {}),
    }
    text = " ".join(f"{name}={value!r}" for name, value in fields.items())
    log.info("%s: %s", event.value, text, extra={"event": event.name.lower(), "fields": fields})


class Administration(ABC):
    """The part of a client that needs such a key; every call raises AdminKeyNeeded for another one."""

    _verdict: ReplyVerdict
    key_id: str

    @abstractmethod
    def _send(self, call: Call) -> Reply: ...

    @abstractmethod
    def repositories(self) -> list[RepositoryInfo]: ...

    def drop_by_path(self, repository: str, path: str) -> None:
        """End every lease at and below ``path``, no matter which key holds it."""
        place = LeasePath(repository, checked_path(path))
        url = f"{protocol.LEASES_BY_PATH}/{place}"
        what = f"end of all leases below {place} with key {self.key_id}"
        call = Call("DELETE", quote(url), what, signed=(protocol.API + url).encode(), repeatable=True)
        self._verdict.require_ok(self._send(call), what, place)

    def set_enabled(self, repository: str, *, enabled: bool) -> None:
        """Let a repository give out new leases, or not; those that are held stay as they are.

        A stock gateway replies ok also where it did not do it, so the repository is checked afterwards. It forgets it
        when it restarts: then every repository is enabled. Raises GatewayError.
        """
        what = f"{'enabling' if enabled else 'disabling'} {repository} with key {self.key_id}"
        body = protocol.format_enable(enabled)
        path = f"{protocol.REPOSITORIES}/{quote(repository)}"
        place = LeasePath(repository, "")
        self._verdict.require_ok(
            self._send(Call("POST", path, what, signed=body, body=body, repeatable=True)), what, place
        )
        if not any(known.name == repository and known.enabled is enabled for known in self.repositories()):
            raise NOT_SWITCHED(f"{what}: the gateway replied ok and did not do it; {NOT_SWITCHED.hint}")

    def collect_garbage(
        self, repository: str, *, timeout_s: float, revisions: int = 0, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Let a stock gateway run ``cvmfs_server gc -f -l``, and wait for it; the lines of its output.

        ``revisions``: how many before the current one stay; 0: those of the last 3 days, and the one that was current
        then. (The call also has a time, which ``date`` of the gateway's machine refuses in the form that it is handed
        on.) The gateway keeps commits of the repository out meanwhile, and not leases.

        Raises CollectionFailed for a run that failed or was refused, whose output the gateway keeps; ReplyLost for one
        that may be going on; NotOffered, and other GatewayErrors for one that was not begun.
        """
        what = f"garbage collection of {repository} with key {self.key_id}"
        body = protocol.format_collection(repository, revisions=revisions, dry_run=dry_run)
        reply = self._send(Call("POST", protocol.COLLECTION, what, signed=body, body=body, timeout_s=timeout_s))
        self._verdict.require_ok(reply, what, LeasePath(repository, ""))
        output = (reply.members or {}).get("output")
        if not isinstance(output, str):
            self._verdict.unexpected(reply, what)
        return tuple(output.splitlines())
