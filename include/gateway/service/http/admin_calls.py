"""Calls about repositories, of the administrator, about the service itself, and its OpenAPI document."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from include.cvmfs.commit.commit import MANIFEST_KEY
from include.cvmfs.errors import CvmfsError
from include.gateway.errors import BadLeasePath
from include.gateway.protocol import (
    API,
    BODY_SIGNATURE_HEADER,
    COLLECTION,
    LEASES,
    LEASES_BY_PATH,
    OFFERS_HEADER,
    PATH_BYTES,
    PAYLOADS,
    RELOAD,
    REPOSITORIES,
    WAITING,
    WAITING_HEADER,
    LeasePath,
)
from include.gateway.service import requests
from include.gateway.service.config import ConfigError, RepositoryConfig
from include.gateway.service.freezes import StoreCheckCache
from include.gateway.service.http.payloads import is_utf8, read_body
from include.gateway.service.http.serving import OFFERS, ServiceContext
from include.gateway.service.requests import Malformed, Refused, parse_collection, parse_enable
from include.gateway.service.telemetry import CONTENT_TYPE, note
from include.storage.errors import StoreError

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_DURATION: Schema = {"type": "string", "description": "As Go writes it.", "examples": ["1m59.98s"]}
_ROOT: Schema = {"type": "string", "examples": ["f7d5f6a16ec19fd069eaedd8c21837d37935e2f5C"]}
_POSITIVE: Schema = {"type": "integer", "minimum": 1}
_NAMED: Schema = {"type": "string", "minLength": 1}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _closed(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object with no other members."""
    return {**_object(required, optional), "additionalProperties": False}


