"""A request as handlers get it, and the forms of replies."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lab.fts.callers import Caller
from lab.fts.errors import FtsRequestRefused, broken, status_title
from lab.fts.submission import read_object
from lab.fts.transfers import Transfers

JSON = "application/json"
NOT_FOUND = (
    "The requested URL was not found on the server. "
    "If you entered the URL manually please check your spelling and try again."
)


@dataclass(frozen=True, slots=True)
class FtsRequest:
    """One request: who sent it, its body, and when it came."""

    http: Request
    caller: Caller
    body: bytes
    now: float

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.http.path_params[name])

    def query(self, name: str) -> str | None:
        return self.http.query_params.get(name)

    def object(self) -> dict[str, Any]:
        """The body as a JSON object. Raises FtsRequestRefused."""
        return read_object(self.body)


FtsHandler = Callable[[FtsRequest], Response]


@dataclass(frozen=True, slots=True)
class FtsCalls:
    """Handlers that share the service's transfers."""

    transfers: Transfers


def reply(value: Any, status: int = 200) -> Response:
    """A JSON document."""
    return Response(json.dumps(value, separators=(",", ":")), status, media_type=JSON)


def refusal(error: FtsRequestRefused) -> Response:
    """FTS's form of an error."""
    return reply({"status": error.title, "message": error.message}, error.status)


def job_refusal(job_id: str, error: FtsRequestRefused) -> dict[str, Any]:
    """FTS's form of an error about one job of several."""
    return {"job_id": job_id, "http_status": error.title, "http_message": error.message}


def page(status: int, text: str) -> Response:
    """A page, as FTS's login and the web server before it reply with."""
    title = status_title(status)
    html = f"<!doctype html>\n<title>{title}</title>\n<h1>{title.partition(' ')[2]}</h1>\n<p>{text}</p>\n"
    return Response(html, status, media_type="text/html")


def for_users(handler: FtsHandler, *, breaks: bool) -> FtsHandler:
    """The handler, refused to callers without a credential: 403, as FTS has it, not 401.

    ``breaks``: 500, as where FTS looks for the caller's VO before it looks for the right.
    """

    def call(request: FtsRequest) -> Response:
        if request.caller.method == "unauthenticated":
            raise broken() if breaks else FtsRequestRefused(403, "Not enough permissions")
        return handler(request)

    return call


def need_level(caller: Caller) -> None:
    """Raises FtsRequestRefused unless the caller may configure."""
    if not caller.admin:
        raise FtsRequestRefused(403, "Not enough permissions")
