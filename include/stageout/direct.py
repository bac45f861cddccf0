"""Files that a task hands to FTS itself, outside of the ledger: jobs of its tries, and what is left to do.

Each try has at most two jobs, whose ids follow from the task alone: of files whose destinations must not exist, and of
files that may replace what an earlier try left there. So a try that lost a reply, or died, is continued by the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from include.fts.client.client import FtsClient
from include.fts.client.jobs import FileStatus, FtsFile, FtsJob, JobName, JobParams, JobStatus
from include.fts.errors import JobExists, JobUnknown, SubmitUnclear, redact
from include.fts.states import FailureReason, FailureScope, FileState
from include.settings.sites import PROTOCOLS, RemoteSite
from include.stageout.attempts.answers import JobAnswer, may_write_until, proves_own_destination
from include.stageout.errors import DIRECT_REFUSED, FILES_FAILED, FILES_UNTRANSFERABLE, NO_SITE_URL, StageoutError
from include.stageout.retry import RETRY_RULES, TransferFailureClass, failure_class
from include.stageout.urls import SiteOperation, site_urls, third_party_urls

MOST_FILES = 1000
MOST_EARLIER_TRIES = 20
SUBMISSIONS = 3
"""How often a request without a reply is sent; it has the same id each time."""
_MOST_REASONS = 5
_ENDED = JobAnswer(overwrites=False, ended=True, stopping=False)
_FIELDS = frozenset({"source", "destination", "size", "checksum"})


class DirectPart(Enum):
    """The jobs of one try."""

    NEW = "new"
    REPLACING = "replacing"
    """What is at its destinations was left by an earlier try, which had found them empty."""


@dataclass(frozen=True, slots=True)
class DirectTransfer:
    """What a task transfers.

    Attributes:
        task: What names the task: DAG, run, task, map index.
        number: Its try.
        first: The first try since the task was cleared: what earlier ones copied is copied again.
        files: What `parse_files` returns.
        params: What holds for all of them.
    """

    task: tuple[str, ...]
    number: int
    first: int
    files: tuple[FtsFile, ...]
    params: JobParams

    def sid(self, number: int, part: DirectPart) -> str:
        """Return what FTS makes the id of a job from. A task with other files has other jobs."""
        files = [(file.source, file.destination) for file in self.files]
        text = json.dumps([self.task, number, part.value, files])
        return f"nightshift-{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class DirectProgress:
    """What became of the files. With `running`, `writing` or `to_submit` there is more to come.

    Attributes:
        running: The ids of the jobs that have not ended.
        writing: The ids of ended jobs whose copies may still write: nothing is submitted before they cannot.
        to_submit: The jobs that this try has to submit.
        copied: Complete files, by destination.
        existing: Those of them that were at their destinations before, with the size and checksum that were declared.
        failed: Why the others failed, by destination.
    """

    running: tuple[str, ...] = ()
    writing: tuple[str, ...] = ()
    to_submit: Mapping[JobName, FtsJob] = field(default_factory=dict)
    copied: Mapping[str, FileStatus] = field(default_factory=dict)
    existing: frozenset[str] = frozenset()
    failed: Mapping[str, FailureReason] = field(default_factory=dict)

    def require_complete(self, what: str) -> None:
        """Raise StageoutError if files failed: FILES_FAILED if a further try may help, else FILES_UNTRANSFERABLE."""
        if not self.failed:
            return
        reasons = [f"{redact(place)}: {why.format()}" for place, why in sorted(self.failed.items())]
        more = len(reasons) - _MOST_REASONS
        told = "; ".join(reasons[:_MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")
        may_pass = any(RETRY_RULES[failure_class(why)].retries for why in self.failed.values())
        kind = FILES_FAILED if may_pass else FILES_UNTRANSFERABLE
        raise kind(what, f"{len(reasons)} of {len(self.copied) + len(reasons)} files failed: {told}")

    def to_json(self) -> dict[str, Any]:
        """The account of a complete transfer."""
        sizes = [file.filesize for file in self.copied.values() if file.filesize is not None]
        return {"files": len(self.copied), "bytes": sum(sizes), "existing": len(self.existing)}


def parse_files(given: Any, sites: Mapping[str, RemoteSite]) -> tuple[FtsFile, ...]:
    """The files that a task was given, with URLs.

    Args:
        given: A list of mappings with `source` and `destination`, perhaps `size` and `checksum`; or of pairs of source
            and destination. Each of these is a URL, or `<site>:<logical name>` of a site of the configuration.
        sites: The sites of the configuration.

    Raises:
        StageoutError: DIRECT_REFUSED for what is malformed; as `third_party_urls`.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or not 0 < len(given) <= MOST_FILES:
        raise DIRECT_REFUSED("files", f"not a list of 1 to {MOST_FILES} files")
    return tuple(_file(index, entry, sites) for index, entry in enumerate(given))