def _mapping(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _said(**members: Schema) -> Schema:
    """``status=ok`` with these members."""
    return _closed({"status": {"const": "ok"}, **members})


_ERROR = _closed({"status": {"const": "error"}, "reason": _TEXT}, {"detail": _TEXT})
_LEASE = _closed(dict.fromkeys(("key_id", "path", "expires", "hostname"), _TEXT))
_REPOSITORY = _closed({"keys": _mapping(_TEXT), "enabled": {"type": "boolean"}})
_BUSY = _closed(
    {"status": {"const": "path_busy"}, "time_remaining": _DURATION},
    {"position": _POSITIVE, "waiting": _POSITIVE, "expected_wait": _DURATION},
)
_WAITER = _closed(
    {
        **dict.fromkeys(("path", "key_id", "hostname"), _TEXT),
        "position": _POSITIVE,
        **dict.fromkeys(("waited", "expected_wait"), _DURATION),
    }
)
_BODIES: dict[str, Schema] = {
    "acquire": _object(
        {
            "path": {"type": "string", "maxLength": PATH_BYTES, "description": "<repository>/<path>"},
            "api_version": {"type": "string", "pattern": "^[23]$"},
        },
        {
            "hostname": {"type": "string", "maxLength": 256},
            "request": {"type": "string", "description": "Drawn by chance; the same body again gets the same lease."},
        },
    ),
    "commit": _object(
        {"old_root_hash": _ROOT, "new_root_hash": _ROOT},
        {
            "tag_name": {"type": "string", "maxLength": 255},
            "tag_channel": {"description": "Ignored."},
            "tag_description": {"type": "string", "maxLength": 4096},
            "generation": _TEXT,
        },
    ),
    "renew": _object({}, {"expires_in_sec": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}}),
    "enable": _object({"enable": {"type": "boolean"}}, {"wait": {"type": "boolean"}}),
    "collect": _object(
        {"repo": _TEXT},
        {
            "num_revisions": {"type": "integer"}, "timestamp": _TEXT,
            "dry_run": {"type": "boolean"}, "verbose": {"type": "boolean"},
        },
    ),
}  # fmt: skip
_PARAMETERS: dict[str, Schema] = {
    "token": {"name": "token", "in": "path", "required": True, "schema": _NAMED},
    "name": {"name": "name", "in": "path", "required": True, "schema": _NAMED},
    "path": {"name": "path", "in": "path", "required": True, "schema": _NAMED},
    "size": {
        "name": "Message-Size", "in": "header", "required": True,
        "schema": {"type": "string", "pattern": "^[0-9]{1,9}$"}, "description": "Bytes of the JSON before the pack.",
    },
    "waiting": {"name": WAITING_HEADER, "in": "header", "required": False, "schema": _TEXT},
    "covered": {"name": BODY_SIGNATURE_HEADER, "in": "header", "required": False, "schema": _TEXT},
}  # fmt: skip
# Method, path, what it is, parameters, body, answer with HTTP 200, other statuses that it answers on its own.
_CALLS: tuple[tuple[str, str, str, tuple[str, ...], str | None, Schema | None, tuple[int, ...]], ...] = (
    ("get", "/health", "The process lives.", (), None,
     _said(service=_TEXT, pid={"type": "integer"}, leases={"type": "integer"}), ()),
    ("get", "/ready", "Every repository can be published to.", (), None,
     _said(repositories=_mapping(_TEXT)), (503,)),
    ("get", "/metrics", "Figures for Prometheus.", (), None, None, ()),
    ("get", "/openapi.json", "This description.", (), None, {"type": "object"}, ()),
    ("get", API, "A greeting.", (), None, _closed({"welcome": _TEXT}), ()),
    ("get", f"{API}{REPOSITORIES}", "The repositories.", (), None,
     _said(data=_mapping(_REPOSITORY)), ()),
    ("get", f"{API}{REPOSITORIES}/{{name}}", "A repository.", ("name",), None, _said(data=_REPOSITORY), ()),
    ("post", f"{API}{REPOSITORIES}/{{name}}", "Enable or disable it.", ("name",), "enable", _said(), ()),
    ("get", f"{API}{LEASES}", "The leases.", (), None,
     _said(data=_mapping(_LEASE)), ()),
    ("post", f"{API}{LEASES}", "Take a lease.", ("waiting",), "acquire",
     {"anyOf": [_said(session_token=_TEXT, max_api_version={"type": "integer"}), _BUSY]}, ()),
    ("get", f"{API}{LEASES}/{{token}}", "A lease.", ("token",), None,
     _closed({"data": _LEASE}), (500,)),
    ("post", f"{API}{LEASES}/{{token}}", "Commit under a lease.", ("token", "covered"), "commit",
     _said(final_revision={"type": "integer"}), ()),
    ("patch", f"{API}{LEASES}/{{token}}", "Renew a lease.", ("token", "covered"), "renew",
     _said(data=_closed({"expires": _TEXT})), ()),
    ("delete", f"{API}{LEASES}/{{token}}", "Give a lease back.", ("token",), None, _said(), ()),
    ("delete", f"{API}{LEASES_BY_PATH}/{{path}}", "End all leases at and below a path.", ("path",), None, _said(), ()),
    ("get", f"{API}{WAITING}", "Who waits for a busy path.", (), None,
     _said(data={"type": "array", "items": _WAITER}), ()),
    ("post", f"{API}{PAYLOADS}", "An object pack; the message holds the token.", ("size",), "payload", _said(), (408,)),
    ("post", f"{API}{PAYLOADS}/{{token}}", "An object pack.", ("token", "size"), "payload", _said(), (408,)),
    ("post", f"{API}{COLLECTION}", "Refused: the collector runs apart from the gateway.", (), "collect", _said(), ()),
    ("post", f"{API}{RELOAD}", "Read keys and repositories again.", (), "reload",
     _said(repositories={"type": "array", "items": _TEXT}), ()),
)  # fmt: skip
_SIGNED = {"post", "patch", "delete"}
_STATUSES = {
    400: "Malformed.", 404: "No such path.", 408: "The body did not arrive in time.", 413: "Too large.",
    429: "Too many requests: come again after Retry-After seconds.", 500: "`invalid lease`: unknown or expired.",
    503: "Not ready, with the reasons.",
}  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """The description, OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for method, path, summary, parameters, body, answer, statuses in _CALLS:
        operation: dict[str, Any] = {"summary": summary, "operationId": f"{method} {path}"}
        if parameters:
            operation["parameters"] = [_PARAMETERS[name] for name in parameters]
        if method in _SIGNED:
            operation["security"] = [{"signature": []}]
        if body is not None:
            operation["requestBody"] = _request(body)
        operation["responses"] = {"200": _answered(answer, method, path)}
        own = {*statuses, 429, *((400, 413) if body else (400,) if method == "delete" else ())}
        if "{" in path:
            own |= {400, 404}
        for status in sorted(own):
            operation["responses"][str(status)] = {
                "description": _STATUSES[status],
                "content": {"application/json" if status == 503 else "text/plain": {"schema": {}}},
            }
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Nightshift gateway", "version": "1",
            "description": "The lease protocol of CernVM-FS. Answers are HTTP 200 with a `status` in their JSON.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "signature": {
                    "type": "apiKey", "in": "header", "name": "Authorization",
                    "description": "<key id> <base64 of the 40 hex digits of HMAC-SHA1(secret, message)>",
                }
            }
        },
    }  # fmt: skip


def _request(body: str) -> Schema:
    if body == "payload":
        return {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}
    schema = _BODIES.get(body, {"description": "Anything; it is signed."})
    kind = "application/json" if body in _BODIES else "text/plain"
    return {"required": body not in {"renew", "reload"}, "content": {kind: {"schema": schema}}}


def _answered(answer: Schema | None, method: str, path: str) -> Schema:
    if answer is None:
        return {"description": "Text.", "content": {"text/plain": {"schema": _TEXT}}}
    if path in {"/ready", "/openapi.json"}:
        return {"description": "JSON.", "content": {"application/json": {"schema": answer}}}
    refusable = method in _SIGNED or "{name}" in path
    schema = {"anyOf": [answer, _ERROR]} if refusable else answer
    return {
        "description": "JSON, as plain text, which is what the stock gateway calls it.",
        "content": {"text/plain": {"schema": schema}},
    }


log = logging.getLogger(__name__)

_REMEMBERED_S = 2.0  # a store is not asked more often, however many ask us


class StatusCalls:
    """None of them needs a signature, and none reveals a secret."""

    def __init__(self, serving: ServiceContext) -> None:
        self._serving = serving
        self._looked: tuple[float, dict[str, str]] = (float("-inf"), {})
        self._looking = asyncio.Lock()
        self._looks: StoreCheckCache[str] = StoreCheckCache()

    async def health(self, _: Request) -> Response:
        """The process answers, and its state can be read."""
        return requests.ok(service="nightshift-gateway", pid=os.getpid(), leases=self._serving.table.held())

    async def ready(self, _: Request) -> Response:
        """Every repository's store is reachable and its signing key loads; HTTP 503 otherwise, with the reasons."""
        async with self._looking:
            at, reasons = self._looked
            if time.monotonic() - at > _REMEMBERED_S:
                names = dict(self._serving.config.repositories)
                looks = [self._look(*item) for item in names.items()]
                reasons = dict(zip(names, await asyncio.gather(*looks), strict=True))
                self._looked = time.monotonic(), reasons
        good = all(reason == "ok" for reason in reasons.values())
        members = {"status": "ok" if good else "error", "repositories": reasons}
        return JSONResponse(members, 200 if good else 503)

    async def metrics(self, _: Request) -> Response:
        """The figures, for Prometheus."""
        page = await asyncio.to_thread(self._serving.metrics.page)
        return Response(page, headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, _: Request) -> Response:
        """This description."""
        return JSONResponse(document())

    async def _look(self, name: str, repository: RepositoryConfig) -> str:
        try:
            return await self._looks.look(name, lambda: _reachable(repository))
        except TimeoutError:
            return "the store does not answer in time"


