"""The payload routes (docs/formats.md, object packs): a request is read within bounds, verified and stored as it comes.

Answers are the stock gateway's, except for damage: that one replies ok to most damaged packs and never answers a body
that is cut; here nothing counts as stored that was not verified, and every refusal names what is wrong.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from include.cvmfs.coordination.generation import look
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.paths import is_below
from include.errors import code_of
from include.gateway.protocol import LeasePath, checked_path, signature_fits, split_authorization
from include.gateway.service import requests
from include.gateway.service.commits.intake import (
    HEADER_TOO_BIG,
    MAX_HEADER_BYTES,
    NAMED_OBJECT,
    PackError,
    PackReader,
    PackReceiver,
)
from include.gateway.service.config import AcceptedKey, ServiceConfig
from include.gateway.service.leases.lease_rows import LeaseRow, Received
from include.gateway.service.leases.lease_table import LeaseTable, digest_of
from include.gateway.service.telemetry import Metrics, note
from include.storage.errors import StoreError
from include.storage.store import Store

_NO_SECRET = "no such key"  # noqa: S105 - compared with all the same, so that an unknown key takes as long as a known one


class Access:
    """The keys of a configuration."""

    def __init__(self, config: ServiceConfig) -> None:
        self._secrets = {key.id: key.secret for key in config.all_keys()}
        self._gateway_admins = {key.id for key in config.keys if key.admin}
        self._of_repository: dict[str, dict[str, AcceptedKey]] = {
            name: {key.id: key for key in repository.keys} for name, repository in config.repositories.items()
        }

    def authenticate(self, header: str | None, message: bytes) -> str:
        """The id of the key that signed ``message``. Raises Refused, with one reason for all that can be wrong."""
        fields = split_authorization(header)
        key_id, signature = fields or ("", "")
        secret = self._secrets.get(key_id)
        fits = signature_fits(signature, _NO_SECRET if secret is None else secret, message)
        if fields is None or secret is None or not fits:
            raise requests.Refused("invalid_hmac")
        return key_id

    def authenticate_admin(self, header: str | None, message: bytes, repository: str) -> str:
        """The id of the admin key that signed ``message``. Raises Refused with the reason."""
        fields = split_authorization(header)
        if fields is None:
            raise requests.Refused("invalid_authorization_header")
        key_id, signature = fields
        if key_id not in self._secrets:
            raise requests.Refused("invalid_key")
        if not self.is_admin(key_id, repository):
            raise requests.Refused("no_admin_key")
        if not signature_fits(signature, self._secrets[key_id], message):
            raise requests.Refused("invalid_hmac")
        return key_id

    def secret(self, key_id: str) -> str:
        """The secret of a key that ``authenticate`` gave back."""
        return self._secrets[key_id]

    def is_admin(self, key_id: str, repository: str) -> bool:
        """Tell whether the key may end the leases of others in ``repository``."""
        key = self._of_repository.get(repository, {}).get(key_id)
        return key_id in self._gateway_admins or (key is not None and key.admin)

    def check_lease(self, key_id: str, lease: LeasePath) -> None:
        """Raises Refused unless the key may lease the path."""
        key = self._of_repository[lease.repository].get(key_id)
        if key is None:
            raise requests.Refused("authorization error: invalid_key")
        if not is_below(lease.path, checked_path(key.path)):
            raise requests.Refused("authorization error: invalid_path")


_BODY_TIMEOUT_S = 30.0


async def read_body(request: Request) -> bytes:
    """The whole body. Raises Malformed above the limit, or when it does not arrive in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for block in request.stream():
                body += block
                if len(body) > requests.BODY_BYTES:
                    raise requests.Malformed(413, f"request body too large: at most {requests.BODY_BYTES} bytes")
    except TimeoutError:
        raise requests.Malformed(408, "request body did not arrive in time") from None
    return bytes(body)


def signature_of(request: Request) -> str | None:
    """The Authorization header."""
    return request.headers.get("authorization")


def remote_of(request: Request) -> str:
    """Address and port of the caller."""
    return f"{request.client.host}:{request.client.port}" if request.client else "unknown"


