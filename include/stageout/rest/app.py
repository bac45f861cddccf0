"""The app: every path behind the login that it is given, its OpenAPI document too; documents in and out are models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError
from sqlalchemy import Engine
from starlette.exceptions import HTTPException

from include.errors import NightshiftError
from include.federation.records import FederationError, note_results, results_of_reading, summed
from include.json_values import first_fault
from include.ledger.errors import LedgerError
from include.site.site import Site
from include.stageout import errors
from include.stageout.blocks import close_workflow
from include.stageout.components.retry_manager import KilledTransfers, keep, kill, kill_workflow, resubmit
from include.stageout.files import MAX_FILES, FileKind, FileToTransfer, StageoutRequest, check_all
from include.stageout.requests import UserCaps, record_request
from include.stageout.rest import questions
from include.stageout.rest.limits import UserCalls, bounded_body, require_json
from include.stageout.rest.remembered import RememberedCounts
from include.stageout.status import (
    MAX_PAGE,
    TransferFilter,
    TransferPage,
    WorkflowStatus,
    copies_of,
    list_transfers,
    list_workflows,
)
from include.stageout.sums import export_csv

MAX_READINGS = 1000
M = TypeVar("M", bound="SentDocument")


class SentDocument(BaseModel):
    """What a client sends."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def read(cls: type[M], body: bytes) -> M:
        """From a body of bounded size. Raises StageoutError, BODY_INVALID, with the first thing that is wrong."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            fault = first_fault(error)
            raise questions.BODY_INVALID(fault.where or "the body", fault.what) from None


class FileDocument(SentDocument):
    """A file, from the site where a job wrote it to the site where it stays."""

    source: str = Field(description="Name of the site that has it", examples=["T2_IT_Pisa"])
    source_name: str = Field(description="Its logical name there; a URL is refused")
    destination: str = Field(description="Name of the site that it goes to")
    destination_name: str = Field(description="Its logical name there, below the name space of the user")
    kind: FileKind = FileKind.OUTPUT
    activity: str = "default"
    size: int | None = Field(None, description="Bytes")
    checksum: str | None = Field(None, description="Adler-32 or CRC-32C, in any case", examples=["adler32:0a1b2c3d"])
    dataset: str | None = Field(None, description="Where it is registered; without one it is not registered")
    user_job: str | None = Field(None, description="The job of the workflow that wrote it")


class RequestDocument(SentDocument):
    """Files that are recorded together, all or none."""

    key: str | None = Field(None, description="The idempotency key, if the header `Idempotency-Key` does not have it")
    workflow: str
    files: Annotated[tuple[FileDocument, ...], FailFast()] = Field(description=f"At most {MAX_FILES}")

    def to_request(self, owner: str, header: str | None) -> StageoutRequest:
        """Return it in the ledger's form. Raises StageoutError, BODY_INVALID, without a key or with two."""
        keys = {key for key in (self.key, header) if key is not None}
        if len(keys) != 1:
            what = "the header and the body have different keys" if keys else "it has no idempotency key"
            raise questions.BODY_INVALID("the request", what)
        files = tuple(FileToTransfer(**dict(file)) for file in self.files)
        return StageoutRequest(owner, keys.pop(), self.workflow, files)


class ReceiptDocument(BaseModel):
    """A recorded request. `repeated`: an earlier call has recorded it, and this one changed nothing."""

    request: int
    files: int
    repeated: bool


class RefusalDocument(BaseModel):
    """Why a call was refused; a program decides by the code."""

    code: str
    message: str
    hint: str


class ChosenDocument(SentDocument):
    """Which transfers: those with these ids, or those of a workflow. What the user may not change is left as it is."""

    ids: tuple[Annotated[int, Field(ge=1, le=2**62)], ...] | None = Field(None, max_length=MAX_FILES)
    workflow: str | None = Field(None, max_length=128)
    user: str | None = Field(None, max_length=128, description="The workflow's owner, for operators; default: yourself")


