"""Transfer files by FTS from others' DAGs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from hooks.site import default_deferrable
from operators.base import NightshiftOperator, clock, holder_name
from operators.lease_task import Killed, WaitedTooLong, quietly
from triggers.checks import CHECKS
from triggers.fts import FtsJobTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.fts.client.client import FtsClient
    from include.site.site import Site
    from include.stageout.direct import DirectProgress, DirectTransfer

__all__ = ["FtsTransferOperator"]

VERIFY = ("both", "source", "target", "none")


class FtsTransferOperator(NightshiftOperator):
    """Copies files between storages by an FTS server, and succeeds once FTS has copied and compared all of them.

    For a single data set. Users' files in numbers go through stage-out (docs/stage-out.md), which keeps no task.

    The ids of its jobs follow from DAG, run, task, map index and try: a try that lost a reply, or died, is continued by
    the next, and what is copied is not copied again; a cleared task begins again. A file that exists at its destination
    fails, unless FTS reports the size and checksum that were declared. A user who stops the task cancels its jobs. A
    try submits nothing while copies of earlier ones may still write. Returns a mapping: `files`, `bytes`, `existing`
    (those that were there before).

    Args:
        files: A list of mappings with `source`, `destination` and, if known, `size` and `checksum`
            (`adler32:0a1b2c3d`), or of pairs of source and destination. Each of the two is a URL, or
            `<site>:<logical name>` of a site of the configuration.
        fts_conn_id: A connection of type `fts`.
        verify: Which checksums FTS compares: `both`, `source`, `target` or `none`.
        overwrite: Whether files at the destinations are replaced.
        priority: 1 to 5; FTS serves the highest first.
        timeout: Seconds until jobs that have not ended are canceled, and the task fails.
        poll_interval: Seconds between two looks at most.
        deferrable: Whether to wait in the triggerer; otherwise the task itself waits. By default `default_deferrable`
            of Airflow's section `[operators]`.
        **kwargs: Those of every operator.

    Raises:
        StageoutError: Files are malformed, or FTS failed to copy them.
        WaitedTooLong: `timeout` is over; the jobs are canceled.
        FtsError: FTS refused the job.
    """

    template_fields: Sequence[str] = ("files", "fts_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"files": "json"}
    ui_color = "#dcfce7"

    def __init__(
        self,
        *,
        files: Any,
        fts_conn_id: str = "fts_default",
        verify: str = "both",
        overwrite: bool = False,
        priority: int | None = None,
        timeout: float = 12 * 3600.0,
        poll_interval: float = 30.0,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if verify not in VERIFY:
            raise ValueError(f"verify is {verify!r}: use one of {', '.join(VERIFY)}")
        super().__init__(**kwargs)
        self.files = files
        self.fts_conn_id = fts_conn_id
        self.verify = verify
        self.overwrite = overwrite
        self.priority = priority
        self.timeout = timeout
        self.poll_interval = poll_interval
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self._job_ids: tuple[str, ...] = ()

    def execute(self, context: Context) -> dict[str, Any]:
        return self._go_on(context, clock() + timedelta(seconds=self.timeout))

    def ended(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """The jobs have ended, or the time is over. What FTS does not know any more is submitted again."""
        self.log.info("back from waiting: %s", event["reason"])
        end = datetime.fromisoformat(event["since"]) + timedelta(seconds=self.timeout)
        return self._go_on(context, end)

    def on_kill(self) -> None:
        if self._job_ids:
            # in a thread of its own: the interrupted one may be in the middle of a connection
            thread = threading.Thread(target=quietly, args=(partial(self._cancel, self.site()),), daemon=True)
            thread.start()
            thread.join(20)
            raise Killed(f"{self.task_id} was killed; its FTS jobs {', '.join(self._job_ids)} are canceled")

    def _go_on(self, context: Context, end: datetime) -> dict[str, Any]:
        site = self.site()
        transfer = self._transfer(context, site)
        while True:
            progress = self.outlasting(site, lambda: self._advance(site, transfer))
            if not (progress.running or progress.writing):
                progress.require_complete(holder_name(context))
                self.log.info("%d files copied, %d of them existed", len(progress.copied), len(progress.existing))
                return progress.to_json()
            if clock() >= end:
                self._cancel(site)
                jobs = f"FTS jobs {', '.join(self._job_ids)}"
                told = f"copies of {jobs} may still write" if progress.writing else f"{jobs} did not end; canceled"
                raise WaitedTooLong(holder_name(context), told)
            self._wait(site, end, at_rest=bool(progress.writing))

    def _transfer(self, context: Context, site: Site) -> DirectTransfer:
        from include.fts.client.jobs import JobParams, VerifyChecksum
        from include.stageout.direct import DirectTransfer, parse_files

        ti = context["ti"]
        params = JobParams(
            verify_checksum=VerifyChecksum(self.verify),
            overwrite=self.overwrite,
            priority=self.priority,
            max_time_in_queue_s=max(1, int(self.timeout)),
        )
        # a clear sets `max_tries` so that as many retries follow as the task has
        first = max(1, (ti.max_tries or 0) - (self.retries or 0) + 1)
        task = (ti.dag_id, ti.run_id, ti.task_id, str(-1 if ti.map_index is None else ti.map_index))
        files = parse_files(self.files, site.settings.sites)
        return DirectTransfer(task, ti.try_number, min(first, ti.try_number), files, params)

    def _advance(self, site: Site, transfer: DirectTransfer) -> DirectProgress:
        """Look, and submit what is due. Its `running` jobs are canceled by a kill from then on."""
        from include.stageout.direct import DirectProgress, look, submit

        with self._client(site) as client:
            progress = look(client, transfer, margin=site.settings.stageout.copy_margin, now=clock())
            self._job_ids = progress.running or progress.writing or tuple(name.job_id for name in progress.to_submit)
            if progress.to_submit:
                progress = DirectProgress(submit(client, progress.to_submit))
                self.log.info("submitted to %s: FTS jobs %s", client.url, ", ".join(progress.running))
            elif progress.running:
                self.log.info("found at %s: FTS jobs %s", client.url, ", ".join(progress.running))
            elif progress.writing:
                self.log.info("copies of earlier tries may still write: FTS jobs %s", ", ".join(progress.writing))
        return progress

    def _wait(self, site: Site, end: datetime, *, at_rest: bool) -> None:
        since = end - timedelta(seconds=self.timeout)
        trigger = FtsJobTrigger(
            self.fts_conn_id,
            self._job_ids,
            end.isoformat(),
            self.poll_interval,
            since=since.isoformat(),
            at_rest=at_rest,
        )
        if self.deferrable:
            left = end - clock() + timedelta(seconds=2 * self.poll_interval + 60)
            self.defer(trigger=trigger, method_name="ended", timeout=left)
        seen = self.outlasting(site, lambda: CHECKS[trigger.check].look(lambda: site, **trigger.arguments))
        if not seen.ready:
            time.sleep(max(0.0, min(self.poll_interval, (end - clock()).total_seconds())))

    def _client(self, site: Site) -> FtsClient:
        from include.fts.client.open import connected_client

        return connected_client(site.secrets.get(self.fts_conn_id))

    def _cancel(self, site: Site) -> None:
        with self._client(site) as client:
            client.cancel(self._job_ids)