def look(client: FtsClient, transfer: DirectTransfer, *, margin: timedelta, now: datetime) -> DirectProgress:
    """Return what FTS reports of all tries of the task. Changes nothing.

    Args:
        client: Of the server.
        transfer: What the task transfers.
        margin: As of `job_writes`.
        now: The time, UTC.

    Raises:
        FtsError: As `FtsClient.status`, and for a job that is not ours to see.
    """
    identity = client.whoami()
    tries = range(max(1, transfer.number - MOST_EARLIER_TRIES), transfer.number + 1)
    names = {(number, part): identity.job_name(transfer.sid(number, part)) for number in tries for part in DirectPart}
    found = _jobs(client, [name.job_id for name in names.values()])
    jobs = {key: found[name.job_id] for key, name in names.items() if name.job_id in found}
    running = tuple(str(job.job_id) for job in jobs.values() if not job.job_state.terminal)
    if running:
        return DirectProgress(running)
    progress, leftovers = _judged(transfer, [job for (number, _), job in jobs.items() if number >= transfer.first])
    if any(number == transfer.number for number, _ in jobs) or not progress.failed:
        return progress
    if writing := tuple(str(job.job_id) for job in jobs.values() if job_writes(job, margin=margin, now=now)):
        return DirectProgress(writing=writing)
    parts = {
        DirectPart.NEW: [file for file in transfer.files if file.destination in progress.failed.keys() - leftovers],
        DirectPart.REPLACING: [file for file in transfer.files if file.destination in leftovers],
    }
    to_submit = {
        names[transfer.number, part]: FtsJob(tuple(files), _params(transfer, part))
        for part, files in parts.items() if files
    }  # fmt: skip
    return replace(progress, to_submit=to_submit)


def job_writes(job: JobStatus, *, margin: timedelta, now: datetime) -> bool:
    """Tell whether a copy of a job that has ended may still write to its destination.

    Args:
        job: With its files.
        margin: Added to the longest time that FTS lets a copy take.
        now: The time, UTC.
    """
    ended = job.job_finished or now
    times = (
        may_write_until(file, file.filesize or None, margin=margin, now=ended)
        for file in job.files if file.file_state is not FileState.FINISHED
    )  # fmt: skip
    return any(time is not None and time > now for time in times)


def submit(client: FtsClient, jobs: Mapping[JobName, FtsJob]) -> tuple[str, ...]:
    """Submit the jobs, each once, whatever replies are lost; their ids.

    Raises:
        SubmitUnclear: No reply came, and FTS does not know the job. A further try looks for it first.
        FtsError: As `FtsClient.submit`.
    """
    for name, job in jobs.items():
        _submit(client, name, job)
    return tuple(name.job_id for name in jobs)


def _submit(client: FtsClient, name: JobName, job: FtsJob) -> None:
    for attempt in range(1, SUBMISSIONS + 1):
        try:
            client.submit(job, name)
        except JobExists:
            # an earlier request arrived
            return
        except SubmitUnclear:
            if name.job_id in _jobs(client, [name.job_id]):
                return
            if attempt == SUBMISSIONS:
                raise
        else:
            return


def _jobs(client: FtsClient, job_ids: Sequence[str]) -> dict[str, JobStatus]:
    """Return those of the jobs that FTS knows, or has in its archive."""
    answers = client.status(job_ids)
    found = dict(answers.jobs)
    for job_id, error in answers.errors.items():
        if not isinstance(error, JobUnknown):
            raise error
        try:
            found[job_id] = client.archived(job_id)
        except JobUnknown:
            continue
    return found


def _judged(transfer: DirectTransfer, jobs: Sequence[JobStatus]) -> tuple[DirectProgress, frozenset[str]]:
    """The progress by jobs that have ended, the oldest first, and the destinations where they left something."""
    copied: dict[str, FileStatus] = {}
    existing: set[str] = set()
    # a job that overwrites proves nothing, but then an earlier one did
    leftovers: set[str] = set()
    failed = {file.destination: FailureReason(None, None, "FTS has no job of it") for file in transfer.files}
    declared = {file.destination: file for file in transfer.files}
    for status in (status for job in jobs for status in job.files if status.dest_surl in declared):
        file, place = declared[status.dest_surl], status.dest_surl
        if status.file_state is FileState.FINISHED:
            fault = _difference(file, status.filesize, status.checksum)
        elif _is_there_already(file, status):
            fault = None
            existing.add(place)
        else:
            fault = status.failure or FailureReason(None, None, f"it is {status.file_state.value}")
        if fault is None:
            copied[place] = status
            failed.pop(place, None)
        elif place in failed:
            failed[place] = fault
            if status.file_state is FileState.FINISHED or proves_own_destination(status, fault, _ENDED):
                leftovers.add(place)
    progress = DirectProgress(copied=copied, existing=frozenset(existing), failed=failed)
    return progress, frozenset(leftovers & failed.keys())