def _reachable(repository: RepositoryConfig) -> str:
    try:
        repository.signer()
        has_manifest = repository.quick().exists(MANIFEST_KEY)
    except (CvmfsError, StoreError, ConfigError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        log.exception("not ready")
        return f"{type(error).__name__}: see the gateway's log"
    return "ok" if has_manifest else f"no {MANIFEST_KEY} in the store"


WELCOME = "You are in an open field on the west side of a white house with a boarded front door."
NO_COLLECTOR = (
    "garbage collection is not done by this gateway: publications go on while the collector runs; "
    "start it where its credentials are"
)


class AdminCalls:
    """Calls about the gateway itself; unsigned calls are read-only."""

    def __init__(self, serving: ServiceContext) -> None:
        self._serving = serving
        self._table = serving.table

    async def welcome(self, _: Request) -> Response:
        """A greeting; a header lists what the service offers."""
        return requests.answer({"welcome": WELCOME}, headers={OFFERS_HEADER: OFFERS})

    async def repositories(self, _: Request) -> Response:
        """The repositories, with the keys that may lease their paths."""
        disabled = self._table.disabled()
        names = sorted(self._serving.config.repositories)
        return requests.ok(data={name: self._repository(name, disabled) for name in names})

    async def repository(self, request: Request) -> Response:
        """Return one of them."""
        name = request.path_params["name"]
        if name not in self._serving.config.repositories:
            raise Refused("invalid_repo")
        return requests.ok(data=self._repository(name, self._table.disabled()))

    async def enable(self, request: Request) -> Response:
        """Let a repository give out new leases, or not."""
        name, body = request.path_params["name"], await read_body(request)
        key_id = self._serving.admin(request, body, name)
        enabled = parse_enable(body)
        if name not in self._serving.config.repositories:
            raise Refused("invalid_repo")
        await asyncio.wrap_future(self._table.enable(name, enabled))
        note(request, "repository enabled" if enabled else "repository disabled", repository=name, key=key_id)
        return requests.ok()

    async def drop_by_path(self, request: Request) -> Response:
        """End all leases at and below a path."""
        repository = request.path_params["path"].partition("/")[0]
        message = request.scope["path"].encode("utf-8", "replace")
        key_id = self._serving.admin(request, message, repository)
        if not request.path_params["path"]:
            raise Malformed(400, "missing path argument")
        if not is_utf8(request.scope.get("raw_path") or b""):
            raise Refused("invalid lease path: not UTF-8")
        try:
            place = LeasePath.parse(request.path_params["path"])
        except BadLeasePath as error:
            raise Refused(str(error)) from None
        if place.repository not in self._serving.config.repositories:
            raise Refused("invalid_repo")
        rows = await asyncio.wrap_future(self._table.drop_below(place.repository, place.path))
        self._serving.metrics.lease_events.labels("cancelled").inc(len(rows))
        note(request, "leases dropped by path", path=str(place), key=key_id, leases=[row.full_path for row in rows])
        return requests.ok()

    async def collect(self, request: Request) -> Response:
        """Refused: collections are the collector's."""
        body = await read_body(request)
        repository = parse_collection(body)
        key_id = self._serving.admin(request, body, repository)
        if repository not in self._serving.config.repositories:
            raise Refused("invalid_repo")
        note(request, "collection refused", repository=repository, key=key_id)
        return requests.error(NO_COLLECTOR)

    async def reload(self, request: Request) -> Response:
        """Read keys and repositories again."""
        key_id = self._serving.admin(request, await read_body(request))
        try:
            names = await asyncio.to_thread(self._serving.reload)
        except ConfigError as error:
            note(request, "configuration refused", key=key_id, detail=str(error))
            return requests.error("configuration refused, the old one stays", str(error))
        note(request, "configuration read again", key=key_id, repositories=names)
        return requests.ok(repositories=names)

    def _repository(self, name: str, disabled: set[str]) -> dict[str, Any]:
        keys = sorted(self._serving.config.repositories[name].keys, key=lambda key: key.id)
        return {"keys": {key.id: key.path for key in keys}, "enabled": name not in disabled}
