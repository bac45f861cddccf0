"""Publish the prepared artifacts of a batch, each under a short lease that this task takes, uses and gives back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hooks.cause import PLAN
from operators.base import attempt_of, batches_of
from operators.lease import Done, LeaseTaskOperator, Waiting
from operators.links import RepositoryLink

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import Context

    from include.ledger.engine import Bind
    from include.nightlies.attempt import Attempt
    from include.nightlies.steps.publish import PublishOutcome
    from include.nightlies.steps.values import Batch
    from include.site.site import Site


ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
"""The states that a task does not leave by itself."""


class BatchTaskOperator(LeaseTaskOperator):
    """A task that publishes a batch. One that fails is recorded with its reason and stops no other.

    Args:
        batch: One batch of a plan, as its task returned it.
        **kwargs: Those of `LeaseTaskOperator`.

    Raises:
        BatchFailed: Several artifacts failed, or one beside others that were published; a single one raises its own
            error.
    """

    template_fields = ("batch",)
    operator_extra_links = (RepositoryLink(),)

    def __init__(self, *, batch: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self._failures: dict[str, Exception] = {}

    def settled(self, ledger: Bind, attempt: Attempt, batch: Batch, outcome: PublishOutcome) -> Done | Waiting:
        """What an attempt with this outcome comes to.

        Args:
            ledger: Where artifacts that are given up are recorded.
            attempt: The try that runs now.
            batch: The batch of the task.
            outcome: What was published, failed or is busy in this attempt.

        Returns:
            The wait for what is busy; else the task's result.

        Raises:
            BatchFailed: Several artifacts failed, and nothing is busy any more; a single one raises its own error.
        """
        from include.nightlies.steps.errors import BatchFailed
        from include.nightlies.steps.publish import give_up

        # an artifact that failed in an earlier attempt of this try keeps the error itself
        self._failures = outcome.failures | self._failures
        if outcome.busy:
            return Waiting(outcome.busy, partial(give_up, ledger, attempt, batch, outcome.busy))
        failures = self._failures
        if failures:
            several = len(failures) > 1 or outcome.done
            raise BatchFailed(failures) if several else next(iter(failures.values()))
        return Done(outcome.to_json())


class PublishArtifactsOperator(BatchTaskOperator):
    """Publishes what `PrepareArtifactsOperator` prepared.

    Waits for busy paths in the triggerer, publishing the others first.

    A try that finds its tree at the destination, because an earlier one had published it before it died, reports so and
    makes no new revision. No token leaves the task: what is deferred, returned or logged names paths and digests only.
    """

    ui_color = "#dcfce7"

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.nightlies.steps.publish import publish_batch

        (batch,) = batches_of(self.batch)
        attempt = attempt_of(context, outlast=self.outlasts(site), on_lease=self.on_lease)
        needed = {name for item in batch.items for name in item.needs}
        outcome = publish_batch(site, attempt, batch, ended=ended_tasks(context, needed))
        return self.settled(site.ledger, attempt, batch, outcome)


def ended_tasks(context: Context, artifacts: Collection[str]) -> dict[str, str]:
    """Which of these artifacts have no task any more that will publish them.

    Args:
        context: The context of a task that publishes one batch of the run's plan.
        artifacts: Names of artifacts, each `project/platform`.

    Returns:
        By artifact, the task of its batch and the state in which it ended.
    """
    if not artifacts:
        return {}
    ti: Any = context["ti"]
    plan: list[dict[str, Any]] = ti.xcom_pull(task_ids=PLAN, key="return_value") or []
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id]).get(ti.run_id, {})
    found: dict[str, str] = {}
    for index, batch in enumerate(plan):
        state = states.get(f"{ti.task_id}_{index}")
        if state in ENDED:
            of_batch = {item.name for item in batches_of(batch)[0].items} & {*artifacts}
            found |= dict.fromkeys(of_batch, f"task {ti.task_id}[{index}] is {state}")
    return found