def is_utf8(raw_path: bytes) -> bool:
    """Tell whether a raw path is UTF-8; the server replaces what is not."""
    try:
        unquote_to_bytes(raw_path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


T = TypeVar("T")

_GATHERED_BYTES = 1 << 20
_LOOK_AT_LEASE_EVERY_S = 5.0
_THREADS = 4096  # made as they are needed; the turns of the repositories bound them


class Payloads:
    """Takes some payloads of each repository at a time; its others wait, unread, and no other repository does.

    The lease is checked before, meanwhile and after.
    """

    def __init__(
        self,
        config: ServiceConfig,
        signed_by: Callable[[Request, bytes], str],
        access: Callable[[], Access],
        table: LeaseTable,
        metrics: Metrics,
    ) -> None:
        """``signed_by`` gives the key that signed a message, within limits; ``access`` the keys as they are now."""
        self._config = config
        self._signed_by = signed_by
        self._access = access
        self._table = table
        self._metrics = metrics
        self._at_once = config.payloads_at_once
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway-payload")
        self._stores: dict[str, tuple[object, Store]] = {}
        self._opening = threading.Lock()

    def reconfigure(self, config: ServiceConfig) -> None:
        """Serve the repositories of this configuration from the next payload on."""
        self._config = config

    def close(self) -> None:
        self._threads.shutdown()

    async def by_token(self, request: Request) -> Response:
        """``POST /payloads/<token>``: the signature covers the token."""
        token: str = request.path_params["token"]
        key_id = self._signed_by(request, token.encode("utf-8", "replace"))
        body = _Body(request, self._config)
        message = requests.PayloadMessage.parse(await body.exactly(_message_size(request)))
        return await self._take(request, body, key_id, requests.checked_token(token), message)

    async def legacy(self, request: Request) -> Response:
        """``POST /payloads``: the signature covers the message, which holds the token. Stock clients call this one."""
        body = _Body(request, self._config)
        text = await body.exactly(_message_size(request))
        key_id = self._signed_by(request, text)
        message = requests.PayloadMessage.parse(text)
        return await self._take(request, body, key_id, requests.checked_token(message.token), message)

    async def _take(
        self, request: Request, body: _Body, key_id: str, token: str, message: requests.PayloadMessage
    ) -> Response:
        digest = digest_of(token)
        repository = self._lease(digest, key_id).repository
        async with self._turns.setdefault(repository, asyncio.Semaphore(self._at_once)):
            began = time.perf_counter()
            row = self._lease(digest, key_id)
            try:
                received, generation = await self._receive(body, message, row, lambda: self._lease(digest, key_id))
            except (PackError, StoreError, CvmfsError, OSError) as error:
                self._metrics.payloads.labels(row.repository, "refused").inc()
                raise _refusal(error) from error
        total = await asyncio.wrap_future(self._table.add_payload(digest, row.epoch, received, generation))
        new = received.chunks_added + received.catalogs_added
        self._metrics.payloads.labels(row.repository, "stored").inc()
        self._metrics.payload_objects.labels(row.repository, "new").inc(new)
        self._metrics.payload_objects.labels(row.repository, "there").inc(received.chunks_duplicated)
        self._metrics.payload_bytes.labels(row.repository).inc(received.uploaded_bytes)
        note(
            request,
            "payload stored",
            path=row.full_path,
            key=key_id,
            objects_new=new,
            objects_reused=received.chunks_duplicated,
            bytes_uploaded=received.uploaded_bytes,
            payloads=total.payloads,
            stored_s=round(time.perf_counter() - began, 3),
        )
        return requests.ok()

    async def _receive(
        self, body: _Body, message: requests.PayloadMessage, row: LeaseRow, require_lease: Callable[[], LeaseRow]
    ) -> tuple[Received, str]:
        """All objects of the body into the store; the generation of collections that was seen before the first."""
        looked = time.monotonic()
        intake: PackReceiver | None = None
        generation = ""
        try:
            async for block in body.blocks():
                if intake is None:
                    store, generation = await self._in_thread(self._opened, row)
                    intake = PackReceiver(
                        store,
                        message.header_size,
                        message.digest,
                        length=body.left_at_pack,
                        folder=self._config.state.parent,
                    )
                await self._in_thread(intake.feed, block)
                if time.monotonic() - looked > _LOOK_AT_LEASE_EVERY_S:
                    require_lease()
                    looked = time.monotonic()
            if intake is None:
                # Nothing came: right for a pack without objects, which needs no store.
                PackReader(message.header_size, message.digest).finish()
                return Received(1), ""
            return await self._in_thread(intake.finish), generation
        except BaseException as fault:
            if intake is not None:
                await self._in_thread(intake.abort, fault)
            raise

    def _opened(self, row: LeaseRow) -> tuple[Store, str]:
        """The repository's store, and how far collections are: the commit judges by that what came."""
        configured = self._config.repositories.get(row.repository)
        if configured is None:
            raise requests.Refused(requests.INVALID_LEASE)
        with self._opening:
            opened = self._stores.get(row.repository)
            if opened is None or opened[0] is not configured:
                opened = self._stores[row.repository] = configured, configured.store()
        return opened[1], look(opened[1]).mark

    def _lease(self, digest: bytes, key_id: str) -> LeaseRow:
        """The lease, if it is valid and this key's. Raises Refused."""
        row = self._table.valid(digest)
        if row is None or not (key_id == row.key_id or self._access().is_admin(key_id, row.repository)):
            raise requests.Refused(requests.INVALID_LEASE)
        return row

    async def _in_thread(self, step: Callable[..., T], *arguments: object) -> T:
        """Beside the loop; not left behind when the request is given up, since what follows must not run beside it."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, lambda: context.run(step, *arguments))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise


class _Body:
    """The body of a request, read once: some bytes exactly, then the rest in blocks. Raises Malformed."""

    def __init__(self, request: Request, config: ServiceConfig) -> None:
        self._stream = request.stream()
        self._idle_s = config.payload_idle_timeout_s
        self._most = config.max_payload_bytes
        self._held = b""
        self._read = 0
        text = request.headers.get("content-length", "")
        self._announced = int(text) if text.isascii() and text.isdigit() else None
        self.left_at_pack: int | None = None
        """Bytes that were announced to follow the message; None if the request announces none."""

    async def exactly(self, count: int) -> bytes:
        """The first bytes, fewer if the body ends before."""
        if count > requests.BODY_BYTES:
            raise requests.Malformed(413, f"message-size too large: at most {requests.BODY_BYTES} bytes")
        if self._announced is not None and self._announced > self._most:
            raise requests.Malformed(413, f"payload too large: {self._announced} bytes, at most {self._most} are taken")
        data = bytearray()
        while len(data) < count and (block := await self._next()):
            data += block
        self._held = bytes(data[count:])
        if self._announced is not None:
            self.left_at_pack = max(0, self._announced - count)
        return bytes(data[:count])

    async def blocks(self) -> AsyncIterator[bytes]:
        """The rest, in pieces that are worth a thread's attention."""
        gathered = bytearray(self._held)
        self._held = b""
        while block := await self._next():
            gathered += block
            if len(gathered) >= _GATHERED_BYTES:
                yield bytes(gathered)
                gathered.clear()
        if gathered:
            yield bytes(gathered)

    async def _next(self) -> bytes:
        """The next bytes, none at the end."""
        try:
            async with asyncio.timeout(self._idle_s):
                async for block in self._stream:
                    if block:
                        break
                else:
                    return b""
        except TimeoutError:
            raise requests.Malformed(408, "request body did not arrive in time") from None
        self._read += len(block)
        if self._read > self._most:
            raise requests.Malformed(413, f"payload too large: at most {self._most} bytes are taken")
        return block


def _message_size(request: Request) -> int:
    text = request.headers.get("message-size", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise requests.Malformed(400, "missing message-size header")
    return int(text)


def _refusal(error: Exception) -> requests.Refused:
    """The answer for a payload that was not taken; in the words of the stock gateway where it has some."""
    if code_of(error) == NAMED_OBJECT.code:
        return requests.Refused("other_error", f"invalid payload: {error}")
    if code_of(error) == HEADER_TOO_BIG.code:
        return requests.Refused(f"invalid payload: header too big: {error}; at most {MAX_HEADER_BYTES} bytes")
    if isinstance(error, PackError):
        return requests.Refused(f"invalid payload: {error}")
    if isinstance(error, CvmfsError):
        return requests.Refused("miscellaneous", str(error))
    return requests.Refused("uploader_error", str(error))
