"""A client of an FTS server's REST interface (3.13): jobs, bans, delegation. One client is one identity."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError

from include.fts import jobs as forms
from include.fts.errors import (
    ANONYMOUS,
    FTS_JOB_INVALID,
    FTS_REPLY_UNEXPECTED,
    FtsError,
    FtsReplyLost,
    JobUnknown,
    kind_of,
)
from include.fts.states import FileState
from include.fts.transport import Credential, FtsCall, FtsReply, FtsTransport, X509Files, signed_proxy

MOST_JOBS = 100
"""Jobs of one request."""
MOST_FILES = 150
"""Files of a job that one request cancels."""
_MOST_HALVINGS = 3
"""How often the jobs of a request are halved in one call after lost replies."""
_MOST_PATH = 3900
"""Characters of a request's path; gunicorn takes a request line of 4094."""
DELEGATED = timedelta(hours=48)
RENEWED_BELOW = timedelta(hours=24)
_ASKED_AGAIN = timedelta(hours=1)
_URLS = frozenset({"source_surl", "dest_surl"})
R = TypeVar("R", bound=BaseModel)


class BanOf(Enum):
    """What is banned; the value is FTS's path and parameter."""

    STORAGE = ("se", "storage")
    """``scheme://host``, without a port."""
    USER = ("dn", "user_dn")


