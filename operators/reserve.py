"""Create the skeleton of a build in one short lease and one commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from operators.base import batches_of, clock, former_names, holder_name
from operators.lease import LeaseTaskOperator
from operators.links import RepositoryLink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.gateway.errors import PathBusy
    from include.nightlies.steps.reserve import Reservation
    from include.publishers.connect import Connections


class ReserveDestinationsOperator(LeaseTaskOperator):
    """Every destination of a run becomes an empty nested catalog, unless it is there; then no lease is taken at all.

    :param batches: all batches of a plan. A destination that something is in the way of fails its own artifact only.
    """

    template_fields = ("batches",)
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#fef9c3"

    def __init__(self, *, batches: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batches = batches
        self._done: Reservation | None = None

    def attempt(self, context: Context, connections: Connections) -> Mapping[str, PathBusy]:
        from include.gateway.errors import PathBusy
        from include.nightlies.steps.reserve import reserve_run

        batches = batches_of(self.batches)
        try:
            self._done = reserve_run(
                connections,
                batches,
                holder=holder_name(context),
                try_number=context["ti"].try_number,
                clock=clock,
            )
        except PathBusy as busy:
            return {"reserve": busy}
        return {}

    def give_up(self, context: Context, connections: Connections, busy: Mapping[str, PathBusy], why: str) -> None:
        """Nothing to record: no artifact has failed yet."""

    def result(self, context: Context, connections: Connections) -> dict[str, Any] | None:  # noqa: ARG002
        done = self._done
        if done is None:
            return None
        return {
            "revision": done.revision,
            "created": len(done.created),
            "refused": sorted(done.refused),
            "lease_held_s": round(done.lease_held_s, 3),
        }


if not TYPE_CHECKING:
    __getattr__ = former_names(__name__, {"CvmfsReserveOperator": "ReserveDestinationsOperator"})
