"""Submission, status, cancel and priority of jobs and files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from starlette.responses import Response

from lab.fts.errors import FtsRequestRefused, bad_request
from lab.fts.http.calls import HOST, FtsCalls, FtsRequest, file_document, job_document, job_refusal, moment, reply
from lab.fts.records import JobRecord
from lab.fts.submission import parsed_priority

MOST_LISTED, MOST_LISTED_FILES = 500, 1000
_FORM = ("application/x-www-form-urlencoded", "multipart/form-data")
_TERMINAL = {"http_status": "304 Not Modified", "http_message": "The job is in a terminal state"}


class JobCalls(FtsCalls):
    """Calls below `/jobs` and `/archive`."""

    def submit(self, request: FtsRequest) -> Response:
        if request.http.headers.get("content-type", "").startswith(_FORM):
            # FTS sees no files in a form, whatever the body is; the public client gives no type
            raise bad_request("No transfers operations specified")
        return reply({"job_id": self.transfers.submit(request.caller, request.body, request.now)})

    def list(self, request: FtsRequest) -> Response:
        """The caller's jobs; without `state_in`, those that have not ended."""
        caller, states, limit = request.caller, _states(request), _limit(request)
        if request.query("dlg_id") not in (None, caller.delegation_id):
            raise FtsRequestRefused(403, "The provided delegation id does not match your delegation id")
        if request.query("user_dn") not in (None, caller.user):
            raise bad_request("The provided DN and delegation id do not correspond to the same user")
        jobs = (
            job_document(job)
            for job in self.transfers.jobs(caller)
            if (job.state.value in states if states else not job.state.terminal)
        )
        return reply(list(islice(jobs, limit)))

    def files(self, request: FtsRequest) -> Response:
        """Files of the caller's jobs that have not ended."""
        states, names = _states(request), ("source_se", "dest_se", "dest_surl")
        asked = {name: text for name in names if (text := request.query(name))}
        files = (
            file_document(file)
            for job in self.transfers.jobs(request.caller)
            for file in job.files
            if not file.state.terminal and (not states or file.state.value in states)
            if file_document(file, asked) == asked
        )
        return reply(list(islice(files, MOST_LISTED_FILES)))

    def status(self, request: FtsRequest) -> Response:
        fields = [name for name in (request.query("files") or "").split(",") if name]

        def document(job: JobRecord) -> dict[str, Any]:
            files = {"files": [file_document(file, fields) for file in job.files]} if fields else {}
            return {**job_document(job), **files}

        return self._each(request, document)

    def cancel(self, request: FtsRequest) -> Response:
        def cancel(job: JobRecord) -> dict[str, Any]:
            canceled = self.transfers.cancel(job, request.now)
            return {**job_document(job), **({} if canceled else _TERMINAL)}

        return self._each(request, cancel)

    def cancel_all(self, _: FtsRequest) -> Response:
        """FTS cancels the jobs of others for its root only, which no caller is."""
        raise FtsRequestRefused(403, "User does not have root privileges")

    def modify(self, request: FtsRequest) -> Response:
        priority = parsed_priority(request.body)

        def prioritize(job: JobRecord) -> dict[str, Any]:
            changed = self.transfers.prioritize(job, priority, request.now)
            return {**job_document(job), **({} if changed else _TERMINAL)}

        return self._each(request, prioritize)

    def field(self, request: FtsRequest) -> Response:
        """Return one field of a job."""
        job, name = self._job(request), request.path("field")
        document = job_document(job)
        if name == "files":
            return reply([file_document(file) for file in job.files])
        if name == "dm":
            return reply([])
        if name not in document:
            raise FtsRequestRefused(404, "No such field")
        return reply(document[name])

    def cancel_files(self, request: FtsRequest) -> Response:
        answers = self.transfers.cancel_files(self._job(request), request.path("file_ids").split(","), request.now)
        return reply(answers[0] if len(answers) == 1 else answers)

    def retries(self, request: FtsRequest) -> Response:
        file_id = request.path("file_ids")
        file = next((file for file in self._job(request).files if str(file.file_id) == file_id), None)
        if file is None:
            raise FtsRequestRefused(404, f'No file with the id "{file_id[:64]}" has been found')
        attempts = enumerate(file.attempts or (), start=1)
        return reply([
            {"file_id": file.file_id, "attempt": number, "datetime": moment(when), "reason": reason,
             "transfer_host": HOST}
            for number, (when, reason) in attempts
        ])  # fmt: skip

    def archive(self, _: FtsRequest) -> Response:
        job = {"href": "/archive/{id}", "title": "Archived job information", "templated": True}
        return reply(
            {"_links": {"curies": [{"name": "fts", "href": "https://gitlab.cern.ch/fts/fts3"}], "fts:archivedJob": job}}
        )

    def archived(self, request: FtsRequest) -> Response:
        """A job of the archive, with its files."""
        job = self.transfers.archived(request.caller, request.path("job_id"))
        return reply({**job_document(job), "files": [file_document(file) for file in job.files]})

    def _job(self, request: FtsRequest) -> JobRecord:
        return self.transfers.job(request.caller, request.path("job_ids"))

    def _each(self, request: FtsRequest, act: Callable[[JobRecord], dict[str, Any]]) -> Response:
        """A reply about one job, or with a comma in the path, a list about several: 207 if one of them has an error."""
        text = request.path("job_ids")
        documents, status = [], 200
        for job_id in dict.fromkeys(part for part in text.split(",") if part):
            try:
                documents.append(act(self.transfers.job(request.caller, job_id)))
            except FtsRequestRefused as error:
                documents.append(job_refusal(job_id, error))
                status = error.status if "," not in text else 207
        return reply(documents if "," in text else documents[0], status)


def _states(request: FtsRequest) -> set[str]:
    return set(filter(None, (request.query("state_in") or "").split(",")))


def _limit(request: FtsRequest) -> int:
    """Read how many jobs are listed; 0 and what is no number stand for MOST_LISTED. Raises FtsRequestRefused."""
    try:
        limit = int(request.query("limit") or 0)
    except ValueError:
        limit = 0
    if not 0 <= limit <= MOST_LISTED:
        raise bad_request(f"The limit must be positive and less or equal than {MOST_LISTED}")
    return limit or MOST_LISTED
