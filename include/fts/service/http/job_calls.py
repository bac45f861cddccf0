"""Submission, status, cancel and priority of jobs and files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from include.fts.service.errors import FtsRequestRefused, bad_request
from include.fts.service.http.calls import FtsCalls, FtsRequest, file_ids, job_refusal, reply
from include.fts.service.http.documents import FILE_FIELDS, attempts_document, file_document, job_document
from include.fts.service.records import JobRecord

MOST_LISTED = 500
_FORM = ("application/x-www-form-urlencoded", "multipart/form-data")
_TERMINAL = {"http_status": "304 Not Modified", "http_message": "The job is in a terminal state"}


class JobCalls(FtsCalls):
    """Calls below `/jobs` and `/archive`."""

    __slots__ = ()

    def submit(self, request: FtsRequest) -> Response:
        if request.http.headers.get("content-type", "").startswith(_FORM):
            # FTS sees no files in a form, whatever the body is; the public client gives no type
            raise bad_request("No transfers operations specified")
        return reply({"job_id": self.transfers.submit(request.caller, request.body, request.now)})

    def list(self, request: FtsRequest) -> Response:
        """The caller's jobs; without `state_in`, those that have not ended."""
        wanted = set(filter(None, (request.query("state_in") or "").split(",")))
        limit = request.query("limit") or str(MOST_LISTED)
        if not (limit.isascii() and limit.isdigit()):
            raise bad_request("Invalid value for limit: expected a number")
        found: list[dict[str, Any]] = []
        for job in self.transfers.jobs(request.caller):
            if len(found) >= min(int(limit), MOST_LISTED):
                break
            if job.state.value in wanted if wanted else not job.state.terminal:
                found.append(job_document(job))
        return reply(found)

    def status(self, request: FtsRequest) -> Response:
        fields = [name for name in (request.query("files") or "").split(",") if name]

        def document(job: JobRecord) -> dict[str, Any]:
            files = {"files": [file_document(file, fields) for file in job.files]} if fields else {}
            return {**job_document(job), **files}

        return self._each(request, "check", document)

    def cancel(self, request: FtsRequest) -> Response:
        def cancel(job: JobRecord) -> dict[str, Any]:
            canceled = self.transfers.cancel(job, request.now)
            return {**job_document(job), **({} if canceled else _TERMINAL)}

        return self._each(request, "cancel", cancel)

    def modify(self, request: FtsRequest) -> Response:
        def prioritize(job: JobRecord) -> dict[str, Any]:
            changed = self.transfers.prioritize(job, request.body, request.now)
            return {**job_document(job), **({} if changed else _TERMINAL)}

        return self._each(request, "modify", prioritize)

    def field(self, request: FtsRequest) -> Response:
        """One field of a job."""
        job, name = self._job(request), request.path("field")
        document = job_document(job)
        if name == "files":
            return reply([file_document(file, FILE_FIELDS) for file in job.files])
        if name == "dm":
            return reply([])
        if name not in document:
            raise FtsRequestRefused(404, "No such field")
        return reply(document[name])

    def cancel_files(self, request: FtsRequest) -> Response:
        job = self._job(request, "cancel")
        answers = self.transfers.cancel_files(job, file_ids(request.path("file_ids")), request.now)
        return reply(answers[0] if len(answers) == 1 else answers)

    def retries(self, request: FtsRequest) -> Response:
        (file_id, *_) = file_ids(request.path("file_ids"))
        file = next((file for file in self._job(request).files if file.file_id == file_id), None)
        if file is None:
            raise FtsRequestRefused(404, f'No file with the id "{file_id}" has been found')
        return reply(attempts_document(file))

    def archived(self, request: FtsRequest) -> Response:
        """A job of the archive, with its files."""
        job = self.transfers.archived(request.caller, request.path("job_id"))
        return reply({**job_document(job), "files": [file_document(file, FILE_FIELDS) for file in job.files]})

    def _job(self, request: FtsRequest, what: str = "check") -> JobRecord:
        return self.transfers.job(request.caller, request.path("job_ids"), what)

    def _each(self, request: FtsRequest, what: str, act: Callable[[JobRecord], dict[str, Any]]) -> Response:
        """A reply about one job, or with a comma in the path, a list about several: 207 if one of them has an error."""
        text = request.path("job_ids")
        documents, status = [], 200
        for job_id in dict.fromkeys(part for part in text.split(",") if part):
            try:
                documents.append(act(self.transfers.job(request.caller, job_id, what)))
            except FtsRequestRefused as error:
                documents.append(job_refusal(job_id, error))
                status = error.status if "," not in text else 207
        return reply(documents if "," in text else documents[0], status)
