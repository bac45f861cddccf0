"""Publish the prepared artifacts of a batch, each under a short lease that this task takes, uses and gives back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from operators.base import batches_of, clock, former_names, holder_name, tries_left
from operators.lease import LeaseTaskOperator
from operators.links import RepositoryLink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.gateway.errors import PathBusy
    from include.nightlies.steps.publish import PublishOutcome
    from include.publishers.connect import Connections


class PublishArtifactsOperator(LeaseTaskOperator):
    """Publishes what `PrepareArtifactsOperator` prepared.

    Waits for busy paths in the triggerer, publishing the others first.

    A try that finds its tree at the destination, because an earlier one had published it before it died, reports so and
    makes no new revision. No token leaves the task: what is deferred, returned or logged names paths and digests only.

    :param batch: one batch of a plan, as its task handed it on.
    """

    template_fields = ("batch",)
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#dcfce7"

    def __init__(self, *, batch: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self._outcome: PublishOutcome | None = None

    def attempt(self, context: Context, connections: Connections) -> Mapping[str, PathBusy]:
        from include.nightlies.steps.publish import publish_batch

        (batch,) = batches_of(self.batch)
        before = self._outcome
        self._outcome = publish_batch(
            connections,
            batch,
            holder=holder_name(context),
            try_number=context["ti"].try_number,
            clock=clock,
            on_lease=self.on_lease,
            last_try=not tries_left(context),
            outlast=self.outlasts(connections),
        )
        if before is not None:
            # what failed in an earlier look of this try keeps the error itself
            self._outcome.failures.update(before.failures)
        return self._outcome.busy

    def give_up(self, context: Context, connections: Connections, busy: Mapping[str, PathBusy], why: str) -> None:
        from include.nightlies.steps.publish import give_up

        (batch,) = batches_of(self.batch)
        for name in busy:
            give_up(connections, batch, name, why=why, try_number=context["ti"].try_number, clock=clock)

    def result(self, context: Context, connections: Connections) -> list[dict[str, Any]]:  # noqa: ARG002
        from include.nightlies.steps.errors import BatchFailed

        outcome = self._outcome
        if outcome is None:
            return []
        if outcome.failures:
            several = len(outcome.failures) > 1 or outcome.done
            raise BatchFailed(outcome.failures) if several else next(iter(outcome.failures.values()))
        return outcome.to_json()


if not TYPE_CHECKING:
    __getattr__ = former_names(__name__, {"CvmfsPublishOperator": "PublishArtifactsOperator"})
