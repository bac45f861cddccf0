"""Jobs and files as replies have them: FTS's names and forms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from lab.fts.records import FileRecord, JobRecord

HOST = "localhost"
HOME = "https://gitlab.cern.ch/fts/fts3"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def moment(seconds: float | None) -> str | None:
    """UTC without a zone, to the second."""
    return None if seconds is None else _second(int(seconds))


def job_document(job: JobRecord) -> dict[str, Any]:
    """A job without its files."""
    options, (source, destination) = job.options, _job_link(job)
    return {
        "job_id": job.job_id, "job_state": job.state.value, "job_type": options.job_type, "reason": job.reason,
        "submit_time": moment(job.submitted), "job_finished": moment(job.ended), "priority": job.priority,
        "source_se": source, "dest_se": destination, "user_dn": job.user, "vo_name": job.vo, "cred_id": job.vo,
        "submit_host": HOST, "job_metadata": job.metadata, "retry": options.retry,
        "retry_delay": options.retry_delay_s, "verify_checksum": options.verify,
        "overwrite_flag": "Y" if options.overwrite else None, "dst_file_report": options.dst_file_report,
        "max_time_in_queue": None if options.queue_ends is None else int(options.queue_ends),
        "bring_online": -1, "copy_pin_lifetime": -1, "archive_timeout": -1, "source_space_token": "",
        "space_token": "", "internal_job_params": None, "target_qos": None, "http_status": "200 Ok",
    }  # fmt: skip


def file_document(file: FileRecord, fields: Iterable[str]) -> dict[str, Any]:
    """Some fields of a file; a name that no file has is left out."""
    return {name: _FILE[name](file) for name in fields if name in _FILE}


def attempts_document(file: FileRecord) -> list[dict[str, Any]]:
    """The earlier tries of a file."""
    return [
        {"file_id": file.file_id, "attempt": number, "datetime": moment(when), "reason": reason, "transfer_host": HOST}
        for number, (when, reason) in enumerate(file.attempts or (), start=1)
    ]


def _job_link(job: JobRecord) -> tuple[str | None, str | None]:
    """The storages of a job whose files are all on one link."""
    first = job.files[0].link
    return first if all(file.link == first for file in job.files) else (None, None)


def _seconds(file: FileRecord) -> float | None:
    return None if file.started is None or file.ended is None else round(file.ended - file.started, 3)


def _throughput(file: FileRecord) -> float | None:
    """MiB/s."""
    seconds = _seconds(file)
    return round(file.size / seconds / (1 << 20), 6) if seconds and file.size else None


def _none(_: FileRecord) -> None:
    return None


_FILE: Mapping[str, Callable[[FileRecord], Any]] = {
    "file_id": lambda file: file.file_id,
    "file_index": lambda file: file.index,
    "file_state": lambda file: file.state.value,
    "job_id": lambda file: file.job.job_id,
    "source_surl": lambda file: file.source,
    "dest_surl": lambda file: file.destination,
    "source_se": lambda file: file.link[0],
    "dest_se": lambda file: file.link[1],
    "reason": lambda file: file.reason,
    "recoverable": lambda file: file.recoverable,
    "retry": lambda file: file.retry,
    "retry_timestamp": lambda file: moment(file.due) if file.due and not file.state.terminal else None,
    "filesize": lambda file: file.size or file.user_size,
    "user_filesize": lambda file: file.user_size,
    "checksum": lambda file: file.checksum,
    "start_time": lambda file: moment(file.started),
    "finish_time": lambda file: moment(file.ended),
    "tx_duration": _seconds,
    "throughput": _throughput,
    "transferred": lambda file: file.size,
    "activity": lambda file: file.activity,
    "priority": lambda file: file.job.priority,
    "file_metadata": lambda file: file.metadata,
    "vo_name": lambda file: file.job.vo,
    "transfer_host": lambda file: HOST if file.started is not None else None,
    # one for each copy, as where each is a process
    "pid": lambda file: file.file_id if file.started is not None else None,
    "selection_strategy": lambda _: "auto",
    "hashed_id": lambda file: file.file_id % 65536,
    **dict.fromkeys((
        "log_file", "log_file_debug", "internal_file_params", "staging_start", "staging_finished",
        "staging_metadata", "archive_start_time", "archive_finish_time", "archive_metadata", "scitag",
        "bringonline_token", "source_token_id", "destination_token_id", "current_failures", "dest_surl_uuid",
        "log_debug",
    ), _none),
}  # fmt: skip
FILE_FIELDS = tuple(_FILE)
