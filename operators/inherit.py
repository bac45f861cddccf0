"""Take what a partial build does not list from the build that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from operators.base import NightshiftOperator, attempt_of, batches_of
from operators.lease import Done, Waiting
from operators.publish import BatchTaskOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.site.site import Site


class PrepareInheritedOperator(NightshiftOperator):
    """What is done of a partial build's inheritance before a person is asked: catalogs for the new places are stored.

    Skipped for builds that list all they have. One that fails is recorded with its reason and stops no other.

    Args:
        batch: What the plan left under the key `inherited`; empty: the build lists all it has.
        **kwargs: Those of every operator.
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
        site = self.site()
        this_try = attempt_of(context, outlast=self.outlasts(site))
        outcome = self.outlasting(site, lambda: prepare_inherited(site, this_try, batch))
        if outcome.failures:
            raise BatchFailed(outcome.failures)
        return outcome.to_json()


class InheritArtifactsOperator(BatchTaskOperator):
    """Each tree that a partial build takes from another one, by its catalogs alone or as a link; no data is sent.

    Skipped for builds that list all they have. Waits for busy paths in the triggerer. Returns state and reason of each.

    Args:
        prepared: Whether `PrepareInheritedOperator` stored the catalogs before.
        **kwargs: Those of `BatchTaskOperator`; its `batch` is what the plan left under the key `inherited`.
    """

    ui_color = "#cffafe"

    def __init__(self, *, prepared: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prepared = prepared

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.cvmfs.errors import CollectionRunning
        from include.gateway.errors import PathBusy
        from include.nightlies.steps.inherit import inherit_batch
        from include.nightlies.steps.publish import PublishOutcome

        if not self.batch:
            raise AirflowSkipException("the build takes nothing from another one")
        (batch,) = batches_of(self.batch)
        attempt = attempt_of(context, outlast=self.outlasts(site), on_lease=self.on_lease)
        try:
            outcome = inherit_batch(site, attempt, batch, prepared=self.prepared)
        except (PathBusy, CollectionRunning) as busy:  # the places cannot be reserved yet
            outcome = PublishOutcome(busy={item.name: busy for item in batch.items})
        for row in () if outcome.busy else outcome.done:
            self.log.info("inherited %s/%s: %s: %s", row.project, row.platform, row.state.value, row.reason)
        settled = self.settled(site.ledger, attempt, batch, outcome)
        if isinstance(settled, Waiting):
            return settled
        return Done([{"kind": "inherited", **row} for row in settled.result])
