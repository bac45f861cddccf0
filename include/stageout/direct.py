"""Files of a task of others' DAGs: a request like any other, whose files may be bare URLs, and its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from include.fts.errors import redact
from include.fts.jobs import FtsFile
from include.ledger.engine import Bind
from include.settings.sites import RemoteSite
from include.stageout import errors
from include.stageout.archive import archive_for_task
from include.stageout.components.retry_manager import kill, resubmit
from include.stageout.files import (
    FileToTransfer,
    StageoutRequest,
    TaskOptions,
    check_request,
    digest_of,
    is_bare,
    storage_of,
    third_party_urls,
)
from include.stageout.passes import last_passes
from include.stageout.requests import record_request
from include.stageout.retry import RETRY_RULES, TransferFailureClass
from include.stageout.states import TRANSFER_ENDED, TRANSFER_MOVES, StageoutComponent, TransferState
from include.stageout.status import TransferStatus, transfers_of_request

MOST_FILES = 1000
LONGEST_WITHOUT_PASS = timedelta(minutes=10)
_MOST_REASONS = 5
_MOST_URL, _MOST_WORD = 1024, 128
"""Characters that the ledger has for a URL, and for a storage, task and run."""
_FIELDS = frozenset({"source", "destination", "size", "checksum"})
_PASSES: Mapping[StageoutComponent, tuple[str, str]] = {
    StageoutComponent.SUBMITTER: ("submit", "stage_out_submit"),
    StageoutComponent.MONITOR: ("monitor", "stage_out_monitor"),
    StageoutComponent.REPORTER: ("report", "stage_out_monitor"),
    StageoutComponent.RETRY: ("retry", "stage_out_monitor"),
    StageoutComponent.REGISTER: ("register", "stage_out_finish"),
    StageoutComponent.CLEANER: ("clean", "stage_out_finish"),
}
"""The name of each component in passes, and the DAG of these."""


@dataclass(frozen=True, slots=True)
class TaskTry:
    """A try of a task.

    `task`: DAG, run, task and map index. `number`: of the try. `first`: the first try since the task was cleared: what
    earlier ones copied is copied again. `owner`: the user whom the transfers belong to.
    """

    task: tuple[str, str, str, str]
    number: int
    first: int
    owner: str

    def request(self, files: Sequence[FileToTransfer], options: TaskOptions) -> StageoutRequest:
        """The request of all its tries. A task with other files has another one."""
        dag, run, *_ = self.task
        plain = StageoutRequest(self.owner, "", "", tuple(files))
        key = digest_of(*self.task, str(self.first), str(options), plain.digest)
        return StageoutRequest(self.owner, key, f"{dag}/{run}"[-_MOST_WORD:].strip(), tuple(files), options)


def parse_files(given: Any, sites: Mapping[str, RemoteSite], task_id: str) -> tuple[FileToTransfer, ...]:
    """The files that a task was given.

    `given`: a list of mappings with `source` and `destination`, perhaps `size` and `checksum`; or of pairs of source
    and destination. Each of these is a URL, or `<site>:<logical name>` of a site of the configuration. Raises
    StageoutError: DIRECT_REFUSED for what is malformed; as `third_party_urls`.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or not 0 < len(given) <= MOST_FILES:
        raise errors.DIRECT_REFUSED("files", f"not a list of 1 to {MOST_FILES} files")
    return tuple(_file(f"file {index}", entry, sites, task_id) for index, entry in enumerate(given))