class ReadingsDocument(SentDocument):
    """Reports of readers: the JSON of the line that each leaves, or the same made by another program."""

    readings: tuple[dict[str, Any], ...] = Field(max_length=MAX_READINGS, description=f"At most {MAX_READINGS}")


class TakenDocument(BaseModel):
    """So many files count as read at sites, and so many as failed there."""

    read: int
    failed: int


class KilledDocument(BaseModel):
    """So many transfers are killed, and so many are as soon as FTS confirms it; what is copied already goes on."""

    killed: int
    killing: int

    @classmethod
    def of(cls, transfers: KilledTransfers) -> KilledDocument:
        """Their numbers."""
        return cls(killed=len(transfers.killed), killing=len(transfers.killing))


class ResubmittedDocument(BaseModel):
    """So many failed and killed transfers are new again."""

    resubmitted: int


class KeptDocument(BaseModel):
    """The sources of so many transfers are not removed."""

    kept: int


class ClosedDocument(BaseModel):
    """The workflow is closed; `changed`: by this call."""

    changed: bool


def record(site: Site, user: questions.StageoutUser, body: bytes, key: str | None, *, now: datetime) -> ReceiptDocument:
    """Record a request of the user. Raises StageoutError."""
    wanted = RequestDocument.read(body).to_request(user.name, key)
    check_all(wanted, site.settings)
    settings = site.settings.stageout
    caps = UserCaps(settings.user_files, settings.user_files_per_hour)
    receipt = record_request(site.ledger, wanted, now=now, caps=caps)
    return ReceiptDocument(request=receipt.id, files=receipt.files, repeated=receipt.repeated)


def take_readings(site: Site, body: bytes, *, now: datetime) -> TakenDocument:
    """Count reports of readers for the health of sites. Raises StageoutError."""
    document, sites = ReadingsDocument.read(body), site.settings.sites
    try:
        results = summed(result for report in document.readings for result in results_of_reading(report, sites))
    except FederationError:
        raise questions.BODY_INVALID("readings", "one of them is no report of a reader") from None
    note_results(site.ledger, results, now=now)
    return TakenDocument(read=sum(result.good for result in results), failed=sum(result.failed for result in results))


def _choice(body: bytes, user: questions.StageoutUser) -> dict[str, Any]:
    """The choice and its maker, as `kill` and `resubmit` take them. Raises StageoutError."""
    chosen = ChosenDocument.read(body)
    if (chosen.ids is None) is (chosen.workflow is None):
        raise questions.BODY_INVALID("the request", "it has neither `ids` nor `workflow`, or both")
    owner = questions.owner_of(user, chosen.user)
    owner = owner if chosen.ids is not None else owner or user.name
    return {"by": user.name, "ids": chosen.ids, "owner": owner, "workflow": chosen.workflow}


WRITE_AT_ONCE, READ_AT_ONCE = 2, 4
"""Calls that work at the same time, in each process: the others wait, and Airflow's own threads stay free."""
STATUS: Mapping[str, int] = {
    questions.BODY_TOO_LARGE.code: 413,
    questions.TOO_MANY_CALLS.code: 429,
    errors.USER_CAPPED.code: 429,
    questions.UNKNOWN.code: 404,
    questions.OPERATORS_ONLY.code: 403,
    questions.VIEWERS_LOOK.code: 403,
    errors.OUTSIDE_NAME_SPACE.code: 403,
    errors.DESTINATION_TAKEN.code: 409,
    errors.REQUEST_CHANGED.code: 409,
    errors.WORKFLOW_CLOSED.code: 409,
    errors.WORKFLOW_UNKNOWN.code: 404,
    errors.MOVE_REFUSED.code: 409,
}
"""HTTP status by code of the error; 400 for others of a request."""
_LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is wrong", "model": RefusalDocument},
    401: {"description": "No login"},
    403: {"description": "The user may not change, or not see that", "model": RefusalDocument},
    404: {"description": "Unknown, or of another user", "model": RefusalDocument},
    429: {"description": "Too many calls or files of this user", "model": RefusalDocument},
    503: {"description": "The ledger does not answer", "model": RefusalDocument},
}
_CHANGES: dict[int | str, dict[str, Any]] = {
    409: {"description": "In conflict with what the ledger has", "model": RefusalDocument},
    413: {"description": "The body is too large", "model": RefusalDocument},
}
_log = logging.getLogger(__name__)
T = TypeVar("T")


