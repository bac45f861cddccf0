"""Take what a partial build does not list from the build that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from operators.base import NightshiftOperator, batches_of, clock, former_names, holder_name
from operators.lease import LeaseTaskOperator
from operators.links import RepositoryLink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.gateway.errors import PathBusy
    from include.nightlies.steps.publish import PublishOutcome
    from include.publishers.connect import Connections


class PrepareInheritedOperator(NightshiftOperator):
    """What is done of a partial build's inheritance before somebody is asked: catalogs for the new places are stored.

    Skipped for builds that list all they have. One that fails is recorded with its reason and stops no other.

    :param batch: what the plan handed on of its kind.
    """

    template_fields = ("batch",)
    ui_color = "#cffafe"

    def __init__(self, *, batch: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.errors import BatchFailed
        from include.nightlies.steps.inherit import prepare_inherited

        if not self.batch:
            raise AirflowSkipException("the build takes nothing from another one")
        (batch,) = batches_of(self.batch)
        connections, number = self.connections(), context["ti"].try_number
        outcome = self.outlasting(
            connections,
            lambda: prepare_inherited(
                connections, batch, try_number=number, clock=clock, outlast=self.outlasts(connections)
            ),
        )
        if outcome.failures:
            raise BatchFailed(outcome.failures)
        return outcome.to_json()


class InheritArtifactsOperator(LeaseTaskOperator):
    """Each tree that a partial build takes from another one, by its catalogs alone or as a link; no data is sent.

    Skipped for builds that list all they have. Waits for busy paths in the triggerer. One that fails is recorded with
    its reason and stops no other; then the task fails, too. Returns state and reason of each.

    :param batch: what the plan handed on of its kind.
    :param prepared: whether `PrepareInheritedOperator` did its part before.
    """

    template_fields = ("batch",)
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#cffafe"

    def __init__(self, *, batch: Any, prepared: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.prepared = prepared
        self._outcome: PublishOutcome | None = None

    def attempt(self, context: Context, connections: Connections) -> Mapping[str, PathBusy]:
        from include.gateway.errors import PathBusy
        from include.nightlies.steps.inherit import inherit_batch

        if not self.batch:
            raise AirflowSkipException("the build takes nothing from another one")
        (batch,) = batches_of(self.batch)
        before = self._outcome
        try:
            self._outcome = inherit_batch(
                connections,
                batch,
                holder=holder_name(context),
                try_number=context["ti"].try_number,
                clock=clock,
                on_lease=self.on_lease,
                prepared=self.prepared,
                outlast=self.outlasts(connections),
            )
        except PathBusy as busy:
            return {"reserve": busy}
        if before is not None:
            self._outcome.failures.update(before.failures)
        return self._outcome.busy

    def give_up(self, context: Context, connections: Connections, busy: Mapping[str, PathBusy], why: str) -> None:
        from include.nightlies.steps.publish import give_up

        (batch,) = batches_of(self.batch)
        names = {item.name for item in batch.items}
        for name in names if "reserve" in busy else busy:
            give_up(connections, batch, name, why=why, try_number=context["ti"].try_number, clock=clock)

    def result(self, context: Context, connections: Connections) -> list[dict[str, Any]]:  # noqa: ARG002
        from include.nightlies.steps.errors import BatchFailed

        outcome = self._outcome
        if outcome is None:
            return []
        for one in outcome.done:
            self.log.info("inherited %s/%s: %s: %s", one.project, one.platform, one.state.value, one.reason)
        if outcome.failures:
            raise BatchFailed(outcome.failures)
        return [{"kind": "inherited", **one} for one in outcome.to_json()]


if not TYPE_CHECKING:
    __getattr__ = former_names(
        __name__, {"InheritPrepareOperator": "PrepareInheritedOperator", "InheritOperator": "InheritArtifactsOperator"}
    )
