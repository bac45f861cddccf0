"""The calls on leases: take, list, show, renew, commit, drop; and who waits for one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from include.gateway import protocol
from include.gateway.service import requests
from include.gateway.service.commits.queue import Point
from include.gateway.service.freezes import Freezes
from include.gateway.service.http.payloads import read_body, remote_of
from include.gateway.service.http.serving import OFFERS, QueuePlace, ServiceContext
from include.gateway.service.leases.lease_rows import LeaseRow, token_of
from include.gateway.service.leases.lease_table import Busy, digest_of
from include.gateway.service.telemetry import note


class LeaseCalls:
    """Each reads its request, asks for the signature, changes the ``LeaseTable``, and answers."""

    def __init__(self, serving: ServiceContext) -> None:
        self._serving = serving
        self._table = serving.table
        self._freezes = Freezes(lambda: serving.config, serving.table.clock)

    async def leases(self, _: Request) -> Response:
        """Return who holds which path, and until when."""
        return requests.raw(await asyncio.to_thread(self._table.listing))

    async def waiting(self, _: Request) -> Response:
        """Return who waits for a busy path, first come first."""

        def remaining_s(path: protocol.LeasePath) -> float:
            return self._table.remaining_ns(path) / protocol.SECOND

        places = await asyncio.to_thread(self._serving.waiting.places, remaining_s)
        return requests.ok(data=[waiting_entry(place) for place in places])

    async def acquire(self, request: Request) -> Response:
        """Take a lease on a path."""
        serving, body = self._serving, await read_body(request)
        key_id = serving.signed_by(request, body)
        asked = requests.LeaseRequest.parse(body, remote=remote_of(request))
        if asked.path.repository not in serving.config.repositories:
            # the artefact is the stock gateway's, which clients know
            raise requests.Refused("repository not found: %!w(<nil>)")
        serving.access.check_lease(key_id, asked.path)
        await self._freezes.require_thawed(asked.path.repository)
        if _is_gone(request):
            raise ClientDisconnect  # no caller would get the token
        outcome = await asyncio.wrap_future(
            self._table.acquire(
                asked.path, key_id=key_id, hostname=asked.hostname, version=asked.version,
                most=serving.config.limits.leases_per_key,
                token=partial(token_of, serving.access.secret(key_id), body) if asked.request else None,
            )
        )  # fmt: skip
        fields = {"path": str(asked.path), "key": key_id, "hostname": asked.hostname}
        offers = {protocol.OFFERS_HEADER: OFFERS}
        if isinstance(outcome, Busy):
            place = serving.waiting.refused(asked.path, key_id, asked.hostname, outcome.remaining_ns / protocol.SECOND)
            serving.metrics.lease_events.labels("busy").inc()
            remaining_s = outcome.remaining_ns / protocol.SECOND
            note(request, "lease refused: path busy", **fields, remaining_s=remaining_s, position=place.position)
            members = {"status": "path_busy", "time_remaining": protocol.format_duration(outcome.remaining_ns)}
            # Byte for byte the stock gateway's, unless the caller's header asks for more.
            more = _place(place) if protocol.WAITING_HEADER in request.headers else {}
            return requests.answer({**members, **more}, headers=offers)
        serving.waiting.granted(asked.path, key_id, asked.hostname)
        serving.metrics.lease_events.labels("granted").inc()
        note(request, "lease granted", **fields, epoch=outcome.row.epoch)
        return requests.answer(
            {"status": "ok", "session_token": outcome.token, "max_api_version": asked.version},
            headers={
                protocol.EXPIRES_HEADER: f"{outcome.left_s:.3f}",
                protocol.EPOCH_HEADER: str(outcome.row.epoch),
                **offers,
            },
        )  # fmt: skip

    async def lease(self, request: Request) -> Response:
        """A lease by its token."""
        row = self._table.valid(digest_of(_token_or_500(request.path_params["token"])))
        if row is None:
            raise requests.Malformed(500, requests.INVALID_LEASE)
        return requests.answer({"data": listed(row)})

    async def commit(self, request: Request) -> Response:
        """Publish a change under a lease."""
        serving = self._serving
        key_id, token = serving.signed_token(request)
        body = await read_body(request)
        serving.require_signed_body(request, key_id, token, body)
        order = requests.CommitRequest.parse(body)
        serving.on_point(Point.REQUEST_READ)
        revision = await serving.commits.commit(
            digest_of(requests.checked_token(token)), order, serving.may_use(key_id)
        )
        note(request, "committed", key=key_id, revision=revision, new_root=order.new_root_hash)
        serving.on_point(Point.REPLYING)
        return requests.ok(final_revision=revision)

    async def renew(self, request: Request) -> Response:
        """Let a lease last longer."""
        serving = self._serving
        key_id, token = serving.signed_token(request)
        body = await read_body(request)
        serving.require_signed_body(request, key_id, token, body)
        wanted_s = requests.parse_renewal(body)
        row = await asyncio.wrap_future(
            self._table.renew(digest_of(requests.checked_token(token)), serving.may_use(key_id), wanted_s)
        )
        expires = protocol.format_time(row.expires_ms)
        serving.metrics.lease_events.labels("renewed").inc()
        note(request, "lease renewed", path=row.full_path, key=key_id, epoch=row.epoch, expires=expires)
        longest_s = serving.config.max_lease_time_s
        left_s = longest_s if wanted_s is None else min(wanted_s, longest_s)
        return requests.answer(
            {"status": "ok", "data": {"expires": expires}}, headers={protocol.EXPIRES_HEADER: f"{left_s:.3f}"}
        )

    async def drop(self, request: Request) -> Response:
        """Give a lease back."""
        serving = self._serving
        key_id, token = serving.signed_token(request)
        row = await asyncio.wrap_future(
            self._table.drop(digest_of(requests.checked_token(token)), serving.may_use(key_id))
        )
        serving.metrics.lease_events.labels("dropped").inc()
        note(request, "lease dropped", path=row.full_path, key=key_id, epoch=row.epoch)
        return requests.ok()


def _is_gone(request: Request) -> bool:
    """Tell whether the caller hung up, as ``request.is_disconnected`` does, which takes a tenth of a lease call."""
    event: Any = request.receive()  # a coroutine that would wait for what comes after the body: one step of it tells
    try:
        event.send(None)
    except StopIteration as arrived:
        return bool(arrived.value["type"] == "http.disconnect")
    event.close()
    return False


def listed(row: LeaseRow) -> dict[str, str]:
    """A lease as it is listed, without its token."""
    return {
        "key_id": row.key_id,
        "path": row.full_path,
        "expires": protocol.format_time(row.expires_ms),
        "hostname": row.hostname,
    }


def waiting_entry(place: QueuePlace) -> dict[str, object]:
    """An entry of the list of waiting publishers."""
    return {
        "path": str(place.waiter.path),
        "key_id": place.waiter.key_id,
        "hostname": place.waiter.hostname,
        "position": place.position,
        "waited": _duration(place.waited_s),
        "expected_wait": _duration(place.expected_s),
    }


def _place(place: QueuePlace) -> dict[str, object]:
    return {"position": place.position, "waiting": place.waiting, "expected_wait": _duration(place.expected_s)}


def _duration(seconds: float) -> str:
    return protocol.format_duration(round(seconds * 1000) * 1_000_000)


def _token_or_500(text: str) -> str:
    """Reply of the stock gateway to a GET of a token that it does not know."""
    try:
        return requests.checked_token(text)
    except requests.Refused as refused:
        raise requests.Malformed(500, refused.reason) from None