def create_api(caller: Callable[..., questions.StageoutUser], site: Callable[[], Site]) -> FastAPI:
    """The REST API as an app to be mounted.

    `caller`: a FastAPI dependency: who calls. It raises 401 for a call without a login. `site`: gives the deployment;
    called in a thread for each call.
    """
    calls = UserCalls()

    def admit(request: Request, caller: questions.StageoutUser = Depends(caller)) -> None:  # noqa: B008 - FastAPI's form
        calls.take(caller.name)
        if request.method not in _LOOKS and not caller.may_change:
            raise questions.VIEWERS_LOOK(
                f"user {caller.name}", f"the right to edit the DAG {questions.EDITED_DAG} is missing"
            )
        require_json(request)
        request.state.caller = caller

    app = FastAPI(
        title="Nightshift stage-out",
        description="Submits transfers of users' files and shows what becomes of them. Users see and change their own.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(admit)],
        responses=_REFUSALS,
    )
    routes = _Routes(site)
    app.post(
        "/requests", status_code=201, responses={200: {"model": ReceiptDocument}, **_CHANGES}, **_body(RequestDocument)
    )(routes.record)
    app.post("/readings", responses={413: _CHANGES[413]}, **_body(ReadingsDocument))(routes.readings)
    app.post("/transfers/kill", responses=_CHANGES, **_body(ChosenDocument))(routes.kill)
    app.post("/transfers/resubmit", responses=_CHANGES, **_body(ChosenDocument))(routes.resubmit)
    app.post("/transfers/keep", responses=_CHANGES, **_body(ChosenDocument))(routes.keep)
    app.post("/workflows/{name:path}/close")(routes.close_workflow)
    app.post("/workflows/{name:path}/kill")(routes.kill_workflow)
    app.get("/transfers")(routes.transfers)
    app.get("/transfers/{number}")(routes.transfer)
    app.get("/copies", response_class=StreamingResponse)(routes.copies)
    app.get("/summary")(routes.summary)
    app.get("/workflows")(routes.workflows)
    app.get("/workflows/{name:path}")(routes.workflow)
    app.get("/analytics.csv", response_class=StreamingResponse)(routes.analytics)
    app.get("/openapi.json", include_in_schema=False)(partial(_openapi, app))
    app.add_exception_handler(NightshiftError, _refused)
    app.add_exception_handler(RequestValidationError, _bad_query)
    app.add_exception_handler(HTTPException, _not_answered)
    app.add_exception_handler(Exception, _broken)
    return app


def _caller(request: Request) -> questions.StageoutUser:
    found: questions.StageoutUser = request.state.caller
    return found


Caller = Annotated[questions.StageoutUser, Depends(_caller)]
IdempotencyKey = Annotated[str | None, Header()]
Name = Annotated[str | None, Query(max_length=128)]
RowNumber = Annotated[int, Path(ge=1, le=2**62)]


