"""Transfer files by FTS from others' DAGs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context

from hooks.task import default_deferrable
from include.stageout.errors import NO_PASS, StageoutError
from operators.base import NightshiftOperator, clock, holder_name
from operators.lease_task import Killed, WaitedTooLong, quietly
from triggers.fts import KILL_S, TransfersTrigger

if TYPE_CHECKING:
    from include.site.site import Site

__all__ = ["FtsTransferOperator"]

VERIFY = ("both", "source", "target", "none")


class FtsTransferOperator(NightshiftOperator):
    """Copies files between storages by stage-out and an FTS server, and succeeds once all copies are verified.

    For a single data set. Users' files in numbers go through stage-out (docs/stage-out.md), which keeps no task.

    The task records a request, whose transfers belong to the task's owner, and waits. The passes of stage-out submit,
    verify and retry them as all others; only their sources are never removed. A try that died is continued by the next,
    which also tries again what failed; a cleared task begins again. A copy at a site is compared by the rules of the
    site, and one at a URL by FTS alone. A file that exists at its destination fails, unless it is at a site, and is the
    file that was declared. A user who stops the task kills its transfers. Returns a mapping: `files`, `bytes`,
    `existing` (those that were there before).

    Args:
        files: A list of mappings with `source`, `destination` and, if known, `size` and `checksum`
            (`adler32:0a1b2c3d`), or of pairs of source and destination. Each of the two is a URL, or
            `<site>:<logical name>` of a site of the configuration.
        fts_conn_id: A connection of type `fts`.
        verify: Which checksums FTS compares: `both`, `source`, `target` or `none`.
        overwrite: Whether files at the destinations are replaced.
        priority: 1 to 5; FTS serves the highest first.
        timeout: Seconds until transfers that have not ended are killed, and the task fails.
        poll_interval: Seconds between two looks at most.
        deferrable: Whether to wait in the triggerer; otherwise the task itself waits. By default `default_deferrable`
            of Airflow's section `[operators]`.
        **kwargs: Those of every operator.

    Raises:
        StageoutError: Files are malformed or failed, or no pass of stage-out has begun for ten minutes.
        WaitedTooLong: `timeout` is over; the transfers are killed.
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
        self._request, self._task = 0, ""

    def execute(self, context: Context) -> dict[str, Any]:
        site = self.site()
        self._task = holder_name(context)
        self._request = self.outlasting(site, lambda: self._record(context, site))
        self.log.info("request %d is recorded", self._request)
        return self._go_on(site, clock())

    def ended(self, context: Context, event: dict[str, Any], request: int) -> dict[str, Any]:
        """The transfers have ended, or the time is over, or nothing of stage-out is at work."""
        self.log.info("back from waiting: %s", event["reason"])
        self._task, self._request = holder_name(context), request
        return self._go_on(self.site(), datetime.fromisoformat(event["since"]))

    def on_kill(self) -> None:
        if self._request:
            # in a thread of its own: the interrupted one may be in the middle of a connection
            kill = partial(self._kill, self.site(), KILL_S)
            thread = threading.Thread(target=quietly, args=(kill,), daemon=True)
            thread.start()
            thread.join(KILL_S + 10)
            raise Killed(
                f"{self.task_id} was killed, and so are its transfers; FTS's part ends in a pass of its monitor"
            )

    def _record(self, context: Context, site: Site) -> int:
        from include.stageout.direct import TaskTry, parse_files, record
        from include.stageout.files import TaskOptions

        ti = context["ti"]
        # a clear sets `max_tries` so that as many retries follow as the task has
        first = max(1, (ti.max_tries or 0) - (self.retries or 0) + 1)
        task = (ti.dag_id, ti.run_id, ti.task_id, str(-1 if ti.map_index is None else ti.map_index))
        tried = TaskTry(task, ti.try_number, min(first, ti.try_number), self.owner)
        files = parse_files(self.files, site.settings.sites, ti.task_id)
        options = TaskOptions(self.fts_conn_id, self.verify, self.overwrite, self.priority)
        return record(site.ledger, tried, tried.request(files, options), site.settings.sites, now=clock())

    def _go_on(self, site: Site, since: datetime) -> dict[str, Any]:
        from include.stageout.direct import look

        end = since + timedelta(seconds=self.timeout)
        while True:
            try:
                progress = self.outlasting(site, lambda: look(site.ledger, self._request, since=since, now=clock()))
            except StageoutError as error:
                if error.code == NO_PASS.code:
                    self._kill(site)
                raise
            if not progress.running:
                progress.require_complete(self._task)
                return progress.to_json()
            if clock() >= end:
                self._kill(site)
                raise WaitedTooLong(self._task, f"{progress.text}; killed")
            self.log.info("%s", progress.text)
            if self.deferrable:
                self._defer(since, end)
            time.sleep(max(0.0, min(self.poll_interval, (end - clock()).total_seconds())))

    def _defer(self, since: datetime, end: datetime) -> None:
        left = end - clock() + timedelta(seconds=2 * self.poll_interval + 60)
        trigger = TransfersTrigger(self._request, end.isoformat(), self.poll_interval, since.isoformat(), self._task)
        self.defer(trigger=trigger, method_name="ended", timeout=left, kwargs={"request": self._request})

    def _kill(self, site: Site, seconds: float = 0.0) -> None:
        from include.stageout.direct import kill_and_wait

        kill_and_wait(site.ledger, self._request, by=self._task, clock=clock, seconds=seconds)