def record(
    bind: Bind, task: TaskTry, request: StageoutRequest, sites: Mapping[str, RemoteSite], *, now: datetime
) -> int:
    """Record the request of a try, or find that of an earlier one and try again what failed; its row.

    Transfers of earlier requests of tasks of the owner leave their destinations, once they have ended. Raises
    StageoutError: as `check_request` and `record_request`; FILES_FAILED while another transfer has a destination.
    """
    check_request(request, sites)
    try:
        receipt = record_request(bind, request, now=now)
    except errors.StageoutError as error:
        if error.code != errors.DESTINATION_TAKEN.code:
            raise
        archive_for_task(bind, request.owner, [file.place for file in request.files], now=now)
        try:
            receipt = record_request(bind, request, now=now)
        except errors.StageoutError as taken:
            raise errors.FILES_FAILED(taken.subject, taken.what) from None
    if receipt.repeated and task.number > 1:
        failed = [transfer.id for transfer in transfers_of_request(bind, receipt.id)]
        resubmit(bind, by=f"try {task.number} of its task", now=now, ids=failed)
    return receipt.id


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The transfers of a request."""

    transfers: tuple[TransferStatus, ...]

    @property
    def running(self) -> tuple[TransferStatus, ...]:
        """Transfers that have not ended."""
        return tuple(transfer for transfer in self.transfers if transfer.state not in TRANSFER_ENDED)

    @property
    def text(self) -> str:
        """The progress, for people."""
        running = self.running
        states = ", ".join(sorted({transfer.state.value for transfer in running}))
        ended = f"{len(self.transfers) - len(running)} of {len(self.transfers)} files have ended"
        return f"{ended}; the others are {states}" if running else ended

    def require_complete(self, task: str) -> None:
        """Raise StageoutError if files failed: FILES_FAILED if a further try may help, else FILES_UNTRANSFERABLE."""
        failed = [transfer for transfer in self.transfers if transfer.state in _FAILED]
        if not failed:
            return
        reasons = sorted(f"{redact(transfer.destination_name)}: {redact(transfer.reason)}" for transfer in failed)
        more = len(reasons) - _MOST_REASONS
        text = "; ".join(reasons[:_MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")
        kind = errors.FILES_FAILED if any(map(_may_pass, failed)) else errors.FILES_UNTRANSFERABLE
        raise kind(task, f"{len(failed)} of {len(self.transfers)} files failed: {text}")

    def to_json(self) -> dict[str, Any]:
        """The account of a complete request."""
        existing = TransferFailureClass.DESTINATION_EXISTS.value
        return {
            "files": len(self.transfers),
            "bytes": sum(transfer.size or 0 for transfer in self.transfers),
            "existing": sum(transfer.failure == existing for transfer in self.transfers),
        }


def look(bind: Bind, request: int, *, since: datetime, now: datetime) -> TaskProgress:
    """The progress of a request.

    `since`: when the task began to wait. Raises StageoutError: NO_PASS if no pass of a component that is needed has
    begun for ten minutes.
    """
    progress = TaskProgress(transfers_of_request(bind, request))
    passes = last_passes(bind) if progress.running else {}
    for state in {transfer.state for transfer in progress.running}:
        movers = {rule.component for (current, _), rule in TRANSFER_MOVES.items() if current is state}
        for component, dag in (_PASSES[mover] for mover in movers if mover in _PASSES):
            if now - max(passes.get(component, since), since) > LONGEST_WITHOUT_PASS:
                raise errors.NO_PASS(
                    f"DAG {dag}", f"no pass of `{component}` has begun for 10 minutes; files are {state.value}"
                )
    return progress


def kill_and_wait(bind: Bind, request: int, *, by: str, clock: Callable[[], datetime], seconds: float) -> bool:
    """Kill the transfers of a request, and wait until nothing of them can write any more.

    `seconds`: for how long it waits at most; 0: not at all. Returns whether all have ended. What FTS has ends when the
    monitor has seen it.
    """
    ends = time.monotonic() + seconds
    kill(bind, by=by, now=clock(), ids=[transfer.id for transfer in transfers_of_request(bind, request)])
    while running := TaskProgress(transfers_of_request(bind, request)).running:
        if time.monotonic() >= ends:
            break
        time.sleep(0.5)
    return not running


_FAILED = (TransferState.FAILED, TransferState.KILLED, TransferState.RETRACTED)


def _may_pass(transfer: TransferStatus) -> bool:
    kind = None if transfer.failure is None else TransferFailureClass(transfer.failure)
    return transfer.state is TransferState.FAILED and bool(kind and RETRY_RULES[kind].retries)


def _file(what: str, entry: Any, sites: Mapping[str, RemoteSite], task_id: str) -> FileToTransfer:
    fields = dict(entry) if isinstance(entry, Mapping) else None
    if fields is None and isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2:
        fields = {"source": entry[0], "destination": entry[1]}
    if fields is None or not {"source", "destination"} <= fields.keys() <= _FIELDS:
        raise errors.DIRECT_REFUSED(what, f"neither a pair nor a mapping of {', '.join(sorted(_FIELDS))}")
    source, destination, size = fields["source"], fields["destination"], fields.get("size")
    if not isinstance(source, str) or not isinstance(destination, str):
        raise errors.DIRECT_REFUSED(what, "source and destination are not texts")
    # a template gives a text
    if isinstance(size, str) and size.isascii() and size.isdigit():
        size = int(size)
    checksum = fields.get("checksum") or None
    if not isinstance(size, int | None) or not isinstance(checksum, str | None):
        raise errors.DIRECT_REFUSED(what, "size is not a number, or checksum not a text")
    ends = _end(what, source, sites), _end(what, destination, sites)
    try:
        urls = third_party_urls(*((sites.get(site), name) for site, name in ends))
    except errors.StageoutError as error:
        error.add_note(f"in {what} of the task")
        raise
    if fault := FtsFile(*urls, size=size, checksum=checksum).fault():
        raise errors.DIRECT_REFUSED(what, fault)
    return FileToTransfer(*ends[0], *ends[1], size=size, checksum=checksum, user_job=task_id[:_MOST_WORD])


def _end(what: str, text: str, sites: Mapping[str, RemoteSite]) -> tuple[str, str]:
    """The site and the logical name; of a URL its storage, and the URL itself."""
    if is_bare(text):
        if len(text) > _MOST_URL or len(storage_of(text)) > _MOST_WORD:
            raise errors.DIRECT_REFUSED(what, f"a URL has more than {_MOST_URL} characters, or its host {_MOST_WORD}")
        return storage_of(text), text
    site, _, name = text.partition(":")
    if site not in sites:
        raise errors.DIRECT_REFUSED(
            repr(text[:200]), "neither a URL nor <site>:<logical name> of a site of the configuration"
        )
    return site, name