class FtsClient:
    """A client of one server. Threads may share it; close it, or use it in a ``with`` block.

    Every call raises FtsError: FtsUnreachable, FtsReplyLost, or the error for the server's reply. All but `submit`
    end in the same state when they are sent twice, and are repeated after a lost reply.

    Args:
        url: ``https://host:8446``.
        credential: Who we are; None: the server takes us for anonymous.
        authorities: A PEM bundle, or a folder of hashed names, for the server's certificate; None: the system's.
        timeout_s: Seconds that a reply may take.
        retries: How often a call is repeated.
        pause: Waits before a repetition, for some seconds; None: sleeps.
    """

    def __init__(
        self,
        url: str,
        credential: Credential | None = None,
        *,
        authorities: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 2,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._credential = credential
        self._identity: forms.Identity | None = None
        self._delegated: datetime | None = None
        self._most_jobs = MOST_JOBS
        self._transport = FtsTransport(
            url, credential, authorities=authorities, timeout_s=timeout_s, retries=retries, pause=pause
        )
        self.url = self._transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FtsClient({self.url!r}, {self._credential!r})"

    def close(self) -> None:
        """Close its connections."""
        self._transport.close()

    # -- jobs

    def submit(self, job: forms.FtsJob, name: forms.JobName | None = None) -> str:
        """Submit a job.

        Args:
            job: Files and parameters. They are checked before anything is sent.
            name: An id that is known before (`Identity.job_name`), so that a lost reply can be followed up.

        Returns:
            The job's id.

        Raises:
            SubmitUnclear: The request may have arrived, or the server failed with it. It is never sent again here: ask
                for the job's status.
            JobExists: There is a job of that name.
            StorageBanned: A storage is banned; no job was made.
            CredentialNeeded: The server does not take the credential; no job was made.
            FtsError: `FTS_JOB_INVALID`, `FTS_REQUEST_INVALID`: no job was made.
        """
        job_id = name.job_id if name else None
        call = FtsCall(
            "POST", "/jobs", f"submission of FTS job {job_id or 'of a new id'}, {len(job.files)} files",
            body=job.document(name), repeatable=False, submits=True, job_id=job_id,
        )  # fmt: skip
        submitted: forms.Submitted = self._transport.value(call, forms.Submitted.model_validate)
        return str(submitted.job_id)

    def status(self, job_ids: Iterable[str], *, files: Sequence[str] = forms.FILE_FIELDS) -> forms.JobAnswers:
        """Ask for the state of jobs, up to 100 in a request; half as many after a reply that is too large for the link.

        Args:
            job_ids: Their ids.
            files: The names of the fields of each file to ask for, `file_id` and `file_state` among them; empty: no
                files.

        Returns:
            The state of each job, or the server's error for it, such as JobUnknown.
        """
        return self._of_jobs("GET", "status", job_ids, files)

    def archived(self, job_id: str) -> forms.JobStatus:
        """Ask for a job that ended so long ago that the server moved it into its archive.

        Args:
            job_id: Its id.

        Returns:
            Its state, with its files.

        Raises:
            JobUnknown: The archive has no such job.
        """
        (known,) = _checked_ids([job_id])
        call = FtsCall("GET", f"/archive/{known}", f"archived FTS job {known}", job_id=known)
        status: forms.JobStatus = self._transport.value(call, _parsed)
        return status

    def cancel(self, job_ids: Iterable[str]) -> forms.JobAnswers:
        """Cancel jobs; one that has ended stays as it is. A file that is being copied may leave a part behind.

        Args:
            job_ids: Their ids.

        Returns:
            The state of each job after it, or the server's error for it.
        """
        return self._of_jobs("DELETE", "cancel", job_ids)

    def cancel_files(self, job_id: str, file_ids: Sequence[int]) -> Mapping[int, FileState | None]:
        """Cancel some files of a job.

        Args:
            job_id: The job's id.
            file_ids: The ids of its files (`FileStatus.file_id`).

        Returns:
            The state of each file after it; None for a file that is not of the job.
        """
        (known,) = _checked_ids([job_id])
        states: dict[int, FileState | None] = {}
        for start in range(0, len(file_ids), MOST_FILES):
            batch = [int(file_id) for file_id in file_ids[start : start + MOST_FILES]]
            path = f"/jobs/{known}/files/{','.join(map(str, batch))}"
            call = FtsCall("DELETE", path, f"cancel of {len(batch)} files of FTS job {known}", job_id=known)
            states |= self._transport.value(call, partial(_states, batch))
        return states

    def set_priority(self, job_ids: Iterable[str], priority: int) -> forms.JobAnswers:
        """Change the priority of jobs that have not ended.

        Args:
            job_ids: Their ids.
            priority: 1 to 5, of which FTS serves the highest first; another one is refused before anything is sent.

        Returns:
            The state of each job after it, or the server's error for it.
        """
        if priority not in forms.PRIORITIES:
            raise FTS_JOB_INVALID(f"priority {priority!r} is not one of 1 to 5; {FTS_JOB_INVALID.hint}")
        body = json.dumps({"params": {"priority": priority}}).encode()
        return self._of_jobs("POST", "priority", job_ids, body=body)

    # -- bans; they need the level `config` at the server

    def bans(self, of: BanOf) -> tuple[forms.Ban, ...]:
        """List what is banned.

        Args:
            of: Storages or users.

        Returns:
            The bans.
        """
        kind = forms.Ban if of is BanOf.STORAGE else forms.BannedUser
        call = FtsCall("GET", f"/ban/{of.value[0]}", f"list of banned {of.name.lower()}s")
        return self._listed(call, kind)

    def ban(self, of: BanOf, name: str, *, wait: bool = False, allow_submit: bool = False, message: str = "") -> None:
        """Ban a storage or user.

        Args:
            of: Which of the two.
            name: ``scheme://host`` of the storage, or the user's distinguished name.
            wait: Its files wait until the ban ends (storages only); otherwise they are canceled.
            allow_submit: With ``wait``: new jobs are taken, and wait as well.
            message: Why, as others see it.
        """
        path, parameter = of.value
        body: dict[str, Any] = {parameter: name, "message": message}
        if of is BanOf.STORAGE:
            body |= {"status": "wait" if wait else "cancel", "allow_submit": allow_submit}
        what = f"ban of {of.name.lower()} {name}"
        self._transport.checked(FtsCall("POST", f"/ban/{path}", what, body=json.dumps(body).encode()))

    def unban(self, of: BanOf, name: str) -> None:
        """End a ban; files that wait go on.

        Args:
            of: Storages or users.
            name: ``scheme://host`` of the storage, or the user's distinguished name.
        """
        path, parameter = of.value
        what = f"end of the ban of {of.name.lower()} {name}"
        self._transport.checked(FtsCall("DELETE", f"/ban/{path}?{urlencode({parameter: name})}", what))

    # -- links

    def link_decisions(self) -> tuple[forms.OptimizerDecision, ...]:
        """Return what the optimizer decided of each link, the newest first; a link that it has no decision of is left
        out."""
        return self._listed(FtsCall("GET", "/optimizer/current", "decisions of the optimizer"), forms.OptimizerDecision)

    # -- who we are

    def whoami(self) -> forms.Identity:
        """Return who the server takes us for. Without a credential it is anonymous, and not an error."""
        identity: forms.Identity = self._transport.value(
            FtsCall("GET", "/whoami", "whoami"), forms.Identity.model_validate
        )
        return identity

    def job_name(self, sid: str) -> forms.JobName:
        """The id that a job will have; the server is asked once who we are.

        Args:
            sid: Ours, as for `Identity.job_name`.

        Returns:
            The name to submit the job with.
        """
        return self.identity().job_name(sid)

    def identity(self) -> forms.Identity:
        """Return who the server takes us for; it is asked once."""
        if self._identity is None:
            self._identity = self.whoami()
        return self._identity

    def keep_delegated(self, *, now: datetime) -> None:
        """Do as `renew_credential`, once an hour.

        Args:
            now: The time, UTC.
        """
        if self._delegated is None or now - self._delegated > _ASKED_AGAIN:
            self.renew_credential(now=now)

    def renew_credential(self, *, now: datetime) -> None:
        """Find out whether the server takes our credential, and delegate the certificate if we have one.

        Args:
            now: The time, UTC.

        Raises:
            CredentialNeeded: It does not, or the certificate has ended.
        """
        if isinstance(self._credential, X509Files):
            self.delegate(now=now)
        else:
            self._identity = self.whoami()
        self._delegated = now

    def delegation_ends(self, identity: forms.Identity) -> datetime | None:
        """Ask for the proxy that the server has of us.

        Args:
            identity: Who the server takes us for (`whoami`).

        Returns:
            Until when the server can act for us, UTC; None without a delegation.
        """
        call = FtsCall("GET", _delegation(identity), "delegated proxy")
        found: forms.Delegation | None = self._transport.value(
            call, lambda value: None if value is None else forms.Delegation.model_validate(value)
        )
        return found.termination_time if found else None

    def delegate(
        self, *, lifetime: timedelta = DELEGATED, renewed_below: timedelta = RENEWED_BELOW, now: datetime | None = None
    ) -> datetime:
        """Let the server act for us by a proxy of our certificate (RFC 3820), if the one that it has ends soon.

        Args:
            lifetime: Of the delegated proxy; it never outlives our own.
            renewed_below: A delegation that lasts longer is left as it is.
            now: The time, UTC; None: that of this machine.

        Returns:
            Until when the server can act for us, UTC.

        Raises:
            FtsError: `CREDENTIAL_UNREADABLE`: the client has no certificate, or it cannot be read; `PROXY_EXPIRED`: our
                certificate has ended.
        """
        files = self._credential if isinstance(self._credential, X509Files) else X509Files("")
        credential = files.read()
        now = now or datetime.now(UTC)
        identity = self.whoami()
        ends = self.delegation_ends(identity)
        if ends is not None and ends - now > renewed_below:
            return ends
        path = _delegation(identity)
        request = self._transport.checked(FtsCall("GET", f"{path}/request", "request for a proxy"))
        proxy = signed_proxy(request.body or b"", credential, lifetime=lifetime, now=now)
        self._transport.checked(
            FtsCall("PUT", f"{path}/credential", "delegation of a proxy", body=proxy, content_type=None)
        )
        return min(now + lifetime, credential.expires)

    # -- replies that are lists

    def _listed(self, call: FtsCall, kind: type[R]) -> tuple[R, ...]:
        def parsed(value: Any) -> tuple[R, ...]:
            if not isinstance(value, list):
                raise ValueError("not a list")
            return tuple(kind.model_validate(entry) for entry in value)

        listed: tuple[R, ...] = self._transport.value(call, parsed)
        return listed

    # -- replies about many jobs

    def _of_jobs(
        self, method: str, verb: str, job_ids: Iterable[str], files: Sequence[str] = (), body: bytes | None = None
    ) -> forms.JobAnswers:
        query = f"?files={','.join(files)}" if files else ""
        jobs: dict[str, forms.JobStatus] = {}
        errors: dict[str, FtsError] = {}
        left, halvings = _checked_ids(job_ids), 0
        while left:
            batch = left[: _most_jobs(self._most_jobs, len(self.url) + len(query))]
            # with a comma at the end the server replies with a list for one job as well
            path, last = f"/jobs/{','.join(batch)},{query}", len(batch) == 1 or halvings == _MOST_HALVINGS
            call = FtsCall(method, path, f"{verb} of {len(batch)} FTS jobs", body=body, repeatable=last)
            try:
                reply = self._transport.send(call)
            except FtsReplyLost:
                if last:
                    raise
                # a link that is too slow for the reply is so the next time, too
                self._most_jobs, halvings = len(batch) // 2, halvings + 1
                continue
            left = left[len(batch) :]
            entries = _entries(reply)
            if entries is None:
                if 200 <= reply.status < 300:
                    raise self._transport.unexpected(call, reply)
                # FTS fails with the question of an anonymous caller
                if reply.status == 500 and self.identity().anonymous:
                    raise ANONYMOUS(f"FTS server {self.url}: {call.what}: no credential; {ANONYMOUS.hint}")
                raise self._transport.refused(call, reply)
            for job_id in batch:
                answer = _answer(job_id, entries.get(job_id), verb, files)
                if isinstance(answer, forms.JobStatus):
                    jobs[job_id] = answer
                else:
                    errors[job_id] = answer
        return forms.JobAnswers(jobs, errors)


def _states(file_ids: Sequence[int], value: Any) -> dict[int, FileState | None]:
    """The states of canceled files. Raises ValueError for another number of them than of files."""
    told = map(FileState, value if isinstance(value, list) else [value])
    # a text that is no state means that the file is not of the job
    pairs = zip(file_ids, told, strict=True)
    return {file_id: None if state is FileState.OTHER else state for file_id, state in pairs}


def _delegation(identity: forms.Identity) -> str:
    return f"/delegation/{quote(identity.delegation_id, safe='')}"


def _checked_ids(job_ids: Iterable[str]) -> list[str]:
    """The ids in the form that the server has, each once. Raises FTS_JOB_INVALID."""
    checked: dict[str, None] = {}
    for job_id in job_ids:
        try:
            checked[str(uuid.UUID(job_id))] = None
        except (ValueError, AttributeError, TypeError):
            raise FTS_JOB_INVALID(f"{job_id!r:.80} is not the id of an FTS job; {FTS_JOB_INVALID.hint}") from None
    return list(checked)


def _most_jobs(most: int, taken: int) -> int:
    """``taken``: characters of the request line that are not ids."""
    return max(1, min(most, (_MOST_PATH - taken) // 37))


def _entries(reply: FtsReply) -> dict[str, Mapping[str, Any]] | None:
    """The parts of a reply by job id; None for one that has none. Parts without an id are left out."""
    try:
        value = reply.value()
    except ValueError:
        return None
    if isinstance(value, dict) and "job_id" in value:
        value = [value]
    if not isinstance(value, list):
        return None
    parts = [part for part in value if isinstance(part, dict)]
    return {str(part.get("job_id")).lower(): part for part in reversed(parts)}


def _answer(job_id: str, part: Mapping[str, Any] | None, verb: str, files: Sequence[str]) -> forms.JobStatus | FtsError:
    """The server's answer for one job: its state, or why it gives no state. ``files``: the fields asked for."""
    what = f"{verb} of FTS job {job_id}"
    status = _status_of(part.get("http_status")) if part else 0
    if part is None:
        fault = "the reply does not have it"
    elif status >= 400:
        message = part.get("http_message")
        reason = message if isinstance(message, str) else ""
        kind = JobUnknown if status == 404 else kind_of(status, reason)
        return kind(f"{what}: {reason[:1000]}; {kind.hint}", job_id=job_id, status=status, reason=reason)
    elif files and "files" not in part:
        fault = "the reply does not have its files"
    else:
        try:
            return _parsed(part, files)
        except ValidationError as error:
            # the number alone: the rest quotes the reply
            fault = f"{error.error_count()} fields of the reply are malformed"
        except ValueError as error:
            fault = str(error)
    return FTS_REPLY_UNEXPECTED(f"{what}: {fault}; {FTS_REPLY_UNEXPECTED.hint}", job_id=job_id)


def _parsed(part: Any, files: Collection[str] = forms.FILE_FIELDS) -> forms.JobStatus:
    """The state of a job. Raises ValueError if it is malformed, or a file is without a URL that was asked for."""
    status = forms.JobStatus.model_validate(part)
    wanted = _URLS & set(files)
    if any(not wanted <= file.model_fields_set for file in status.files):
        raise ValueError("the reply has a file without its URLs")
    return status


def _status_of(text: object) -> int:
    """The number of `404 Not Found`; 200 for a part that has none."""
    number = text.partition(" ")[0] if isinstance(text, str) else ""
    return int(number) if number.isascii() and number.isdigit() and len(number) == 3 else 200
