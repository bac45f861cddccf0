"""Prepare the artifacts of a batch: read, compress, hash and upload what is new, without any lease."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from include.nightlies.errors import BatchFailed
from include.nightlies.steps.values import BatchOutcome, Item
from operators.base import NightshiftOperator, attempt_of, batches_of, tries_left
from operators.links import SourceLink

if TYPE_CHECKING:
    from include.cvmfs.ingest.prepare import PrepareProgress

PROGRESS_EVERY_S = 10.0
NICENESS = 10


class PrepareArtifactsOperator(NightshiftOperator):
    """Each artifact becomes a changeset in the ledger, for `PublishArtifactsOperator`. Returns states and digests only.

    Args:
        batch: One batch of a plan, as its task returned it. One artifact that fails is recorded with its reason and
            does not stop the others of its batch; the task fails when all did, or while a further try may help.
        **kwargs: Those of every operator.
    """

    template_fields = ("batch",)
    operator_extra_links = (SourceLink(),)
    ui_color = "#dbeafe"

    def __init__(self, *, batch: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.prepare import prepare_batch

        (batch,) = batches_of(self.batch)
        site = self.site()
        attempt = attempt_of(context, outlast=self.outlasts(site))

        def prepare() -> BatchOutcome:
            return prepare_batch(site, attempt, batch, progress=ProgressReporter(self.log))

        with yielding():
            outcome = self.outlasting(site, prepare)
        if outcome.failures:
            error = BatchFailed(outcome.failures)
            if not outcome.done or (error.retryable and tries_left(context)):
                raise error if len(batch.items) > 1 else next(iter(outcome.failures.values()))
            self.log.warning("going on with %d of %d artifacts: %s", len(outcome.done), len(batch.items), error)
        return outcome.to_json()


@contextmanager
def yielding(niceness: int = NICENESS) -> Iterator[None]:
    """Lower the priority of this thread and of those it starts: a commit on this machine must not wait for us.

    Args:
        niceness: As `nice` counts, up to 19; a thread that has a higher one keeps it.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(before, niceness))
    try:
        yield
    finally:
        with suppress(PermissionError):  # only root may go back; a task's process ends here anyway
            os.setpriority(os.PRIO_PROCESS, 0, before)


class ProgressReporter:
    """A line in the task's log now and then."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._next = time.monotonic() + PROGRESS_EVERY_S

    def __call__(self, item: Item, done: PrepareProgress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROGRESS_EVERY_S
        self._log.info(
            "%s: %d files, %d bytes read; %d objects new, %d known, %d bytes uploaded",
            item.name, done.files, done.bytes, done.objects_new, done.objects_reused, done.bytes_uploaded,
        )  # fmt: skip