class _Routes:
    """Handlers of the paths. Whatever asks the ledger runs in a thread."""

    def __init__(self, site: Callable[[], Site]) -> None:
        self._site = site
        self._remembered = RememberedCounts()
        self._readers = ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="stageout-api-read")
        self._writers = ThreadPoolExecutor(WRITE_AT_ONCE, thread_name_prefix="stageout-api")

    async def record(
        self, request: Request, response: Response, caller: Caller, idempotency_key: IdempotencyKey = None
    ) -> ReceiptDocument:
        """Record transfers of up to 10,000 files, all or none. The same request again changes nothing."""
        body = await bounded_body(request)
        receipt = await self._write(lambda site, now: record(site, caller, body, idempotency_key, now=now))
        if receipt.repeated:
            response.status_code = 200
        return receipt

    async def readings(self, request: Request, caller: Caller) -> TakenDocument:  # noqa: ARG002
        """Take reports of readers: they count for the health of sites."""
        body = await bounded_body(request)
        return await self._write(lambda site, now: take_readings(site, body, now=now))

    async def kill(self, request: Request, caller: Caller) -> KilledDocument:
        """Kill transfers by their ids, or those of a workflow."""
        body = await bounded_body(request)
        done = await self._write(lambda site, now: kill(site.ledger, now=now, **_choice(body, caller)))
        return KilledDocument.of(done)

    async def resubmit(self, request: Request, caller: Caller) -> ResubmittedDocument:
        """Make failed and killed transfers new again, by their ids, or those of a workflow."""
        body = await bounded_body(request)
        moved = await self._write(lambda site, now: resubmit(site.ledger, now=now, **_choice(body, caller)))
        return ResubmittedDocument(resubmitted=len(moved))

    async def keep(self, request: Request, caller: Caller) -> KeptDocument:
        """Keep the sources of transfers, by their ids, or those of a workflow."""
        body = await bounded_body(request)
        kept = await self._write(lambda site, _: keep(site.ledger, **_choice(body, caller)))
        return KeptDocument(kept=len(kept))

    async def close_workflow(self, caller: Caller, name: str, user: Name = None) -> ClosedDocument:
        """Close a workflow: it gets no further files. It cannot be opened again."""
        owner = questions.owner_of(caller, user) or caller.name
        changed = await self._write(lambda site, now: close_workflow(site.ledger, owner, name, now=now))
        return ClosedDocument(changed=changed)

    async def kill_workflow(self, caller: Caller, name: str, user: Name = None) -> KilledDocument:
        """Close a workflow, and kill its transfers."""
        owner, by = questions.owner_of(caller, user) or caller.name, caller.name
        return KilledDocument.of(
            await self._write(lambda site, now: kill_workflow(site.ledger, owner, name, by=by, now=now))
        )

    async def transfers(
        self,
        caller: Caller,
        query: Annotated[questions.TransferQuery, Depends()],
        after: Annotated[int | None, Query(ge=0, description="`after` of the page before")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        archived: bool = True,
    ) -> TransferPage:
        """Transfers, the newest first. A page may have few rows or none; the last one has no `after`."""
        wanted = query.seen_by(caller)
        return await self._read(
            lambda ledger: list_transfers(ledger, wanted, after=after, limit=limit, archived=archived)
        )

    async def transfer(self, caller: Caller, number: RowNumber) -> questions.TransferHistory:
        """A transfer with its whole history and the reason of each move."""
        return await self._read(lambda ledger: questions.transfer(ledger, self._site().settings.sites, caller, number))

    async def copies(
        self,
        caller: Caller,
        workflow: Annotated[str, Query(max_length=128)],
        user: Name = None,
        format: questions.ListFormat = questions.ListFormat.JSON,  # noqa: A002 - the parameter's name in the URL
    ) -> Response:
        """The files of a workflow where they are now, for the next job; as `urls` those whose copy is verified."""
        chosen = TransferFilter(owner=questions.owner_of(caller, user) or caller.name, workflow=workflow)
        copies = await self._read(lambda ledger: copies_of(ledger, self._site().settings.sites, chosen))
        lines = questions.parts(questions.copy_lines(copies, format))
        return StreamingResponse(lines, media_type=f"{questions.LIST_TYPES[format]}; charset=utf-8", headers=HEADERS)

    async def summary(
        self,
        caller: Caller,
        query: Annotated[questions.TransferQuery, Depends()],
        by: questions.SummaryKey = questions.SummaryKey.STATE,
    ) -> questions.TransferSummary:
        """Counts of transfers that are not archived, some seconds old; minutes, where counting takes long."""
        wanted = query.seen_by(caller)
        return await self._read(lambda ledger: questions.summary(ledger, self._remembered, wanted, by))

    async def workflows(self, caller: Caller, user: Name = None, after: Name = "") -> tuple[WorkflowStatus, ...]:
        """The workflows of a user, by name; `after`: the last name of the page before."""
        owner = questions.owner_of(caller, user) or caller.name
        return await self._read(lambda ledger: list_workflows(ledger, owner, after=after or ""))

    async def workflow(self, caller: Caller, name: str, user: Name = None) -> questions.WorkflowSummary:
        """A workflow, and its files by state."""
        owner = questions.owner_of(caller, user) or caller.name
        return await self._read(lambda ledger: questions.workflow(ledger, owner, name))

    async def analytics(
        self, caller: Caller, user: Name = None, since: date | None = None, until: date | None = None
    ) -> Response:
        """Daily sums of archived transfers as CSV, from `since` to before `until`; default: the last 30 days."""
        owner, (first, last) = questions.owner_of(caller, user), questions.period(since, until, now=datetime.now(UTC))
        lines = await self._read(lambda ledger: export_csv(ledger, since=first, until=last, owner=owner))
        return StreamingResponse(questions.parts(lines), media_type="text/csv; charset=utf-8", headers=HEADERS)

    async def _read(self, work: Callable[[Engine], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, lambda: work(self._site().ledger))

    async def _write(self, work: Callable[[Site, datetime], T]) -> T:
        now = datetime.now(UTC)
        return await asyncio.get_running_loop().run_in_executor(self._writers, lambda: work(self._site(), now))


def _body(model: type[SentDocument]) -> dict[str, Any]:
    """The OpenAPI description of a body that we read ourselves, within a limit."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}}


async def _openapi(app: FastAPI) -> Response:
    """The OpenAPI document of these paths."""
    document = app.openapi()
    for model in (RequestDocument, ChosenDocument, ReadingsDocument):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= {**schema.pop("$defs", {}), model.__name__: schema}
    return JSONResponse(document, headers=HEADERS)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, NightshiftError)  # noqa: S101 - what it is registered for
    headers = {"Retry-After": "1"} if error.retryable else {}
    if not isinstance(error, errors.StageoutError):
        # what is wrong with the deployment is for its operators: messages name hosts and folders
        _log.error("a call failed: %s", error)
        status = 503 if isinstance(error, LedgerError) else 500
        return _refusal(status, error.code, "The call failed.", "try again later; the server's log has more", headers)
    # the hint is apart from the message
    message = str(error).removesuffix(f" Hint: {error.hint}.")
    return _refusal(STATUS.get(error.code, 400), error.code, message, error.hint, headers)


async def _bad_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - what it is registered for
    wrong = error.errors()[0]
    where = ".".join(map(str, wrong["loc"]))[:200]
    return await _refused(request, questions.QUERY_INVALID(where, str(wrong["msg"])[:500]))


async def _not_answered(_request: Request, error: Exception) -> Response:
    """A call without a login, of an unknown path, or with the wrong method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
    hint = (
        "send a token of Airflow: POST /auth/token gives it"
        if error.status_code == 401
        else questions.QUERY_INVALID.hint
    )
    return _refusal(error.status_code, f"http-{error.status_code}", str(error.detail), hint, error.headers or {})


async def _broken(_request: Request, _error: Exception) -> Response:
    return _refusal(500, "internal-error", "The call failed.", "the server's log has more", {})


def _refusal(status: int, code: str, message: str, hint: str, headers: Mapping[str, str]) -> Response:
    document = RefusalDocument(code=code, message=message, hint=hint)
    return JSONResponse(document.model_dump(), status, {**HEADERS, **headers})
