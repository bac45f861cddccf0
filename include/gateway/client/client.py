"""The client of a gateway, stock or our own: take a lease, commit, drop it; any other outcome is an error of the tree.

Protocol: docs/formats.md, gateway. The client keeps no lease: whoever takes one drops it, best by ``lease(...)``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote

import requests

from include.cvmfs.hashes import CATALOG, ObjectHash
from include.gateway.auth import authorization
from include.gateway.client.transport import API, Call, Reply, Transport
from include.gateway.client.values import Lease, LeaseInfo, RepositoryInfo
from include.gateway.duration import seconds
from include.gateway.errors import (
    BadRequest,
    CommitUnclear,
    GatewayError,
    LeaseLost,
    NotOffered,
    PathBusy,
    ReplyLost,
    ServerTrouble,
    UnexpectedReply,
    leaf_of,
)
from include.gateway.paths import LeasePath, checked_path, overlap

if TYPE_CHECKING:
    from include.cvmfs.commit import NewTag

T = TypeVar("T")

log = logging.getLogger(__name__)

API_VERSION = 2
EXPIRES_HEADER = "X-Nightshift-Expires-In"


class GatewayClient:
    """One gateway, one key. May be shared between threads.

    Times in seconds: ``timeout_s`` for each reply, ``commit_timeout_s`` for that of a commit; ``retries`` counts the
    repetitions of calls whose connection failed, where they do no harm.
    """

    def __init__(
        self,
        base_url: str,
        key_id: str,
        secret: str,
        *,
        timeout_s: float = 30.0,
        commit_timeout_s: float = 300.0,
        retries: int = 3,
        session: requests.Session | None = None,
    ) -> None:
        self.key_id = key_id
        self._commit_timeout_s = max(timeout_s, commit_timeout_s)
        self._can_renew: bool | None = None
        self._gone: set[str] = set()
        self._transport = Transport(
            base_url,
            lambda message: authorization(key_id, secret, message),
            timeout_s=timeout_s,
            retries=retries,
            session=session,
        )

    def __repr__(self) -> str:
        return f"GatewayClient({self.url!r}, key_id={self.key_id!r})"

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return self._transport.url

    def close(self) -> None:
        """Give back the connections. Leases are not touched."""
        self._transport.close()

    def ping(self) -> None:
        """Raises GatewayError unless a gateway answers at the URL."""
        reply = self._transport.send(Call("GET", "", "greeting", repeatable=True))
        if reply.members is None or "welcome" not in reply.members:
            self._unexpected(reply, "greeting")

    def repositories(self) -> list[RepositoryInfo]:
        """What the gateway serves, by name."""
        reply = self._call(Call("GET", "/repos", "list of repositories", repeatable=True))
        return self._parsed(
            reply,
            "list of repositories",
            lambda data: [RepositoryInfo.parse(name, data[name]) for name in sorted(data)],
        )

    def leases(self) -> list[LeaseInfo]:
        """The leases that are held now, whoever holds them, by path."""
        reply = self._call(Call("GET", "/leases", "list of leases", repeatable=True))
        return self._parsed(
            reply, "list of leases", lambda data: [LeaseInfo.parse(data[path]) for path in sorted(data)]
        )

    def holder(self, repository: str, path: str) -> LeaseInfo | None:
        """The lease that stands in the way of ``path``, the one that lasts longest if there are several."""
        wanted = checked_path(path)
        held = [lease for lease in self.leases() if lease.repository == repository and overlap(lease.path, wanted)]
        return max(held, key=lambda lease: lease.expires, default=None)

    def acquire(self, repository: str, path: str, *, hostname: str) -> Lease:
        """Take a lease on ``path`` (``""`` or ``/`` for all). ``hostname`` tells others who holds it.

        Raises PathBusy with the time left and the holder. After ReplyLost the lease may have been granted: a new
        attempt is then told PathBusy with ``own`` set, until it expires.
        """
        place = LeasePath(repository, checked_path(path))
        what = f"lease on {place} with key {self.key_id}"
        body = json.dumps({"path": str(place), "api_version": str(API_VERSION), "hostname": hostname}).encode()
        sent_at = time.monotonic()
        reply = self._transport.send(Call("POST", "/leases", what, signed=body, body=body))
        members = reply.members or {}
        if reply.status == 200 and members.get("status") == "path_busy":
            self._busy(reply, place, hostname)
        self._check(reply, what, place)
        token = members.get("session_token")
        if not isinstance(token, str) or not token or not _safe_in_url(token):
            self._unexpected(reply, what)
        version = members.get("max_api_version", API_VERSION)
        return Lease(
            token, repository, place.path, hostname, self.key_id,
            version if isinstance(version, int) else API_VERSION, _deadline(reply, sent_at),
        )  # fmt: skip

    def renew(self, lease: Lease, *, wanted_s: int | None = None) -> Lease:
        """Let the lease last ``wanted_s`` from now, or as long as the gateway allows. Raises NotOffered, LeaseLost."""
        what = f"renewal of the lease on {lease.full_path}"
        if self._can_renew is False:
            raise NotOffered(f"{what}: this gateway renews no leases; {NotOffered.cure}", **self._about(lease))
        body = b"" if wanted_s is None else json.dumps({"expires_in_sec": wanted_s}).encode()
        sent_at = time.monotonic()
        reply = self._transport.send(
            Call("PATCH", f"/leases/{lease.token}", what, signed=lease.token.encode(), body=body, repeatable=True)
        )
        if reply.status in (404, 405):
            self._can_renew = False
            raise NotOffered(f"{what}: this gateway renews no leases; {NotOffered.cure}", **self._about(lease))
        self._check(reply, what, lease)
        self._can_renew = True
        return replace(lease, expires_monotonic=_deadline(reply, sent_at))

    def commit(
        self,
        lease: Lease,
        old_root: ObjectHash,
        new_root: ObjectHash,
        *,
        tag: NewTag | None = None,
        generation: str = "",
    ) -> int:
        """Publish the change ``old_root`` -> ``new_root``; returns the new revision, and the lease is gone.

        ``generation``: of collections, when the change was judged; our own gateway refuses it once that has moved.

        A reply that was lost is asked for again. Raises CommitUnclear if it cannot be had any more: our own service
        remembers the outcome, a stock gateway does not. After any other error the lease stands and must be dropped.
        """
        what = f"commit on {lease.full_path} with key {self.key_id}"
        body = json.dumps(
            {
                "old_root_hash": old_root.with_suffix(CATALOG).text,
                "new_root_hash": new_root.with_suffix(CATALOG).text,
                "tag_name": tag.name if tag else "",
                "tag_channel": 0,
                "tag_description": tag.description if tag else "",
                **({"generation": generation} if generation else {}),
            }
        ).encode()
        call = Call(
            "POST",
            f"/leases/{lease.token}",
            what,
            signed=lease.token.encode(),
            body=body,
            timeout_s=self._commit_timeout_s,
        )
        try:
            return self._committed(self._transport.send(call), what, lease)
        except ReplyLost:
            log.warning("reply to the commit on %s lost, asking again", lease.full_path)
        try:
            return self._committed(self._transport.send(call), what, lease)
        except GatewayError as error:
            why = str(error)
        raise CommitUnclear(f"{what}: its reply was lost, and then: {why}; {CommitUnclear.cure}", **self._about(lease))

    def drop(self, lease: Lease) -> bool:
        """Give the lease back. False if it was gone already, which is as good; a known end costs no call."""
        if lease.token in self._gone:
            return False
        what = f"drop of the lease on {lease.full_path}"
        call = Call("DELETE", f"/leases/{lease.token}", what, signed=lease.token.encode(), repeatable=True)
        try:
            self._check(self._transport.send(call), what, lease)
        except LeaseLost:
            self._gone.add(lease.token)
            return False
        self._gone.add(lease.token)
        return True

    def drop_by_path(self, repository: str, path: str) -> None:
        """End every lease at and below ``path``, whoever holds it; needs an admin key."""
        place = LeasePath(repository, checked_path(path))
        url = f"/leases-by-path/{place}"
        what = f"end of all leases below {place} with key {self.key_id}"
        call = Call("DELETE", quote(url), what, signed=(API + url).encode(), repeatable=True)
        self._check(self._transport.send(call), what, place)

    @contextmanager
    def lease(self, repository: str, path: str, *, hostname: str) -> Iterator[Lease]:
        """A lease for the length of a block, dropped however the block ends.

        A drop that fails is only logged: what the block did or raised matters more, and the lease ends by itself.
        """
        lease = self.acquire(repository, path, hostname=hostname)
        try:
            yield lease
        finally:
            try:
                self.drop(lease)
            except GatewayError as error:
                log.warning("lease on %s not dropped, it ends by expiry: %s", lease.full_path, error)
            self._gone.discard(lease.token)

    # -- replies

    def _call(self, call: Call) -> Reply:
        reply = self._transport.send(call)
        self._check(reply, call.what)
        return reply

    def _committed(self, reply: Reply, what: str, lease: Lease) -> int:
        self._check(reply, what, lease)
        revision = (reply.members or {}).get("final_revision")
        if isinstance(revision, bool) or not isinstance(revision, int):
            self._unexpected(reply, what)
        self._gone.add(lease.token)
        return revision

    def _check(self, reply: Reply, what: str, about: Lease | LeasePath | None = None) -> None:
        """Raises the leaf that the reply stands for, unless it says ok."""
        members, fields = reply.members, self._about(about)
        if reply.status == 200 and members is not None:
            if members.get("status") == "ok":
                return
            reason = members.get("reason", members.get("status"))
            if isinstance(reason, str) and reason:
                detail = members.get("detail")
                raise self._error(
                    leaf_of(reason), what, reason, reply, fields, detail if isinstance(detail, str) else ""
                )
            self._unexpected(reply, what)
        text = reply.text.strip()
        if reply.status >= 500:
            raise self._error(LeaseLost if text == "invalid lease" else ServerTrouble, what, text, reply, fields)
        if reply.status in (404, 405):
            raise self._error(NotOffered, what, f"HTTP {reply.status}", reply, fields)
        if 400 <= reply.status < 500:
            raise self._error(BadRequest, what, text or f"HTTP {reply.status}", reply, fields)
        self._unexpected(reply, what)

    def _error(
        self,
        kind: type[GatewayError],
        what: str,
        reason: str,
        reply: Reply,
        fields: Mapping[str, str],
        detail: str = "",
    ) -> GatewayError:
        said = f"{reason}: {detail}" if detail else reason
        trace = f" (trace {reply.trace})" if reply.trace else ""
        return kind(f"{what}: {said[:1000]}; {kind.cure}{trace}", reason=reason, trace=reply.trace, **fields)

    def _busy(self, reply: Reply, place: LeasePath, hostname: str) -> NoReturn:
        try:
            remaining_s = max(0.0, seconds((reply.members or {}).get("time_remaining", 0)))
        except (ValueError, TypeError):
            remaining_s = 0.0
        try:
            holder = self.holder(place.repository, place.path)
        except GatewayError:
            holder = None
        own = holder is not None and holder.hostname == hostname and holder.key_id == self.key_id
        by = f" by {holder.hostname!r} with key {holder.key_id} on {holder.full_path}" if holder else ""
        raise PathBusy(
            f"lease on {place} with key {self.key_id}: path busy{by}, {remaining_s:.1f} s left; "
            + ("our own lease, whose reply was lost: wait until it expires" if own else PathBusy.cure),
            time_remaining_s=remaining_s,
            holder=holder,
            own=own,
            repository=place.repository,
            path=place.path,
            key_id=self.key_id,
            reason="path_busy",
            trace=reply.trace,
        )

    def _parsed(self, reply: Reply, what: str, parse: Callable[[Any], T]) -> T:
        data = (reply.members or {}).get("data")
        try:
            return parse({} if data is None else data)
        except (ValueError, KeyError, TypeError, AttributeError):
            self._unexpected(reply, what)

    def _unexpected(self, reply: Reply, what: str) -> NoReturn:
        raise UnexpectedReply(
            f"gateway {self.url}: {what}: HTTP {reply.status}, {reply.text[:200]!r}; {UnexpectedReply.cure}",
            trace=reply.trace,
        )

    def _about(self, about: Lease | LeasePath | None) -> dict[str, str]:
        fields = {"key_id": self.key_id}
        return fields if about is None else {**fields, "repository": about.repository, "path": about.path}


def _deadline(reply: Reply, sent_at: float) -> float | None:
    """Counted from before the request was sent, so that it is never later than the gateway's own."""
    try:
        return sent_at + float(reply.headers[EXPIRES_HEADER])
    except (KeyError, ValueError):
        return None


def _safe_in_url(token: str) -> bool:
    return token.isascii() and all(character.isalnum() or character in "=-_" for character in token)
