"""Faults that tests switch on: slow replies, pages in place of JSON, jobs that are missing or forgotten."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lab.fts.errors import FtsRequestRefused, bad_request, broken
from lab.fts.http.calls import FtsRequest, job_refusal, need_level, page, reply
from lab.fts.transfers import Transfers

_COUNTS = ("html", "busy", "partial")


@dataclass(slots=True)
class Faults:
    """What happens to replies below `/jobs`, after their request was done.

    Attributes:
        delay_s: Each reply comes that much later.
        counts: How many of the next replies are a page (`html`), 503 (`busy`), or, if they are about several jobs,
            miss the first one (`partial`: 207).
        fails: Submissions whose body has one of these texts get 500, and nothing is done.
    """

    transfers: Transfers
    delay_s: float = 0.0
    fails: tuple[bytes, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def set(self, request: FtsRequest) -> Response:
        """`{"delay_s", "html", "busy", "partial", "fails": [texts], "forget": [job ids]}`; what is not named ends."""
        need_level(request.caller)
        document = request.object()
        delay, forget = document.get("delay_s", 0), document.get("forget", [])
        counts = {name: document.get(name, 0) for name in _COUNTS}
        fails = document.get("fails", [])
        lists = isinstance(forget, list) and isinstance(fails, list)
        if not all(_is_number(number) for number in [delay, *counts.values()]) or not lists:
            raise bad_request("Invalid faults: expected numbers, and lists of texts and of job ids to forget")
        self.delay_s, self.counts = float(delay), counts
        self.fails = tuple(str(text).encode() for text in fails)
        forgotten = [job_id for job_id in forget if self.transfers.forget(str(job_id), request.now)]
        return reply({"delay_s": self.delay_s, **counts, "forgotten": forgotten})

    def before(self, http: Request, body: bytes) -> None:
        """What happens before a request is done. Raises FtsRequestRefused."""
        submits = http.method in ("POST", "PUT") and http.url.path == "/jobs"
        if submits and any(text in body for text in self.fails):
            raise broken()

    async def applied(self, http: Request, response: Response) -> Response:
        """The reply as the caller gets it."""
        if not http.url.path.startswith("/jobs"):
            return response
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self._takes("html"):
            return page(500, "The server encountered an internal error")
        if self._takes("busy"):
            return page(503, "The server is temporarily unable to service your request")
        if "," in http.url.path and self._takes("partial"):
            documents: list[dict[str, Any]] = json.loads(bytes(response.body))
            missing = FtsRequestRefused(500, "Internal Server Error")
            return reply([job_refusal(documents[0]["job_id"], missing), *documents[1:]], 207)
        return response

    def _takes(self, name: str) -> bool:
        left = self.counts.get(name, 0)
        if left:
            self.counts[name] = left - 1
        return left > 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6
