"""The client of a gateway, stock or our own: take a lease, commit, drop it; any other outcome is an error of the tree.

Protocol: docs/formats.md, gateway. A caller drops its lease, best by ``lease(...)``, which also renews it in time
where the gateway does that. The logger of ``audit`` records what became of each lease.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from secrets import token_urlsafe
from typing import TYPE_CHECKING, NoReturn

from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.gateway import protocol
from include.gateway.client.leases import Holdings, Keeper, Lease, LeaseEvent, LeaseInfo, RepositoryInfo
from include.gateway.client.transport import (
    Administration,
    Call,
    Reply,
    ReplyVerdict,
    Transport,
    deadline_of,
    epoch_of,
    queue_of,
)
from include.gateway.errors import LEASE_ENDING, CommitUnclear, GatewayError, LeaseLost, NotOffered, PathBusy, ReplyLost
from include.gateway.protocol import LeasePath, Offer, checked_path, lease_path
from include.settings.secrets import ConnectionSecrets, base_url

if TYPE_CHECKING:
    from include.cvmfs.commit.commit import NewTag

PORT = 4929


def open_gateway(
    connection: ConnectionSecrets,
    *,
    key: ConnectionSecrets | None = None,
    port: int = PORT,
    timeout_s: float = 30.0,
    retries: int = 3,
) -> GatewayClient:
    """A client, to be closed by the caller; nothing is sent yet.

    ``connection``, of type `cvmfs_gateway`: where the gateway is, and which authorities its certificate may have.
    ``key``: a connection with another key than its own, such as an administrator's. ``port``: what a connection without
    a port means. Raises BadConnection if ``connection`` names no host.
    """
    used, authorities = key or connection, connection.extra.get("authorities")
    return GatewayClient(
        base_url(connection, port=port),
        used.login or "",
        used.password or "",
        authorities=str(authorities) if authorities else None,
        timeout_s=timeout_s,
        retries=retries,
    )


log = logging.getLogger(__name__)

COMMIT_MARGIN_S = 5.0
_GREETING_S, _UNANSWERED = 5.0, 1000


class GatewayClient(Administration):
    """A gateway and a key. May be shared between threads.

    Times in seconds: ``timeout_s`` for each reply, ``commit_timeout_s`` for that of a commit; ``commit_margin_s``: what
    must be left of a lease when a commit begins, or as much as its longest commit took, but never more than half of
    what a lease lasts. ``retries`` counts the repetitions of calls whose connection failed, where they do no harm.
    ``authorities``: a PEM bundle for the gateway's certificate; None: the system's.
    """

    def __init__(
        self,
        base_url: str,
        key_id: str,
        secret: str,
        *,
        timeout_s: float = 30.0,
        commit_timeout_s: float = 300.0,
        commit_margin_s: float = COMMIT_MARGIN_S,
        retries: int = 3,
        authorities: str | None = None,
    ) -> None:
        self.key_id = key_id
        self._commit_timeout_s = max(timeout_s, commit_timeout_s)
        self._commit_margin_s = commit_margin_s
        self._longest_commit_s = 0.0
        self._can_renew: bool | None = None
        self._is_ours: bool | None = None
        self._offers: frozenset[Offer] = frozenset()
        self._unanswered: dict[tuple[LeasePath, str], str] = {}
        """By path and hostname, the number of the request for a lease whose reply was lost."""
        self._sign_body = partial(protocol.sign_body, secret)
        self._holdings = Holdings()
        self._transport = Transport(
            base_url,
            lambda message: protocol.authorization(key_id, secret, message),
            timeout_s=timeout_s,
            retries=retries,
            authorities=authorities,
        )
        self._verdict = ReplyVerdict(self._transport.url, key_id)

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
        reply = self._send(Call("GET", "", "greeting", repeatable=True))
        if reply.members is None or "welcome" not in reply.members:
            self._verdict.unexpected(reply, "greeting")

    def judges_bases(self) -> bool:
        """Tell whether this is our own service, which merges, judges the base of a commit and repeats it; found out
        once.

        A stock gateway does none of that. Raises GatewayError if no gateway answers.
        """
        if self._is_ours is None:
            self.ping()
        return bool(self._is_ours)

    def check_key(self) -> None:
        """Try key and secret by a signed call that changes nothing: a lease that there is not is given back.

        Raises AccessRefused if the gateway does not take them, and other GatewayErrors.
        """
        token, what = token_urlsafe(48), f"trial of key {self.key_id}"
        call = Call("DELETE", lease_path(token), what, signed=token.encode(), repeatable=True)
        with suppress(LeaseLost):
            self._verdict.require_ok(self._send(call), what)

    def repositories(self) -> list[RepositoryInfo]:
        """Return what the gateway serves, by name."""
        reply = self._call(Call("GET", protocol.REPOSITORIES, "list of repositories", repeatable=True))
        return self._verdict.parsed(
            reply,
            "list of repositories",
            lambda data: [RepositoryInfo.parse(name, data[name]) for name in sorted(data)],
        )

    def leases(self) -> list[LeaseInfo]:
        """The leases that are held now, of all holders, by path."""
        reply = self._call(Call("GET", protocol.LEASES, "list of leases", repeatable=True))
        return self._verdict.parsed(
            reply, "list of leases", lambda data: [LeaseInfo.parse(data[path]) for path in sorted(data)]
        )

    def holder(self, repository: str, path: str) -> LeaseInfo | None:
        """The lease that overlaps ``path``, the one that lasts longest if there are several."""
        place = checked_path(path)
        held = [
            lease for lease in self.leases() if lease.repository == repository and protocol.overlap(lease.path, place)
        ]
        return max(held, key=lambda lease: lease.expires, default=None)

    def acquire(self, repository: str, path: str, *, hostname: str) -> Lease:
        """Take a lease on ``path`` (``""`` or ``/`` for all). ``hostname`` shows others who holds it.

        Raises PathBusy with the time left and the holder. After ReplyLost the lease may have been granted: our own
        service gives it again to this client, at once or with the next attempt; of a stock gateway a new attempt gets
        PathBusy with ``own`` set, until it expires.
        """
        place = LeasePath(repository, checked_path(path))
        what = f"lease on {place} with key {self.key_id}"
        request = self._unanswered.get((place, hostname)) or secrets.token_hex(16)
        body = protocol.AcquireBody(str(place), str(protocol.API_VERSION), hostname, request).format()
        call = Call("POST", protocol.LEASES, what, signed=body, body=body, headers={protocol.WAITING_HEADER: "1"})
        sent_at = time.monotonic()
        reply = self._acquired(call, place, hostname, request)
        members = reply.members or {}
        if reply.status == 200 and members.get("status") == "path_busy":
            self._busy(reply, place, hostname)
        self._unanswered.pop((place, hostname), None)
        self._verdict.require_ok(reply, what, place)
        token = members.get("session_token")
        if not isinstance(token, str) or not token or not _safe_in_url(token):
            self._verdict.unexpected(reply, what)
        version = members.get("max_api_version")
        ends = deadline_of(reply, sent_at)
        lease = Lease(
            token, repository, place.path, hostname, self.key_id,
            max_api_version=version if isinstance(version, int) else protocol.API_VERSION,
            expires_monotonic=ends, lifetime_s=None if ends is None else ends - sent_at, epoch=epoch_of(reply),
        )  # fmt: skip
        self._holdings.granted(lease, sent_at=sent_at, trace=reply.trace)
        return lease

    def _acquired(self, call: Call, place: LeasePath, hostname: str, request: str) -> Reply:
        """The reply; if it was lost and the service knows a repetition, that of one more call."""
        try:
            return self._send(call)
        except ReplyLost:
            self._unanswered[place, hostname] = request
            if len(self._unanswered) > _UNANSWERED:
                self._unanswered.pop(next(iter(self._unanswered)))
            if not self._repeats_acquires():
                raise
        log.warning("reply to the acquire of %s lost, asking again", place)
        return self._send(call)

    def _repeats_acquires(self) -> bool:
        if self._is_ours is None:
            with suppress(GatewayError):
                self._send(Call("GET", "", "greeting", timeout_s=_GREETING_S))
        return Offer.REPEATED_ACQUIRE in self._offers

    def renew(self, lease: Lease) -> Lease:
        """Let the lease last as long as the gateway allows. Raises NotOffered, LeaseLost."""
        what = f"renewal of the lease on {lease.full_path}"
        if self._can_renew is False:
            raise NotOffered(f"{what}: this gateway renews no leases; {NotOffered.hint}", **self._verdict.about(lease))
        sent_at = time.monotonic()
        signed, headers = lease.token.encode(), self._body_signed(lease, b"")
        reply = self._send(
            Call("PATCH", lease_path(lease.token), what, signed=signed, body=b"", repeatable=True, headers=headers)
        )
        if reply.status in (404, 405):
            self._can_renew = False
            raise NotOffered(f"{what}: this gateway renews no leases; {NotOffered.hint}", **self._verdict.about(lease))
        try:
            self._verdict.require_ok(reply, what, lease)
        except LeaseLost as lost:
            self._holdings.note(lease, lost=lost)
            raise
        self._can_renew = True
        ends = deadline_of(reply, sent_at) or self._holdings.later(sent_at)
        renewed = replace(lease, expires_monotonic=ends)
        self._holdings.renewed(renewed, sent_at=sent_at, trace=reply.trace)
        return renewed

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
        remembers the outcome, a stock gateway does not. After any other error the lease is held and must be dropped.
        Nothing is sent, and LeaseLost raised, if the lease would end before the commit.
        """
        what = f"commit on {lease.full_path} with key {self.key_id}"
        self._require_time(lease, what)
        body = protocol.CommitBody(
            old_root.with_suffix(CATALOG).text,
            new_root.with_suffix(CATALOG).text,
            tag.name if tag else "",
            tag.description if tag else "",
            generation,
        ).format()
        call = Call(
            "POST",
            lease_path(lease.token),
            what,
            signed=lease.token.encode(),
            body=body,
            timeout_s=self._commit_timeout_s,
            headers=self._body_signed(lease, body),
        )
        began = time.monotonic()
        self._holdings.note(lease, committing=True)
        try:
            revision = self._settled(call, what, lease)
        except GatewayError as error:
            self._holdings.note(lease, trouble=f"a commit that failed: {error.code}")
            raise
        finally:
            self._holdings.note(lease, committing=False)
        self._longest_commit_s = max(self._longest_commit_s, time.monotonic() - began)
        return revision

    def _settled(self, call: Call, what: str, lease: Lease) -> int:
        try:
            return self._committed(self._send(call), what, lease)
        except ReplyLost:
            log.warning("reply to the commit on %s lost, asking again", lease.full_path)
        try:
            return self._committed(self._send(call), what, lease)
        except GatewayError as error:
            why = str(error)
        raise CommitUnclear(
            f"{what}: its reply was lost, and then: {why}; {CommitUnclear.hint}", **self._verdict.about(lease)
        )

    def drop(self, lease: Lease) -> bool:
        """Give the lease back. False if it was gone already, which is as good; a known end costs no call."""
        if self._holdings.has_ended(lease):
            return False
        what = f"drop of the lease on {lease.full_path}"
        call = Call("DELETE", lease_path(lease.token), what, signed=lease.token.encode(), repeatable=True)
        reply = self._send(call)
        try:
            self._verdict.require_ok(reply, what, lease)
        except LeaseLost:
            self._holdings.ended(lease, LeaseEvent.EXPIRED, "gone when it was to be dropped", trace=reply.trace)
            return False
        self._holdings.ended(lease, LeaseEvent.DROPPED, "given back", trace=reply.trace)
        return True

    def abandon(self, lease: Lease, why: str) -> None:
        """Leave a lease to its end: it is neither dropped nor renewed any more."""
        self._holdings.ended(lease, LeaseEvent.ABANDONED, why)

    @contextmanager
    def lease(self, repository: str, path: str, *, hostname: str) -> Iterator[Lease]:
        """A lease for the length of a block, renewed in the background in time, and dropped however the block ends.

        A commit in it is bounded by what the lease lasts when it begins: while it runs nothing is renewed.
        A drop that fails is only logged: what the block did or raised matters more, and the lease ends by itself.
        """
        lease = self._holdings.with_deadline(self.acquire(repository, path, hostname=hostname), self._asked_left_s)
        try:
            with self._renewed(lease):
                yield lease
        finally:
            try:
                self.drop(lease)
            except GatewayError as error:
                log.warning("lease on %s not dropped, it ends by expiry: %s", lease.full_path, error)
                self._holdings.ended(lease, LeaseEvent.ABANDONED, f"not dropped: {error.code}")
            self._holdings.forget(lease)

    @contextmanager
    def taken_over(self, lease: Lease) -> Iterator[Lease]:
        """A lease that another process took, renewed at once and then as in ``lease``, and not dropped at the end.

        Raises LeaseLost.
        """
        self._holdings.adopted(lease)
        with suppress(NotOffered):
            lease = self.renew(lease)
        with self._renewed(lease):
            yield lease

    def _renewed(self, lease: Lease) -> AbstractContextManager[object]:
        if self._can_renew is False:
            return nullcontext()
        left_s, may = self._holdings.left_s, self._holdings.may_be_renewed
        return Keeper(lease, self.renew, lambda: left_s(lease)[1], lambda: may(lease))

    def left_s(self, lease: Lease) -> float | None:
        """Seconds until a lease ends, its renewals included; None if the gateway does not report it."""
        return self._holdings.left_s(lease)[0]

    def _body_signed(self, lease: Lease, body: bytes) -> dict[str, str]:
        """The header that covers the body, which the protocol's own signature leaves out; if the gateway takes it."""
        if Offer.BODY_SIGNATURE not in self._offers:
            return {}
        return {protocol.BODY_SIGNATURE_HEADER: self._sign_body(lease.token, body)}

    # -- time

    def _asked_left_s(self, lease: Lease) -> float | None:
        """Return what is left of a lease by the gateway's own wall clock, however right that is; None without an
        answer."""
        what = f"end of the lease on {lease.full_path}"
        try:
            reply = self._send(Call("GET", lease_path(lease.token), what, repeatable=True))
            expires = LeaseInfo.parse((reply.members or {})["data"]).expires
            # a Date has no fractions: up to a second of it may be over already
            return (expires - parsedate_to_datetime(reply.headers["Date"])).total_seconds() - 1
        except (GatewayError, ValueError, KeyError, TypeError):
            return None

    def _require_time(self, lease: Lease, what: str) -> None:
        """Begin no commit that cannot end before the lease does. Raises LeaseLost."""
        held = self._holdings.known(lease)
        if held is not None and held.lost is not None:
            raise LeaseLost(f"{what}: {held.lost}", reason=held.lost.reason, **self._verdict.about(lease))
        left_s, lasts_s = self._holdings.left_s(lease)
        if left_s is None:
            return
        needed_s = max(self._commit_margin_s, self._longest_commit_s)
        needed_s = min(needed_s, lasts_s / 2) if lasts_s is not None else needed_s
        if left_s < needed_s and self._can_renew is not False:
            try:
                self.renew(lease)
                left_s = self._holdings.left_s(lease)[0] or 0.0
            except NotOffered:
                pass
        if left_s < needed_s:
            raise LEASE_ENDING(
                f"{what}: {max(0.0, left_s):.1f} s of the lease are left, and a commit may take {needed_s:.1f} s; "
                f"{LEASE_ENDING.hint}",
                **self._verdict.about(lease),
            )

    # -- replies

    def _send(self, call: Call) -> Reply:
        reply = self._transport.send(call)
        if self._is_ours is None and reply.status < 500:
            self._is_ours = reply.trace is not None
        self._offers = protocol.parse_offers(reply.headers.get(protocol.OFFERS_HEADER, "")) or self._offers
        return reply

    def _call(self, call: Call) -> Reply:
        reply = self._send(call)
        self._verdict.require_ok(reply, call.what)
        return reply

    def _committed(self, reply: Reply, what: str, lease: Lease) -> int:
        self._verdict.require_ok(reply, what, lease)
        revision = (reply.members or {}).get("final_revision")
        if isinstance(revision, bool) or not isinstance(revision, int):
            self._verdict.unexpected(reply, what)
        self._holdings.ended(lease, LeaseEvent.COMMITTED, f"revision {revision}", trace=reply.trace)
        return revision

    def _busy(self, reply: Reply, place: LeasePath, hostname: str) -> NoReturn:
        try:
            remaining_s = max(0.0, protocol.seconds((reply.members or {}).get("time_remaining", 0)))
        except (ValueError, TypeError):
            remaining_s = 0.0
        try:
            holder = self.holder(place.repository, place.path)
        except GatewayError:
            holder = None
        same = holder is not None and holder.hostname == hostname and holder.key_id == self.key_id
        # a hostname may name no more than a user on a host, who may publish more than once at the same time
        own = same and ((place, hostname) in self._unanswered or protocol.TaskName.parse(hostname) is not None)
        if not same:
            self._unanswered.pop((place, hostname), None)
        by = f" by {holder.hostname!r} with key {holder.key_id} on {holder.full_path}" if holder else ""
        raise PathBusy(
            f"lease on {place} with key {self.key_id}: path busy{by}, {remaining_s:.1f} s left{queue_of(reply)}; "
            + ("our own lease, whose reply was lost: wait until it expires" if own else PathBusy.hint),
            time_remaining_s=remaining_s,
            holder=holder,
            own=own,
            repository=place.repository,
            path=place.path,
            key_id=self.key_id,
            reason="path_busy",
            trace=reply.trace,
        )


def _safe_in_url(token: str) -> bool:
    return token.isascii() and all(character.isalnum() or character in "=-_" for character in token)
