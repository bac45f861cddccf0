"""Create the skeleton of a build in one short lease and one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from operators.base import attempt_of, batches_of
from operators.lease import Done, LeaseTaskOperator, Waiting
from operators.links import RepositoryLink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.site.site import Site


class ReserveDestinationsOperator(LeaseTaskOperator):
    """Every destination of a run becomes an empty nested catalog, unless it is there; then no lease is taken at all.

    Args:
        batches: All batches of a plan, as its task returned them. An obstacle at a destination fails only its artifact.
        **kwargs: Those of `LeaseTaskOperator`.
    """

    template_fields = ("batches",)
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#fef9c3"

    def __init__(self, *, batches: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batches = batches

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.cvmfs.errors import CollectionRunning
        from include.gateway.errors import PathBusy
        from include.nightlies.steps.reserve import reserve_run

        try:
            made = reserve_run(site, attempt_of(context), batches_of(self.batches))
        except (PathBusy, CollectionRunning) as busy:
            return Waiting({"reserve": busy})
        return Done(
            {
                "revision": made.revision,
                "created": len(made.created),
                "refused": sorted(made.refused),
                "lease_held_s": round(made.lease_held_s, 3),
            }
        )