def _is_there_already(file: FtsFile, status: FileStatus) -> bool:
    """Tell whether the destination existed, and FTS reports the size and checksum that were declared."""
    failure = status.failure
    if failure is None or failure_class(failure) is not TransferFailureClass.DESTINATION_EXISTS:
        return False
    metadata = status.file_metadata
    report = metadata.get("dst_file") if isinstance(metadata, dict) else None
    if not isinstance(report, dict) or file.size is None or ":" not in (file.checksum or ""):
        return False
    checksum = f"{report.get('checksum_type')}:{report.get('checksum_value')}"
    return report.get("file_size") == file.size and _plain(checksum) == _plain(str(file.checksum))


def _difference(file: FtsFile, size: int | None, checksum: str | None) -> FailureReason | None:
    """Return what differs of a file that FTS copied; None if it is what was declared."""
    if file.size is not None and size is not None and size != file.size:
        return FailureReason(FailureScope.DESTINATION, None, f"{size} bytes, declared: {file.size}")
    if checksum and ":" in checksum and ":" in (file.checksum or ""):
        (algorithm, there), (declared, digits) = _plain(checksum), _plain(str(file.checksum))
        if algorithm == declared and there != digits:
            text = f"checksum mismatch: {checksum}, declared: {file.checksum}"
            return FailureReason(FailureScope.DESTINATION, None, text)
    return None


def _plain(checksum: str) -> tuple[str, str]:
    algorithm, _, digits = checksum.lower().partition(":")
    return algorithm, digits.lstrip("0")


def _params(transfer: DirectTransfer, part: DirectPart) -> JobParams:
    metadata = {"issuer": "nightshift", "task": "/".join(transfer.task)[:500], "try": transfer.number}
    overwrite = transfer.params.overwrite or part is DirectPart.REPLACING
    return replace(transfer.params, overwrite=overwrite, dst_file_report=not overwrite, metadata=metadata)


def _file(index: int, entry: Any, sites: Mapping[str, RemoteSite]) -> FtsFile:
    what = f"file {index}"
    fields = dict(entry) if isinstance(entry, Mapping) else None
    if fields is None and isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2:
        fields = {"source": entry[0], "destination": entry[1]}
    if fields is None or not {"source", "destination"} <= fields.keys() <= _FIELDS:
        raise DIRECT_REFUSED(what, f"neither a pair nor a mapping of {', '.join(sorted(_FIELDS))}")
    source, destination, size = fields["source"], fields["destination"], fields.get("size")
    if not isinstance(source, str) or not isinstance(destination, str):
        raise DIRECT_REFUSED(what, "source and destination are not texts")
    # a template gives a text
    if isinstance(size, str) and size.isascii() and size.isdigit():
        size = int(size)
    checksum = fields.get("checksum") or None
    if not isinstance(size, int | None) or not isinstance(checksum, str | None):
        raise DIRECT_REFUSED(what, "size is not a number, or checksum not a text")
    try:
        urls = _urls(source, destination, sites)
    except StageoutError as error:
        error.add_note(f"in {what} of the task")
        raise
    file = FtsFile(*urls, size=size, checksum=checksum)
    if fault := file.fault():
        raise DIRECT_REFUSED(what, fault)
    return file


def _urls(source: str, destination: str, sites: Mapping[str, RemoteSite]) -> tuple[str, str]:
    ends = [_end(text, sites) for text in (source, destination)]
    match ends:
        case [str(), str()]:
            return source, destination
        case [(RemoteSite() as there, str(name)), (RemoteSite() as here, str(other))]:
            return third_party_urls((there, name), (here, other))
        case [(RemoteSite() as site, str(name)), str(url)]:
            return _beside(url, site, name), url
        case [str(url), (RemoteSite() as site, str(name))]:
            return url, _beside(url, site, name)
    raise AssertionError(ends)


def _end(text: str, sites: Mapping[str, RemoteSite]) -> str | tuple[RemoteSite, str]:
    if "://" in text:
        return text
    site, _, name = text.partition(":")
    if site not in sites:
        raise DIRECT_REFUSED(repr(text[:200]), "neither a URL nor <site>:<logical name> of a site of the configuration")
    return sites[site], name


def _beside(url: str, site: RemoteSite, name: str) -> str:
    """The URL of a name at a site in the protocol of another URL."""
    protocol = PROTOCOLS.get(urlsplit(url).scheme)
    found = site_urls(site, SiteOperation.THIRD_PARTY, name)
    if protocol not in found:
        raise NO_SITE_URL(f"site {site.name}", f"no `third_party` rule for {name} in the protocol of {redact(url)}")
    return found[protocol]
